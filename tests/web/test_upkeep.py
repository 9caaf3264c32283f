"""Notes and properties of snapshots, forgetting them, and freeing what nothing needs: on the page, as the commands do it."""

import json
import os

import pytest
from conftest import AXE, Page, Volume, serve
from test_actions import ask, choose, dialog, opened, until_says, was_run


@pytest.fixture
def own(tmp_path):
    """A volume with five snapshots, of which each holds something of its own."""
    made = Volume(tmp_path)
    made.ids = []
    for number in range(5):
        made.write("big", os.urandom(200_000))
        made.ids.append(made.snapshot(f"note {number}"))
    made.run("tag", "add", "v1", made.ids[0])
    made.run("pin", "--snapshot", "--reason", "evidence", made.ids[1])
    return made


def history(volume):
    return [snapshot["id"] for snapshot in volume.json("history", "-n", "0")["snapshots"]]


def test_a_note_and_properties_are_changed(browser, own):
    own.run("note", "--set", "by=me", "--set", "old=1", own.ids[4])
    with opened(browser, own, expect=["400"]) as page:
        choose(page, "note 4")
        page.press("e")
        assert page.tab.input_value("#note") == "note 4"
        assert page.tab.input_value("#properties") == "by=me\nold=1"
        page.tab.fill("#note", "<b>another</b> note\n\nwith a second line")
        page.tab.fill("#properties", "by=you=me\nnot a name=1")
        page.tab.click(".action-dialog button:has-text('Preview')")
        page.tab.wait_for_selector(".failure:has-text('is no name of a property')")
        page.tab.fill("#properties", "by=you=me\n\nnew=--set")
        page.tab.click(".action-dialog button:has-text('Preview')")
        until_says(page, "<b>another</b> note")
        assert [page.tab.locator(f".action-dialog {kind}").all_inner_texts() for kind in ["del", "ins"]] == [
            ["note 4", "me", "1"], ["<b>another</b> note\\u{a}\\u{a}with a second line", "you=me", "--set"],
        ]
        assert was_run(page) == []
        page.tab.click(".action-dialog button:has-text('Change')")
        until_says(page, "This is what the snapshot says now.")
        said = own.json("note", own.ids[4])
        assert said["snapshot"]["note"] == "<b>another</b> note\n\nwith a second line"
        assert {one["name"]: one["value"] for one in said["properties"]} == {"by": "you=me", "new": "--set"}
        page.press("Enter")
        page.tab.wait_for_selector("aside h2:has-text('<b>another</b> note')")
        page.tab.wait_for_selector("aside dd:has-text('you=me')")


def test_a_note_that_was_changed_after_the_look_stays(browser, own):
    with opened(browser, own, expect=["409"]) as page:
        choose(page, "note 4")
        page.press("e")
        page.tab.fill("#note", "mine")
        page.tab.click(".action-dialog button:has-text('Preview')")
        until_says(page, "mine")
        own.run("note", "-m", "theirs", own.ids[4])
        page.tab.click(".action-dialog button:has-text('Change')")
        page.tab.wait_for_selector(".failure:has-text('something has changed since the preview')")
        assert own.json("note", own.ids[4])["snapshot"]["note"] == "theirs"


def test_a_snapshot_is_forgotten_after_a_word(browser, own):
    with opened(browser, own) as page:
        choose(page, "note 2")
        page.tab.click("aside button:has-text('Forget…')")
        until_says(page, "leaves the history")
        confirm = page.tab.locator(".action-dialog button.first")
        assert confirm.is_disabled() and len(history(own)) == 5
        page.tab.keyboard.type("forget")
        page.press("Enter")
        until_says(page, "The snapshot is forgotten.")
        assert history(own) == [own.ids[index] for index in (4, 3, 1, 0)]
        page.press("Enter")
        page.until("document.querySelector('.tools [role=status]').textContent === '4 snapshots'")
        # The list is still that of the worktree.
        assert page.tab.input_value("#worktree") == "main"
        own.run("undo")
        page.until("document.querySelector('.tools [role=status]').textContent === '5 snapshots'")


@pytest.mark.parametrize(("note", "reason"), [("note 0", "the tag 'v1' names it"), ("note 1", "pinned"), ("note 4", "the worktree 'main' stands on it")])
def test_what_is_needed_is_not_forgotten(browser, own, note, reason):
    with opened(browser, own, expect=["409"]) as page:
        choose(page, note)
        page.tab.click("aside button:has-text('Forget…')")
        page.tab.wait_for_selector(f'.failure:has-text("{reason}")')
        assert page.tab.locator(".action-dialog button.first").count() == 0
        assert len(history(own)) == 5


def test_what_got_a_tag_after_the_look_is_not_forgotten(browser, own):
    with opened(browser, own, expect=["409"]) as page:
        choose(page, "note 2")
        page.tab.click("aside button:has-text('Forget…')")
        until_says(page, "leaves the history")
        own.run("tag", "add", "needed", own.ids[2])
        page.tab.keyboard.type("forget")
        page.press("Enter")
        page.tab.wait_for_selector(".failure:has-text(\"the tag 'needed' names it\")")
        assert len(history(own)) == 5


def open_rules(page):
    page.go("#/health")
    page.until("document.querySelectorAll('.card [aria-busy]').length === 0")
    page.tab.click("button:has-text('Forget by rules…')")
    page.tab.wait_for_selector("#keep-last")


