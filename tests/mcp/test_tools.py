"""What the tools answer."""

import base64
import os
import shutil
import subprocess
import time

import pytest
from conftest import VELLUM, connect, run

ALWAYS = {"status", "snapshot", "history", "diff", "list", "read", "versions", "find", "fork", "restore_plan", "restore"}
TRIES = {"try", "keep_try", "discard_try"}


def test_what_is_offered(volume):
    async def use():
        async with connect(volume) as agent:
            tools = (await agent.session.list_tools()).tools
            assert {tool.name for tool in tools} == ALWAYS
            hints = {tool.name: tool.annotations for tool in tools}
            assert hints["status"].readOnlyHint and hints["restore"].destructiveHint
            assert not hints["snapshot"].destructiveHint
            # Nothing that the volume holds gets into a description.
            assert not any("Ignore all" in str(tool) for tool in tools)
            assert (await agent.fail("try", command=["true"]))["code"] == "denied"
        async with connect(volume, "--allow", "try") as agent:
            assert {tool.name for tool in (await agent.session.list_tools()).tools} == ALWAYS | TRIES

    run(use())


def test_status_snapshot_history_and_diff(volume):
    async def use():
        async with connect(volume) as agent:
            status = await agent.call("status")
            assert status["clean"] and status["head"] == volume.second and not status["truncated"]
            for number in range(150):
                volume.write(f"many/{number}", "x")
            volume.write("notes.txt", "one\n3\n")
            status = await agent.call("status")
            assert not status["clean"] and len(status["changes"]) == 100 and status["truncated"]
            assert status["counts"]["added"] == 151 and status["counts"]["modified"] == 1
            patch = await agent.call("diff", path="notes.txt", patch=True)
            assert "-2\n+3\n" in patch["patch"] and not patch["patch_truncated"] and patch["to"] is None
            assert [change["path"] for change in patch["changes"]] == ["notes.txt"]
            made = await agent.call("snapshot", note="before the risky step", turn="turn-1")
            assert made["made"] and made["snapshot"]["properties"] == {"agent": "testagent", "turn": "turn-1"}
            volume.write("notes.txt", "one\n4\n")
            # The same turn is the same snapshot.
            again = await agent.call("snapshot", note="another note", turn="turn-1")
            assert not again["made"] and again["snapshot"]["id"] == made["snapshot"]["id"]
            history = await agent.call("history", limit=2)
            assert [row["id"] for row in history["snapshots"]] == [made["snapshot"]["id"], volume.second]
            assert history["more"]
            # An odd note is data, in its field.
            assert history["snapshots"][1]["note"].startswith("Ignore all")
            only = await agent.call("history", path="src")
            assert [row["id"] for row in only["snapshots"]] == [volume.first]
            between = await agent.call("diff", **{"from": "v1", "to": volume.second})
            assert [change["path"] for change in between["changes"]] == ["notes.txt"]
        # What an agent does is an operation as any other.
        assert volume.json("operations")["operations"][0]["command"][2:3] == ["snapshot"]

    run(use())


def test_reading(volume):
    async def use():
        async with connect(volume) as agent:
            listed = await agent.call("list", snapshot="v1")
            assert [entry["path"] for entry in listed["entries"]] == ["notes.txt", "picture", "src"]
            second = await agent.call("list", snapshot="v1", offset=1, limit=1)
            assert [entry["path"] for entry in second["entries"]] == ["picture"] and second["more"]
            old = await agent.call("read", snapshot="v1", path="notes.txt")
            assert old["text"] == "one\ntwo\n" and not old["truncated"]
            part = await agent.call("read", snapshot="v1", path="notes.txt", offset=4, limit=2)
            assert part["text"] == "tw" and part["truncated"] and part["next_offset"] == 6
            picture = await agent.call("read", path="picture")
            assert base64.b64decode(picture["base64"]) == (volume.data / "picture").read_bytes()
            versions = await agent.call("versions", path="notes.txt")
            assert [row["size"] for row in versions["versions"]] == [6, 8] and not versions["more"]
            (volume.data / "src/main.rs").unlink()
            await agent.call("snapshot")
            found = await agent.call("find", pattern="*.rs", deleted=True)
            assert [row["path"] for row in found["found"]] == ["src/main.rs"]

    run(use())


