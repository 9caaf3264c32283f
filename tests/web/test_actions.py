"""What the page changes: from the click to the bytes, and nothing without one."""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from conftest import AXE, HOSTILE, VELLUM, Page, Volume, serve


@pytest.fixture
def own(tmp_path):
    """A volume of the test's own: two snapshots, and changes that none has."""
    made = Volume(tmp_path)
    made.write("notes.txt", "one\n")
    made.write("src/main.rs", "fn main() {}\n")
    made.ids = [made.snapshot("first", "--tag", "v1")]
    made.first = made.read()
    made.write("notes.txt", "two\n")
    made.write("new", "new\n")
    (made.data / "src/main.rs").unlink()
    made.ids.append(made.snapshot("second"))
    made.write("notes.txt", "not saved\n")
    made.write("draft", "a draft\n")
    made.unsaved = made.read()
    return made


@contextmanager
def opened(browser, volume, *words, expect=(), **options):
    """A page of a volume. `expect`: words of errors in the console that the test causes."""
    with serve(volume, *words) as address:
        page = Page(browser, address, **options)
        page.address = address
        try:
            yield page
        finally:
            page.context.close()
        assert [error for error in page.errors if not any(word in error for word in expect)] == []


def choose(page, note):
    """Makes the snapshot with a note the one that is shown."""
    page.tab.click(f".history .row:has-text('{note}')")
    page.tab.wait_for_selector(f"aside h2:has-text('{note}')")
    page.tab.wait_for_selector("aside button:has-text('Restore…')")


def dialog(page):
    return page.tab.inner_text(".action-dialog")


def until_says(page, text):
    page.until(f"document.querySelector('.action-dialog')?.innerText.includes({json.dumps(text)})")


def was_run(page):
    return [request for request in page.requests if request.url.endswith("/run")]


def test_everything_is_restored_after_a_look_and_a_word(browser, own):
    with opened(browser, own) as page:
        choose(page, "first")
        page.tab.click("aside button:has-text('Restore…')")
        until_says(page, "creates 1, replaces 1, deletes 2")
        shown = dialog(page)
        for path in ["src/main.rs", "notes.txt", "new", "draft"]:
            assert path in shown
        assert "2 paths have content that no snapshot has. A safety snapshot is made first" in shown
        assert str(own.data) in shown
        confirm = page.tab.locator(".action-dialog button.first")
        assert confirm.is_disabled()
        page.tab.keyboard.type("restor")
        assert confirm.is_disabled()
        assert own.read() == own.unsaved and was_run(page) == []
        page.tab.keyboard.type("e")
        confirm.click()
        until_says(page, "Restored: 2 files written, 2 deleted")
        assert own.read() == own.first
        safety = page.tab.locator(".action-dialog a.mono")
        assert len(was_run(page)) == 1
        safety.click()
        page.tab.wait_for_selector("aside h2:has-text('before the restore')")
        # Restoring the safety snapshot undoes it, also on the page.
        page.press("r")
        until_says(page, "Nothing is lost")
        page.tab.keyboard.type("restore")
        page.press("Enter")
        until_says(page, "Restored")
        assert own.read() == own.unsaved