def test_rules_say_of_each_why_it_stays_or_goes(browser, own):
    with opened(browser, own) as page:
        open_rules(page)
        page.tab.keyboard.type("1")
        page.press("Enter")
        until_says(page, "forgets 2, keeps 3")
        rows = page.tab.locator(".action-dialog .paths li").all_inner_texts()
        said = {own.ids[index][:8]: row for row in rows for index in range(5) if own.ids[index][:8] in row}
        assert [rows[index].startswith("forget") for index in range(5)] == [True, True, False, False, False]
        for index, reason in enumerate(["tag v1", "pinned by", "no rule keeps it", "no rule keeps it", "worktree main"]):
            assert reason in said[own.ids[index][:8]]
        assert len(history(own)) == 5
        page.tab.keyboard.type("forget")
        page.press("Enter")
        until_says(page, "2 snapshots forgotten.")
        assert history(own) == [own.ids[index] for index in (4, 1, 0)]


def test_without_numbers_the_rules_that_are_set_count(browser, own):
    with opened(browser, own, expect=["400"]) as page:
        open_rules(page)
        page.press("Enter")
        page.tab.wait_for_selector(".failure:has-text('no rule is set')")
        assert "vellum config set" in page.tab.inner_text(".failure")
        own.run("config", "set", "--volume", "retention.keep-last", "2")
        page.press("Enter")
        until_says(page, "forgets 1, keeps 4")


def test_a_snapshot_that_is_made_after_the_look_changes_nothing_unseen(browser, own):
    with opened(browser, own, expect=["409"]) as page:
        open_rules(page)
        page.tab.keyboard.type("2")
        page.press("Enter")
        until_says(page, "forgets 1, keeps 4")
        own.write("more", "more")
        own.snapshot("made meanwhile")
        page.tab.keyboard.type("forget")
        page.press("Enter")
        page.tab.wait_for_selector(".failure:has-text('something has changed since the preview')")
        assert len(history(own)) == 6


def test_nothing_that_is_needed_is_freed(browser, own):
    for index in (2, 3):
        own.run("forget", own.ids[index])
    before = own.json("gc", "plan")
    assert before["freed"] > 0
    with opened(browser, own) as page:
        page.go("#/health")
        page.until("document.querySelectorAll('.card [aria-busy]').length === 0")
        page.tab.click("button:has-text('Free…')")
        until_says(page, "frees ")
        assert "cannot be brought back" in dialog(page) and own.json("gc", "plan") == before
        page.tab.keyboard.type("free")
        page.press("Enter")
        until_says(page, "freed.")
        assert own.json("gc", "plan")["freed"] == 0
        page.press("Enter")
        page.until("document.querySelectorAll('.card [aria-busy]').length === 0")
        page.tab.click("button:has-text('Free…')")
        until_says(page, "There is nothing to free.")
        assert page.tab.locator(".action-dialog button.first").count() == 0
    assert own.json("verify", "--all")["sound"] is True


def test_a_page_that_only_shows_forgets_nothing(browser, own):
    with opened(browser, own, "--read-only") as page:
        for body, kind in [({"target": own.ids[2], "note": "x"}, "note"), ({"targets": [own.ids[2]]}, "forget"), ({"policy": True}, "forget"), ({}, "gc")]:
            status, answer = ask(page, f"plans/{kind}", body)
            assert (status, answer["error"]["code"]) == (403, "denied")
        page.tab.wait_for_selector("aside h2")
        page.press("e")
        page.go("#/health")
        page.until("document.querySelectorAll('.card [aria-busy]').length === 0")
        assert page.tab.locator("button:has-text('Forget'), button:has-text('Free'), .action-dialog").count() == 0


def test_bodies_that_are_none_are_refused(browser, own):
    with opened(browser, own) as page:
        for kind, body in [
            ("forget", {}), ("forget", {"targets": ["HEAD"]}), ("forget", {"keep": {"last": 1}, "force": True}),
            ("forget", {"policy": True, "gc": True}), ("forget", {"keep": {"tag": "x"}}), ("gc", {"without": ["x"]}), ("note", {"target": own.ids[2]}),
        ]:
            assert ask(page, f"plans/{kind}", body)[0] == 400, (kind, body)
        assert ask(page, "plans/forget", {"targets": ["0" * 64]})[0] == 404
        assert ask(page, "plans/forget", {"keep": {"last": 1}, "worktree": "--all"})[0] in (400, 404)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everybody_can_use_it(browser, own, width, scheme):
    with serve(own) as address:
        page = Page(browser, address, width=width, scheme=scheme)
        page.tab.evaluate(AXE.read_text())

        def check(what):
            found = page.tab.evaluate("axe.run()")["violations"]
            assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == [], what
            assert page.tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, what

        choose(page, "note 4")
        page.press("e")
        page.tab.wait_for_selector("#note")
        check("the note")
        page.tab.fill("#note", "another")
        page.tab.click(".action-dialog button:has-text('Preview')")
        page.tab.wait_for_selector(".action-dialog ins")
        check("the preview of the note")
        page.press("Escape")
        open_rules(page)
        check("the rules")
        page.tab.fill("#keep-last", "1")
        page.press("Enter")
        until_says(page, "forgets 2")
        check(json.dumps(page.tab.inner_text(".action-dialog")))
        page.context.close()
        assert page.errors == []
