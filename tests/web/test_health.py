"""How the volume and its mounts are, on the page."""

import os
import shutil

import pytest
from conftest import AXE, Page, Volume, serve
from test_actions import ask, opened


@pytest.fixture
def own(tmp_path):
    made = Volume(tmp_path)
    made.write("<b>docs</b>/guide.md", "text\n" * 1000)
    made.ids = [made.snapshot("first", "--tag", "v1")]
    return made


def card(page, name):
    return page.tab.inner_text(f".card.{name}")


def test_each_part_is_what_its_command_reports(browser, own):
    own.write("new", "new")
    with opened(browser, own) as page:
        page.press("5")
        page.until("document.getElementById('main').dataset.ready === 'health'")
        page.until("document.querySelectorAll('.card [aria-busy]').length === 0")
        assert "Healthy" in card(page, "doctor") or own.json("doctor")["findings"]
        assert "1 added" in card(page, "status") and "none" in card(page, "status")
        info = own.json("info")
        assert f"{info['packs']} pack" in card(page, "store") and str(own.data) in card(page, "store")
        assert "Would be freed" in card(page, "gc")
        assert "main" in card(page, "usage") and str(own.data) in card(page, "worktrees")
        assert "Nothing was verified" in page.text()


def test_a_verification_finds_what_is_damaged(browser, own):
    with opened(browser, own, expect=["409", "500"]) as page:
        page.go("#/health")
        for scope in ["Metadata", "5 %", "Snapshot", "All"]:
            page.until("document.querySelectorAll('[aria-label=Verify] button:disabled').length === 0")
            page.tab.click(f"[aria-label=Verify] button:has-text('{scope}')")
            page.until("document.querySelector('main').innerText.includes('Sound') && !document.querySelector('main').innerText.includes('Reading')")
        packs = [path for path in (own.data / ".vellum/store").rglob("*") if path.is_file() and path.stat().st_size > 100 and "pack" in str(path)]
        largest = max(packs, key=lambda path: path.stat().st_size)
        largest.chmod(0o644)
        content = bytearray(largest.read_bytes())
        content[len(content) // 3] ^= 255
        largest.write_bytes(content)
        page.tab.click("[aria-label=Verify] button:has-text('All')")
        page.until("document.querySelector('main').innerText.includes('Damaged')")
        # It is still there when the view is opened again.
        page.go("#/history")
        page.go("#/health")
        page.until("document.querySelector('main').innerText.includes('Damaged')")


def test_a_page_that_only_shows_verifies_nothing(browser, own):
    with opened(browser, own, "--read-only") as page:
        page.go("#/health")
        assert page.tab.locator("[aria-label=Verify]").count() == 0
        assert ask(page, "jobs/verify", {"scope": "all"})[0] == 403
        assert ask(page, "jobs/verify", None)[0] == 200


def test_a_scope_that_is_none_is_refused(browser, own):
    with opened(browser, own) as page:
        for body in [{}, {"scope": "--repair"}, {"scope": "all", "repair": True}]:
            assert ask(page, "jobs/verify", body)[0] == 400
        assert ask(page, "health/keys", None)[0] == 404


def test_without_mounts_it_is_said_so(browser, own):
    with opened(browser, own) as page:
        page.press("6")
        page.until("document.getElementById('main').dataset.ready === 'live'")
        assert "Nothing of this volume is mounted on this machine" in page.text()


@pytest.fixture
def mounted(own, tmp_path):
    if not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None and os.geteuid() != 0:
        pytest.skip("no /dev/fuse")
    mount = tmp_path / "mount"
    mount.mkdir()
    own.run("fork", "live", "--mount", str(mount))
    yield mount
    own.run("umount", str(mount))


def test_mounts_show_what_they_do(browser, own, mounted):
    with opened(browser, own) as page:
        page.go("#/live")
        assert str(mounted) in page.text() and "worktree live" in page.text()
        # Each figure is of one second: requests have to go on while they are counted.
        for number in range(2000):
            (mounted / f"file-{number % 50}").write_text("x" * 1000)
            if page.tab.evaluate("Array.from(document.querySelectorAll('.card tr:first-child td.num'), (cell) => cell.textContent).some((text) => text !== '0' && text !== '–')"):
                break
        else:
            raise AssertionError(page.text())
        page.until("document.querySelector('.card svg polyline')?.getAttribute('points').split(' ').length >= 3")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everybody_can_use_it(browser, own, mounted, width, scheme):
    with serve(own) as address:
        page = Page(browser, address, width=width, scheme=scheme)
        page.tab.evaluate(AXE.read_text())
        for state in ["#/health", "#/live"]:
            page.go(state)
            page.until("document.querySelectorAll('.card [aria-busy]').length === 0")
            found = page.tab.evaluate("axe.run()")["violations"]
            assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == [], state
            assert page.tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, state
        page.context.close()
        assert page.errors == []