def test_nothing_is_left_when_the_server_ends(browser, own, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with opened(browser, own) as page:
        assert ask(page, "plans/restore", {"target": own.ids[0]})[0] == 200
        [folder] = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_what_is_confirmed_is_finished_before_the_server_ends(own, tmp_path):
    began, go = tmp_path / "began", tmp_path / "go"
    own.run("config", "set", "hooks.before-restore", f"touch {began}; while [ ! -e {go} ]; do sleep 0.05; done")
    with subprocess.Popen(**own.command("web", "--json"), stdout=subprocess.PIPE, text=True) as serving, ThreadPoolExecutor() as pool:
        page = SimpleNamespace(address=json.loads(serving.stdout.readline())["address"])
        plan = ask(page, "plans/restore", {"target": own.ids[0]})[1]["plan"]
        running = pool.submit(ask, page, f"plans/{plan}/run", {})
        while not began.exists():
            assert not running.done(), running.result()
            time.sleep(0.02)
        serving.terminate()
        # It takes no connections any more, and waits for the command.
        with pytest.raises(OSError):
            while True:
                ask(page, "volume", None)
        assert serving.poll() is None and own.read() == own.unsaved
        go.touch()
        serving.wait()
    assert own.read() == own.first


def test_a_path_is_restored_and_nothing_else(browser, own):
    with opened(browser, own) as page:
        page.go(f"#/files?at={own.ids[0]}&path=notes.txt")
        page.tab.click("aside button:has-text('Restore…')")
        until_says(page, "replaces 1")
        assert "draft" not in dialog(page) and "The worktree stays on its current snapshot" in dialog(page)
        page.tab.keyboard.type("restore")
        page.tab.click(".action-dialog button.first")
        until_says(page, "Restored: 1 file written, 0 deleted")
        assert own.read() == {**own.unsaved, "notes.txt": b"one\n"}


def test_without_the_click_nothing_happens(browser, own):
    with opened(browser, own) as page:
        choose(page, "first")
        before = own.json("operations")
        for key in ["r", "f", "t", "p"]:
            page.press(key)
            page.tab.wait_for_selector(".action-dialog button:has-text('Cancel')")
            page.press("Escape")
            page.until("document.querySelector('.action-dialog') === null")
        assert own.read() == own.unsaved and own.json("operations") == before and was_run(page) == []


def test_what_changed_after_the_look_is_not_overwritten(browser, own):
    with opened(browser, own, expect=["409"]) as page:
        choose(page, "first")
        page.tab.click("aside button:has-text('Restore…')")
        until_says(page, "creates 1")
        own.write("notes.txt", "changed after the look\n")
        page.tab.keyboard.type("restore")
        page.tab.click(".action-dialog button.first")
        page.tab.wait_for_selector(".failure:has-text('the plan is not carried out')")
        assert "notes.txt" in page.tab.inner_text(".failure")
        assert page.tab.locator(".action-dialog button.first").count() == 0
        assert own.read() == {**own.unsaved, "notes.txt": b"changed after the look\n"}


def test_a_fork_is_made_where_it_was_said(browser, own, tmp_path):
    with opened(browser, own, expect=["400", "409"]) as page:
        choose(page, "first")
        page.press("f")
        page.tab.keyboard.type("trial")
        assert page.tab.input_value("#directory") == str(tmp_path / "trial")
        page.tab.fill("#directory", str(own.data / "inside"))
        page.tab.click(".action-dialog button.first")
        page.tab.wait_for_selector(".failure:has-text('choose a directory outside of it')")
        page.tab.fill("#directory", str(tmp_path / "trial"))
        page.tab.fill("#name", "main")
        page.press("Enter")
        page.tab.wait_for_selector(".failure:has-text(\"there is a worktree 'main' already\")")
        page.tab.fill("#name", "trial")
        page.press("Enter")
        until_says(page, "2 files")
        assert not (tmp_path / "trial").exists()
        page.tab.click(".action-dialog button:has-text('Make the fork')")
        until_says(page, "is in")
        assert (tmp_path / "trial/notes.txt").read_bytes() == b"one\n"
        assert own.read() == own.unsaved
        page.press("Enter")
        page.tab.wait_for_selector("#worktree option[value=trial]", state="attached")


def test_tags_come_and_go(browser, own):
    with opened(browser, own, expect=["409", "400"]) as page:
        choose(page, "second")
        page.press("t")
        page.tab.keyboard.type("v1")
        page.press("Enter")
        page.tab.wait_for_selector(".failure:has-text('v1')")
        page.tab.fill("#name", "--all")
        page.press("Enter")
        page.tab.wait_for_selector(".failure, .action-dialog button:has-text('Add the tag')")
        if page.tab.locator("#name").count() == 0:
            page.tab.click(".action-dialog button:has-text('Cancel')")
            page.press("t")
        page.tab.fill("#name", "v2")
        page.press("Enter")
        until_says(page, "Adds the tag v2")
        assert [tag["name"] for tag in own.json("tag", "list")["tags"]] == ["v1"]
        page.tab.click(".action-dialog button:has-text('Add the tag')")
        until_says(page, "The tag is added")
        assert {tag["name"]: tag["snapshot"] for tag in own.json("tag", "list")["tags"]} == {"v1": own.ids[0], "v2": own.ids[1]}
        page.press("Enter")
        page.tab.wait_for_selector("aside .label.tag:has-text('v2')")
        page.tab.click("button[aria-label='Remove the tag v2']")
        until_says(page, "It is its only tag")
        page.tab.click(".action-dialog button:has-text('Remove the tag')")
        until_says(page, "The tag is removed")
        assert [tag["name"] for tag in own.json("tag", "list")["tags"]] == ["v1"]


def test_snapshots_are_pinned_and_unpinned(browser, own):
    with opened(browser, own) as page:
        choose(page, "first")
        page.press("p")
        page.tab.keyboard.type("--until=<b>1d</b>")
        page.tab.fill("#until", "2094-05-01")
        page.tab.click(".action-dialog button.first")
        until_says(page, "is not forgotten, on no machine and by no rule, before 2094-05-01")
        assert own.json("pins")["snapshots"] == []
        page.tab.click(".action-dialog button:has-text('Pin')")
        until_says(page, "The snapshot is pinned")
        [pinned] = own.json("pins")["snapshots"]
        assert (pinned["snapshot"], pinned["reason"]) == (own.ids[0], "--until=<b>1d</b>")
        assert pinned["until"].startswith("2094-0")
        page.press("Enter")
        page.tab.wait_for_selector("aside dd:has-text('--until=<b>1d</b>')")
        page.tab.click("aside button:has-text('Unpin…')")
        until_says(page, "can be forgotten again")
        page.tab.click(".action-dialog button:has-text('Unpin')")
        until_says(page, "The snapshot is unpinned")
        assert own.json("pins")["snapshots"] == []


def test_a_page_that_only_shows_has_no_actions(browser, own):
    with opened(browser, own, "--read-only") as page:
        page.press("j")
        page.tab.wait_for_selector("aside h2:has-text('first')")
        page.press("r", "f", "t", "p")
        assert page.tab.locator("aside button:has-text('Restore…'), .action-dialog").count() == 0
        status, answer = ask(page, "plans/restore", {"target": own.ids[0]})
        assert (status, answer["error"]["code"]) == (403, "denied")
        assert "--read-only" in answer["error"]["hint"]


def ask(page, path, body, **headers):
    """A request by a program: its status and answer."""
    base, token = page.address.split("/#token=")
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    sent = {name.replace("_", "-"): value for name, value in sent.items() if value}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{base}/api/v1/{path}", data, sent)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_nobody_else_can_have_anything_done(browser, own):
    with opened(browser, own) as page:
        body = {"target": own.ids[0]}
        status, plan = ask(page, "plans/restore", body)
        assert (status, plan["counts"]["create"]) == (200, 1)
        run = f"plans/{plan['plan']}/run"
        for wrong, expected in [
            ({"Authorization": None}, 401),
            ({"Authorization": f"Bearer {'0' * 64}"}, 401),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "evil.example"}, 403),
            ({"Sec_Fetch_Site": "cross-site"}, 403),
            ({"Content_Type": "text/plain"}, 415),
            ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ]:
            if "Content_Type" in wrong:
                wrong = {"Content-Type": wrong["Content_Type"]}
            assert ask(page, run, {}, **wrong)[0] == expected, wrong
            assert ask(page, "plans/restore", body, **wrong)[0] == expected, wrong
        assert ask(page, run, {"confirm": True})[0] == 400
        assert ask(page, "plans/0000000000000000/run", {})[0] == 404
        assert own.read() == own.unsaved
        assert ask(page, run, {})[0] == 200
        assert own.read() == own.first
        assert ask(page, run, {})[0] == 409
        for path, wrong in [
            ("plans/restore", {"target": "HEAD"}),
            ("plans/restore", {"target": own.ids[0], "discard": True}),
            ("plans/restore", {"target": own.ids[0], "paths": [{"path": "../x"}]}),
            ("plans/fork", {"target": own.ids[0], "name": "x", "directory": "here"}),
            ("plans/fork", {"target": own.ids[0], "name": "x", "directory": "/tmp/../etc/x"}),
        ]:
            assert ask(page, path, wrong)[0] == 400, wrong
        assert ask(page, "plans/restore", {"target": "0" * 64})[0] == 404
        assert ask(page, "plans/nothing", body)[0] == 404


