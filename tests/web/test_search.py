"""Names in all snapshots, on the page."""

import json
import os
from urllib.parse import quote

import pytest
from conftest import AXE, HOSTILE, Page, Volume, serve


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    made = Volume(tmp_path_factory.mktemp("search"))
    made.write("docs/report.pdf", "first")
    made.write("docs/Other.PDF", "other")
    made.ids = [made.snapshot("first")]
    (made.data / "docs/report.pdf").unlink()
    made.ids.append(made.snapshot("second"))
    for name in HOSTILE:
        made.write(f"hostile/{name}", "x")
    (made.data / "hostile").joinpath(os.fsdecode(b"found\xfftoo")).write_bytes(b"bytes in a name")
    made.ids.append(made.snapshot("third"))
    with serve(made) as address:
        made.address = address
        yield made


@pytest.fixture
def page(browser, searched):
    opened = Page(browser, searched.address)
    yield opened
    opened.context.close()
    assert opened.errors == []


def rows(page):
    return page.tab.locator(".found .row:visible").all_inner_texts()


def test_a_deleted_file_is_found_and_restored(page, searched):
    page.press("4")
    page.until("document.getElementById('main').dataset.ready === 'search'")
    page.tab.keyboard.type("report")
    page.press("Enter")
    page.tab.wait_for_selector(".found .row:has-text('docs/report.pdf')")
    assert "deleted" in rows(page)[0] and "1 name" in page.text()
    side = page.tab.inner_text("aside")
    assert side.count(searched.ids[0][:8]) == 2 and "deleted since" in side
    page.tab.click("aside button:has-text('Restore…')")
    page.until("document.querySelector('.action-dialog')?.innerText.includes('creates 1')")
    page.tab.keyboard.type("restore")
    page.press("Enter")
    page.until("document.querySelector('.action-dialog')?.innerText.includes('Restored')")
    assert (searched.data / "docs/report.pdf").read_text() == "first"
    (searched.data / "docs/report.pdf").unlink()
    page.press("Enter")
    page.press("Escape")
    page.go("#/search?q=report")
    page.tab.focus(".list")
    page.press("Enter")
    page.tab.wait_for_selector("pre.content:has-text('first')")
    assert f"at={searched.ids[0]}" in page.tab.url


def test_patterns_case_and_deleted_names(page):
    page.go(f"#/search?q={quote('*.pdf')}")
    assert len(rows(page)) == 2
    page.tab.click("label:has-text('match case')")
    page.until("document.querySelectorAll('.found .row:not([hidden])').length === 1")
    page.go(f"#/search?q={quote('docs/*')}&deleted=1")
    assert len(rows(page)) == 1 and "report.pdf" in rows(page)[0]
    page.go("#/search?q=no-such-name")
    assert "Nothing found" in page.text()
    for option in ["--all", "-h", "--json"]:
        page.go(f"#/search?q={option}")
        assert "Nothing found" in page.text()
    page.go(f"#/search?q={quote('[')}")
    assert "Nothing found" in page.text()


@pytest.mark.parametrize("name", [name for name in HOSTILE if not set(name) & set("*?[]\\/") and name.strip()])
def test_hostile_names_are_found_as_text(page, name):
    page.go(f"#/search?q={quote(name, safe='')}")
    page.tab.wait_for_selector(".found .row")
    assert page.tab.locator("main script, main img, main [onload], main [onerror]").count() == 0


def test_a_name_that_is_no_text_is_opened(page):
    page.go("#/search?q=found")
    page.tab.locator(".row a:has-text('found')").click()
    page.tab.wait_for_selector("pre.content:has-text('bytes in a name')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everybody_can_search(browser, searched, width, scheme):
    page = Page(browser, searched.address, width=width, scheme=scheme)
    page.tab.evaluate(AXE.read_text())
    for state in ["#/search", "#/search?q=pdf", "#/search?q=nothing-like-this"]:
        page.go(state)
        found = page.tab.evaluate("axe.run()")["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == [], state
        assert page.tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, state
    page.context.close()
    assert page.errors == []