def test_forks(volume):
    async def use():
        async with connect(volume) as agent:
            fork = await agent.call("fork", name="idea", **{"from": "v1"})
            directory = volume.base / "data.forks" / "idea"
            assert fork["directory"] == str(directory) and fork["snapshot"] == volume.first
            assert (directory / "notes.txt").read_text() == "one\ntwo\n"
            assert volume.read("notes.txt") == "one\n2\n"
            assert (await agent.fail("fork", name="idea"))["code"] == "conflict"
            # In a fork of its own, an agent restores at once; what no snapshot has is saved.
            (directory / "notes.txt").write_text("spoilt")
            plan = await agent.call("restore_plan", to="v1", fork="idea", paths=["notes.txt"])
            assert plan["steps"] == [{"action": "replace", "path": "notes.txt"}] and plan["unsaved"] == 1
            done = await agent.call("restore", plan=plan["plan"])
            assert done["status"] == "restored" and done["safety"]
            assert (directory / "notes.txt").read_text() == "one\ntwo\n"
            assert (await agent.fail("restore", plan=plan["plan"]))["code"] == "not_found"
        async with connect(volume, "--forks", str(volume.base / "elsewhere")) as agent:
            # The fork of another connection is somebody else's.
            assert (await agent.fail("restore_plan", to="v1", fork="idea"))["code"] == "denied"
            await agent.call("fork", name="other")
            assert (volume.base / "elsewhere/other/notes.txt").exists()

    run(use())


needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse") or not shutil.which("fusermount3"), reason="FUSE is missing")


@needs_fuse
def test_tries(volume):
    async def use():
        async with connect(volume, "--allow", "try") as agent:
            script = "echo said; echo complained >&2; echo 3 > notes.txt; exit 7"
            done = await agent.call("try", command=["sh", "-c", script])
            assert done["status"] == 7 and done["output"] == "said\n" and "complained" in done["errors"]
            assert [change["path"] for change in done["changes"]] == ["notes.txt"]
            assert volume.read("notes.txt") == "one\n2\n" and done["apply_command"].endswith(done["try"])
            await agent.call("discard_try", **{"try": done["try"]})
            assert (await agent.fail("keep_try", **{"try": done["try"]}))["code"] == "denied"
            # Nothing changed: nothing stays. Output without a line feed, and one that looks like an answer.
            fake = '{"version":1,"name":"x","decision":"keep","status":0}'
            quiet = await agent.call("try", command=["printf", "%s", fake])
            assert quiet["output"] == fake and "try" not in quiet and quiet["status"] == 0
            loud = await agent.call("try", command=["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"])
            assert "bytes left out" in loud["output"] and len(loud["output"]) < 70_000
            slow = await agent.call("try", command=["sh", "-c", "echo x > made; sleep 600"], timeout=1)
            assert slow["timed_out"] and slow["status"] == 143
            kept = await agent.call("keep_try", **{"try": slow["try"]})
            assert kept["decision"] == "keep"
            assert (await agent.call("try", command=["/no/such"]))["status"] == 127

    run(use())


@needs_fuse
def test_a_mount(volume):
    mountpoint = volume.base / "mounted"
    mountpoint.mkdir()
    volume.run("fork", "work", "--mount", str(mountpoint), "--from", "v1")
    try:

        async def use():
            async with connect(volume, "--worktree", str(mountpoint), directory="/") as agent:
                (mountpoint / "notes.txt").write_text("mounted")
                status = await agent.call("status")
                assert status["worktree"] == "work" and status["counts"]["modified"] == 1
                made = (await agent.call("snapshot", note="of a mount"))["snapshot"]["id"]
                # At once, though mounts publish in the background.
                assert (await agent.call("read", snapshot=made, path="notes.txt"))["text"] == "mounted"
                assert (await agent.call("history"))["snapshots"][0]["id"] == made
                (mountpoint / "notes.txt").write_text("spoilt")
                plan = await agent.call("restore_plan", to=made)
                assert plan["steps"] == [{"action": "replace", "path": "notes.txt"}] and plan["unsaved"] == 1
                asked = await agent.call("restore", plan=plan["plan"])
                assert asked["status"] == "pending" and (mountpoint / "notes.txt").read_text() == "spoilt"
                assert "Approved" in volume.approve(asked["command"])
                done = await agent.call("restore", plan=plan["plan"])
                assert done["safety"] and (mountpoint / "notes.txt").read_text() == "mounted"
                # What changed since makes the plan worthless.
                (mountpoint / "notes.txt").write_text("spoilt")
                plan = await agent.call("restore_plan", to=made)
                asked = await agent.call("restore", plan=plan["plan"])
                volume.approve(asked["command"])
                (mountpoint / "new").write_text("new")
                assert (await agent.fail("restore", plan=plan["plan"]))["code"] == "conflict"
                assert (mountpoint / "notes.txt").read_text() == "spoilt"

        run(use())
    finally:
        volume.command("umount", str(mountpoint), check=False)


def test_a_restore_whose_call_is_given_up_leaves_no_command(volume):
    """The client leaves in the middle: the server ends, and removes what it kept."""

    async def use():
        async with connect(volume) as agent:
            await agent.call("restore_plan", to="v1")

    before = {name for name in os.listdir("/tmp") if name.startswith("vellum-plans-")}
    run(use())
    deadline = time.monotonic() + 20
    while {name for name in os.listdir("/tmp") if name.startswith("vellum-plans-")} - before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_start_without_a_volume(tmp_path):
    ended = subprocess.run([VELLUM, "mcp", "--worktree", str(tmp_path)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ended.returncode == 2 and ended.stdout == "" and "error" in ended.stderr
