"""What the page shows by itself when something has changed."""

import socket
import subprocess

from conftest import Page, serve
from test_actions import own, opened  # noqa: F401  (a fixture)


def shown(page, note):
    page.until(f"document.querySelector('.history .canvas')?.innerText.includes({note!r})")


def test_a_snapshot_of_another_command_is_shown_where_one_is(browser, own):  # noqa: F811
    for number in range(60):
        own.write("notes.txt", f"{number}\n")
        own.snapshot(f"note {number:02}")
    with opened(browser, own) as page:
        page.press("End")
        page.tab.wait_for_selector("aside h2:has-text('first')")
        top = page.tab.evaluate("document.querySelector('.list').scrollTop")
        asked = [request.url for request in page.requests]
        own.write("notes.txt", "another\n")
        own.snapshot("made meanwhile", "--tag", "new")
        page.until("document.querySelector('.tools [role=status]').textContent === '63 snapshots'")
        # The same rows are in sight, and the same one is chosen.
        assert page.tab.locator(".row[aria-selected=true]").inner_text().startswith("first")
        assert page.tab.evaluate("document.querySelector('.list').scrollTop") > top
        page.press("Home")
        shown(page, "made meanwhile")
        page.tab.wait_for_selector("aside h2:has-text('made meanwhile')")
        assert page.tab.locator(".history .row .label.head").inner_text() == "main"
        # It was told, and has not looked every now and then.
        assert [url for url in asked if url.endswith("/approvals")] == []


def test_a_label_of_another_command_is_shown(browser, own):  # noqa: F811
    with opened(browser, own) as page:
        page.tab.wait_for_selector("aside h2:has-text('second')")
        own.run("tag", "add", "later", own.ids[1])
        page.tab.wait_for_selector("aside .label.tag:has-text('later')")
        own.run("pin", "--snapshot", "--reason", "kept by another", own.ids[1])
        page.tab.wait_for_selector("aside dd:has-text('kept by another')")


def test_nothing_that_is_typed_or_shown_is_lost(browser, own):  # noqa: F811
    with opened(browser, own) as page:
        page.tab.wait_for_selector("aside button:has-text('Tag…')")
        page.press("t")
        page.tab.keyboard.type("half a na")
        own.run("tag", "add", "later", own.ids[1])
        page.tab.wait_for_selector("aside .label.tag:has-text('later')", state="attached")
        page.tab.keyboard.type("me")
        assert page.tab.input_value("#name") == "half a name"


def test_the_first_snapshot_is_shown(browser, tmp_path):
    from conftest import Volume

    empty = Volume(tmp_path)
    with serve(empty) as address:
        page = Page(browser, address)
        assert "No snapshot yet" in page.text()
        empty.write("a", "a")
        empty.snapshot("the first of all")
        shown(page, "the first of all")
        page.context.close()
        assert page.errors == []


def test_a_lost_connection_is_told_and_found_again(browser, own, tmp_path):  # noqa: F811
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    words = ("--listen", listen, "--token-file", str(tmp_path / "token"))
    with serve(own, *words) as address:
        page = Page(browser, address)
    page.until("document.getElementById('message').textContent.includes('The connection is lost')")
    own.write("notes.txt", "while nobody served\n")
    own.snapshot("while nobody served")
    with serve(own, *words):
        shown(page, "while nobody served")
    page.context.close()
    assert [error for error in page.errors if "ERR_CONNECTION_REFUSED" not in error] == []


def test_another_server_with_another_token_is_not_asked_again(browser, own):  # noqa: F811
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with serve(own, "--listen", listen) as address:
        page = Page(browser, address)
    with serve(own, "--listen", listen):
        page.until("document.getElementById('message').textContent.includes('of an earlier')")
    page.context.close()
    assert [error for error in page.errors if "ERR_CONNECTION_REFUSED" not in error and "401" not in error] == []


def test_programs_read_the_stream(own):  # noqa: F811
    with serve(own) as address:
        base, token = address.split("/#token=")
        words = ["curl", "-sN", "--max-time", "5", "-H", f"Authorization: Bearer {token}", f"{base}/api/v1/events"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as curl:
            lines = [curl.stdout.readline() for _ in range(2)]
            curl.terminate()
        assert lines[0].startswith("event: ") and lines[1].startswith("data: {")