def test_names_in_previews_are_text(browser, own):
    for name in HOSTILE:
        own.write(f"hostile/{name}", "x")
    (own.data / "hostile").joinpath(os.fsdecode(b"not\xfftext")).write_bytes(b"x")
    with opened(browser, own) as page:
        choose(page, "first")
        page.press("r")
        until_says(page, "<img src=x onerror=alert(1)>")
        assert page.tab.locator(".action-dialog img, .action-dialog script, .action-dialog [onload]").count() == 0
        assert "\\u{202e}gnp.exe" in dialog(page) and "line\\u{a}feed" in dialog(page)
        page.tab.keyboard.type("restore")
        page.press("Enter")
        until_says(page, "Restored")
        assert own.read() == own.first
    [safety] = [snapshot for snapshot in own.json("history", "--all")["snapshots"] if snapshot["origin"] == "safety"]
    assert own.run("cat", safety["id"], "hostile/&amp;") == "x"


def test_a_name_that_is_no_text_is_restored(browser, own):
    odd = os.fsdecode(b"odd\xffname")
    (own.data / odd).write_bytes(b"before")
    saved = own.snapshot("odd")
    (own.data / odd).write_bytes(b"after")
    with opened(browser, own) as page:
        page.go(f"#/files?at={saved}")
        page.tab.locator(".row a:has-text('odd')").click()
        page.tab.click("aside button:has-text('Restore…')")
        until_says(page, "replaces 1")
        page.tab.keyboard.type("restore")
        page.press("Enter")
        until_says(page, "Restored")
        assert (own.data / odd).read_bytes() == b"before"


