"""The page in a browser: what it shows, by keys and by address, and that nothing in a volume becomes part of it."""

from urllib.parse import quote

import pytest
from conftest import AXE, HOSTILE


def test_the_token_leaves_the_address_and_is_in_no_request(open_page, address):
    page = open_page()
    token = address.split("#token=")[1]
    assert page.tab.url.startswith(f"{page.base}/#/history")
    assert len(page.requests) > 5
    for request in page.requests:
        assert token not in request.url
        assert not request.headers.get("referer")
    assert page.context.cookies() == []
    page.tab.reload()
    page.wait()
    assert "third" in page.text()


def test_without_the_token_the_page_says_what_to_do(browser, address):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(address.split("#")[0])
    assert "Open the whole address" in tab.inner_text("main")
    context.close()


def test_the_history_is_a_graph_that_keys_move_in(open_page, volume):
    page = open_page()
    assert page.tab.locator(".history .row svg circle:visible").count() == 3
    assert "3 snapshots" in page.text()
    page.press("j", "j")
    assert page.tab.locator(".row[aria-selected=true]").inner_text().startswith("first")
    page.tab.wait_for_selector("aside h2:has-text('first')")
    assert f"at={volume.ids[0]}" in page.tab.url
    page.press("k")
    page.tab.wait_for_selector("aside h2:has-text('<img src=x onerror=alert(1)> second')")
    page.press("Enter")
    page.tab.wait_for_selector(".files .row")
    assert f"at={volume.ids[1]}" in page.tab.url


def test_a_filter_leaves_what_matches(open_page):
    page = open_page()
    page.press("/")
    page.tab.keyboard.type("SECOND")
    page.tab.keyboard.press("Enter")
    page.until("document.querySelector('main').innerText.includes('1 snapshot')")
    page.go("#/history?path=docs")
    assert "2 snapshots" in page.text()
    page.go("#/history?grep=nothing-like-this")
    assert "Nothing found" in page.text()


def test_files_and_their_versions(open_page, volume):
    page = open_page()
    page.go("#/files?path=docs/guide.md")
    assert "another line" in page.text()
    versions = page.tab.locator(".versions li")
    versions.first.wait_for()
    assert versions.count() == 2
    assert "2 snapshots" in versions.nth(0).inner_text()
    page.press("[")
    page.until(f"location.hash.includes('{volume.ids[0]}')")
    page.tab.wait_for_selector(".versions li.now:nth-child(2)")
    assert "another line" not in page.text()
    page.press("]")
    page.tab.wait_for_selector(".versions li.now:nth-child(1)")
    page.tab.click(".versions a:has-text('Compare')")
    page.tab.wait_for_selector(".diff tr.plus:has-text('another line')")


def test_a_file_is_downloaded(open_page):
    page = open_page()
    page.go("#/files?path=bytes")
    with page.tab.expect_download() as download:
        page.tab.click("button:has-text('Download')")
    assert download.value.suggested_filename == "bytes"
    assert download.value.path().read_bytes() == bytes(reversed(range(256))) * 8


def test_large_directories_are_scrolled_not_built(open_page):
    page = open_page()
    page.go("#/files?path=many")
    assert page.tab.locator(".files .row").count() < 60
    page.tab.focus(".list")
    # Each end of what is there so far makes the page ask for more.
    for _ in range(100):
        page.press("Home", "End")
        if page.tab.locator(".row:visible", has_text="file-1199").count() > 0:
            break
    assert page.tab.locator(".row[aria-selected=true]").inner_text().startswith("file-1199")
    assert page.tab.locator(".files .row").count() < 60


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(open_page, name):
    page = open_page()
    page.go(f"#/files?path={quote('hostile/' + name, safe='')}")
    assert page.tab.locator("main script, main img, main [onload], main [onerror]").count() == 0
    assert page.tab.inner_text("pre.content") == name if name.strip() else True


def test_a_name_that_is_no_text_is_opened(open_page):
    page = open_page()
    page.go("#/files?path=hostile")
    page.tab.locator(".row a:has-text('not')").click()
    page.tab.wait_for_selector("pre.content:has-text('bytes in a name')")
    assert "path_hex=" in page.tab.url


def test_differences_as_lines_pictures_and_bytes(open_page, volume):
    page = open_page()
    page.go(f"#/compare?a={volume.ids[0]}&b={volume.ids[1]}&open=docs/guide.md")
    page.tab.wait_for_selector(".diff tr.minus:has-text('line 30')")
    assert "3 modified" in page.text()
    page.tab.click(".row:has-text('cover.png')")
    page.until("document.querySelectorAll('.pictures img').length === 2")
    sizes = page.tab.evaluate("Array.from(document.querySelectorAll('.pictures img'), (image) => image.naturalWidth)")
    assert sizes == [40, 50]
    page.tab.click(".row:has-text('bytes')")
    page.until("document.querySelectorAll('pre.content').length === 2")
    assert "00000000  00 01 02" in page.text()


def test_two_marked_snapshots_are_compared(open_page, volume):
    page = open_page()
    page.press("c", "j", "j", "c")
    page.tab.wait_for_selector(".changes")
    assert f"a={volume.ids[2]}&b={volume.ids[0]}" in page.tab.url


def test_a_snapshot_that_is_not_there_is_said_so(open_page):
    page = open_page()
    page.go(f"#/files?at={'0' * 64}")
    assert "This is not there any more" in page.text()
    # The browser itself reports the status.
    page.errors[:] = [error for error in page.errors if "404" not in error]


STATES = ["#/history", "#/files", "#/files?path=docs/guide.md", "#/files?path=cover.png", "#/compare", "#/compare?a={0}&b={1}"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everybody_can_use_it(open_page, volume, width, scheme):
    page = open_page(width=width, scheme=scheme)
    page.tab.evaluate(AXE.read_text())
    for state in STATES:
        page.go(state.format(*volume.ids))
        found = page.tab.evaluate("axe.run()")["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == [], state
        overflow = page.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{state} is wider than the window"