class Agent:
    """A client of 'vellum mcp', line by line."""

    def __init__(self, volume):
        self.process = subprocess.Popen(**volume.command("mcp"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.number = 0
        client = {"name": "<b>agent</b>", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        while True:
            answer = json.loads(self.process.stdout.readline())
            if answer.get("id") == self.number:
                return answer["result"]

    def call(self, tool, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.parametrize("says", ["approve", "refuse"])
def test_a_person_answers_an_agent_on_the_page(browser, own, says):
    agent = Agent(own)
    try:
        plan = agent.call("restore_plan", to="v1")["plan"]
        assert agent.call("restore", plan=plan)["status"] == "pending"
        with opened(browser, own) as page:
            page.tab.click("#requests button")
            until_says(page, "bagentb wants to restore")
            assert "src/main.rs" in dialog(page)
            page.tab.evaluate(AXE.read_text())
            assert page.tab.evaluate("axe.run()")["violations"] == []
            if says == "refuse":
                page.tab.click(".action-dialog button:has-text('Refuse')")
            else:
                approve = page.tab.locator(".action-dialog button.first")
                assert approve.is_disabled()
                page.tab.keyboard.type("approve")
                approve.click()
            page.until("document.querySelector('.action-dialog') === null")
            page.until("document.querySelector('#requests').children.length === 0")
            assert own.read() == own.unsaved
            done = agent.call("restore", plan=plan)
            if says == "refuse":
                assert done["error"]["code"] == "denied" and own.read() == own.unsaved
            else:
                assert done["status"] == "restored" and own.read() == own.first
    finally:
        agent.close()


def test_what_was_not_shown_is_not_approved(browser, own):
    agent = Agent(own)
    try:
        plan = agent.call("restore_plan", to="v1")["plan"]
        agent.call("restore", plan=plan)
        with opened(browser, own) as page:
            for body in [{"answer": "approved", "check": "0" * 64}, {"answer": "approved"}, {"answer": "yes", "check": ""}]:
                assert ask(page, f"approvals/{plan}", body)[0] in (400, 409)
            assert ask(page, "approvals/0000000000000000", {"answer": "approved", "check": ""})[0] == 404
        assert agent.call("restore", plan=plan)["status"] == "pending"
    finally:
        agent.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everybody_can_use_the_dialogs(browser, own, width, scheme):
    with opened(browser, own, width=width, scheme=scheme) as page:
        page.tab.evaluate(AXE.read_text())
        page.press("j")
        page.tab.wait_for_selector("aside h2:has-text('first')")
        for key in ["", "r", "f", "t", "p"]:
            if key:
                page.press(key)
                page.tab.wait_for_selector(".action-dialog input")
            found = page.tab.evaluate("axe.run()")["violations"]
            assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == [], key
            overflow = page.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{key} is wider than the window"
            if key:
                page.press("Escape")
                page.until("document.querySelector('.action-dialog') === null")


def test_a_mount_is_restored_and_forked(browser, tmp_path):
    if not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None and os.geteuid() != 0:
        pytest.skip("no /dev/fuse")
    made = Volume(tmp_path)
    made.write("notes.txt", "one\n")
    first = made.snapshot("first")
    mount, fork = tmp_path / "mount", tmp_path / "forked"
    mount.mkdir()
    made.run("fork", "live", "--mount", str(mount))
    plain = made.data
    made.data = mount
    try:
        made.write("notes.txt", "two\n")
        made.write("draft", "a draft\n")
        with opened(browser, made) as page:
            page.tab.select_option("#worktree", "live")
            choose(page, "first")
            page.press("r")
            until_says(page, "replaces 1, deletes 1")
            assert "2 paths have content that no snapshot has" in dialog(page)
            page.tab.keyboard.type("restore")
            page.press("Enter")
            until_says(page, "Restored")
            assert (mount / "notes.txt").read_text() == "one\n" and not (mount / "draft").exists()
            page.press("Enter")
            fork.mkdir()
            choose(page, "first")
            page.press("f")
            page.tab.keyboard.type("forked")
            page.press("Enter")
            until_says(page, "as a mount")
            page.tab.click(".action-dialog button:has-text('Make the fork')")
            until_says(page, "is in")
            assert (fork / "notes.txt").read_text() == "one\n"
    finally:
        made.data = plain
        for place in [fork, mount]:
            if os.path.ismount(place):
                made.run("umount", str(place))


@pytest.fixture
def tree(tmp_path):
    """A snapshot, after which nearly everything was changed: what is not selected must stay so."""
    made = Volume(tmp_path)
    for name in ["a", "b", "c", "dir/d", "dir/e", "deep/er/f"]:
        made.write(name, f"{name} before\n")
    for number in range(700):
        made.write(f"many/{number:03}", "before")
    made.ids = [made.snapshot("before")]
    made.first = made.read()
    for name in ["a", "b", "c", "dir/d", "deep/er/f"]:
        made.write(name, f"{name} after\n")
    (made.data / "dir/e").unlink()
    made.write("dir/new", "new\n")
    made.write("many/650", "after")
    made.after = made.read()
    return made


def select(page, name):
    page.tab.locator(f".files .row:has(a[title='{name}']) input").check()


def test_a_selection_is_restored_and_nothing_else(browser, tree):
    with opened(browser, tree) as page:
        page.go(f"#/files?at={tree.ids[0]}")
        select(page, "a")
        select(page, "dir")
        select(page, "b")
        page.tab.locator(".files .row:has(a[title='b']) input").uncheck()
        assert "2 selected" in page.text()
        page.tab.click("button:has-text('Restore selected…')")
        until_says(page, "creates 1, replaces 2, deletes 1")
        assert "Restore 2 paths from" in dialog(page) and "The worktree stays on its current snapshot" in dialog(page)
        assert was_run(page) == [] and tree.read() == tree.after
        page.tab.keyboard.type("restore")
        page.tab.click(".action-dialog button.first")
        until_says(page, "Restored: 3 files written, 1 deleted")
        expected = {**tree.after, **{name: tree.first[name] for name in ["a", "dir/d", "dir/e"]}}
        del expected["dir/new"]
        assert tree.read() == expected
        page.press("Enter")
        page.until("document.querySelector('[aria-label=Selected]').hidden")


def test_a_selection_is_made_by_keys_over_several_directories(browser, tree):
    with opened(browser, tree) as page:
        page.go(f"#/files?at={tree.ids[0]}")
        page.press("End")
        # The last one in the order of names is 'many'.
        for name in ["dir", "deep", "c"]:
            page.press("k")
            assert page.tab.locator(".row[aria-selected=true] a").get_attribute("title") == name
        page.press("x")
        assert page.tab.locator(".row[aria-selected=true] input").is_checked()
        page.press("x")
        assert not page.tab.locator(".row[aria-selected=true] input").is_checked()
        assert not page.tab.locator("[aria-label=Selected]").is_visible()
        page.press("x")
        page.go(f"#/files?at={tree.ids[0]}&path=many")
        page.press("End")
        page.until("document.querySelector('.row[aria-selected=true] a')?.title === '499'")
        page.press("End")
        page.until("document.querySelector('.row[aria-selected=true] a')?.title === '699'")
        for _ in range(49):
            page.tab.keyboard.press("k")
        page.press("x")
        assert "2 selected" in page.text()
        page.press("r")
        until_says(page, "replaces 2")
        assert "many/650" in dialog(page)
        page.tab.keyboard.type("restore")
        page.press("Enter")
        until_says(page, "Restored: 2 files written")
        assert tree.read() == {**tree.after, "c": tree.first["c"], "many/650": b"before"}


def test_a_selection_is_of_one_snapshot(browser, tree):
    tree.ids.append(tree.snapshot("after"))
    with opened(browser, tree) as page:
        page.go(f"#/files?at={tree.ids[0]}")
        select(page, "a")
        page.go(f"#/files?at={tree.ids[1]}")
        assert not page.tab.locator("[aria-label=Selected]").is_visible()
        select(page, "b")
        page.tab.click("button:has-text('Select none')")
        assert not page.tab.locator("[aria-label=Selected]").is_visible()
        assert page.tab.locator(".files .row input:checked").count() == 0
        # Without a selection, what is shown is meant.
        page.press("r")
        until_says(page, "Restore everything from “after”")


def test_hostile_names_are_selected_and_restored(browser, tmp_path):
    made = Volume(tmp_path)
    names = [f"hostile/{name}" for name in HOSTILE]
    for name in names:
        made.write(name, name)
    (made.data / "hostile").joinpath(os.fsdecode(b"not\xfftext")).write_bytes(b"bytes in a name")
    snapshot = made.snapshot("hostile")
    before = made.read()
    for path in (made.data / "hostile").iterdir():
        path.write_bytes(b"changed")
    with opened(browser, made) as page:
        page.go(f"#/files?at={snapshot}&path=hostile")
        for box in page.tab.locator(".files .row:visible input").all():
            box.check()
        assert f"{len(names) + 1} selected" in page.text()
        page.press("r")
        until_says(page, f"replaces {len(names) + 1}")
        page.tab.keyboard.type("restore")
        page.press("Enter")
        until_says(page, "Restored")
        assert made.read() == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_everybody_can_select(browser, tree, width, scheme):
    with serve(tree) as address:
        page = Page(browser, address, width=width, scheme=scheme)
        page.go(f"#/files?at={tree.ids[0]}")
        page.press("x", "j", "x")
        page.tab.evaluate(AXE.read_text())
        found = page.tab.evaluate("axe.run()")["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
        assert page.tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.context.close()
        assert page.errors == []


def test_a_page_that_only_shows_selects_nothing(browser, tree):
    with opened(browser, tree, "--read-only") as page:
        page.go(f"#/files?at={tree.ids[0]}")
        page.press("j", "x")
        assert page.tab.locator(".row input").count() == 0
        assert not page.tab.locator("[aria-label=Selected]").is_visible()
