"""What must not be possible without a person."""

import asyncio
import json
import re
import subprocess
import time

import pytest
from conftest import READING, VELLUM, connect, run


def code_of(message):
    return re.search(r"Type (\d{6})", message).group(1)


async def plan_restore(agent, **arguments):
    return (await agent.call("restore_plan", to="v1", **arguments))["plan"]


def test_a_person_approves_on_a_terminal(volume):
    volume.write("unsaved", "nobody has it")

    async def use():
        async with connect(volume) as agent:
            plan = await agent.call("restore_plan", to="v1")
            assert {step["action"]: step["path"] for step in plan["steps"]} == {"replace": "notes.txt", "delete": "unsaved"}
            asked = await agent.call("restore", plan=plan["plan"])
            assert asked["status"] == "pending"
            # Asking again changes nothing.
            assert (await agent.call("restore", plan=plan["plan"]))["status"] == "pending"
            assert volume.read("notes.txt") == "one\n2\n"
            waiting = volume.json("approve")["requests"]
            assert [(row["id"], row["client"], row["steps"]) for row in waiting] == [(plan["plan"], "testagent", 2)]
            shown = volume.approve(asked["command"])
            assert "testagent wants to restore" in shown and "delete" in shown and "Approved" in shown
            done = await agent.call("restore", plan=plan["plan"])
            assert done["status"] == "restored" and volume.read("notes.txt") == "one\ntwo\n"
            # Once.
            assert (await agent.fail("restore", plan=plan["plan"]))["code"] == "not_found"
            assert volume.json("approve")["requests"] == []
            # Nothing was lost.
            assert volume.run("cat", done["safety"], "unsaved") == "nobody has it"

    run(use())


def test_a_person_refuses(volume):
    async def use():
        async with connect(volume) as agent:
            plan = await plan_restore(agent)
            asked = await agent.call("restore", plan=plan)
            assert "Refused" in volume.approve(asked["command"], "yes")
            assert (await agent.fail("restore", plan=plan))["code"] == "denied"
            assert (await agent.fail("restore", plan=plan))["code"] == "not_found"
            assert volume.read("notes.txt") == "one\n2\n"

    run(use())


def test_an_approval_is_of_what_was_shown(volume):
    async def use():
        async with connect(volume) as agent:
            plan = await plan_restore(agent)
            asked = await agent.call("restore", plan=plan)
            # An agent makes the request look harmless.
            request = volume.data / ".vellum/approvals" / f"{plan}.json"
            changed = json.loads(request.read_text())
            changed["steps"], changed["step_count"] = [], 0
            request.write_text(json.dumps(changed))
            assert "0 paths" in volume.approve(asked["command"])
            assert (await agent.call("restore", plan=plan))["status"] == "pending"
            assert volume.read("notes.txt") == "one\n2\n"

    run(use())


def test_what_changed_since_is_not_restored(volume):
    async def use():
        async with connect(volume) as agent:
            plan = await plan_restore(agent)
            asked = await agent.call("restore", plan=plan)
            volume.approve(asked["command"])
            volume.write("notes.txt", "edited by the person meanwhile")
            assert (await agent.fail("restore", plan=plan))["code"] == "conflict"
            assert volume.read("notes.txt") == "edited by the person meanwhile"

    run(use())


def test_an_approval_needs_a_terminal(volume):
    async def use():
        async with connect(volume) as agent:
            plan = await plan_restore(agent)
            await agent.call("restore", plan=plan)
            piped = subprocess.run(
                [VELLUM, "approve", plan], cwd=volume.data, env=volume.environment, input="000000\n", capture_output=True, text=True
            )
            assert piped.returncode == 3 and "person at a terminal" in piped.stderr
            assert (await agent.call("restore", plan=plan))["status"] == "pending"

    run(use())


@pytest.mark.parametrize("how", ["at once", "declined", "wrong code", "confirmed", "cancelled"])
def test_a_client_without_a_person_approves_nothing(volume, how):
    async def form(message):
        if how != "at once":
            await asyncio.sleep(READING)
        return {
            "at once": ("accept", {"code": code_of(message)}),
            "declined": ("decline", None),
            "wrong code": ("accept", {"code": "000000" if code_of(message) != "000000" else "1"}),
            "confirmed": ("accept", {"confirm": True, "code": ""}),
            "cancelled": ("cancel", None),
        }[how]

    async def use():
        async with connect(volume, form=form) as agent:
            plan = await plan_restore(agent)
            answer = await agent.call("restore", plan=plan)
            assert answer["status"] == "pending" and volume.read("notes.txt") == "one\n2\n"
            # The other way is open still.
            volume.approve(answer["command"])
            assert (await agent.call("restore", plan=plan))["status"] == "restored"

    run(use())


def test_a_person_approves_in_the_client(volume):
    seen = []

    async def form(message):
        seen.append(message)
        await asyncio.sleep(READING)
        return "accept", {"code": code_of(message)}

    async def use():
        async with connect(volume, form=form) as agent:
            plan = await agent.call("restore_plan", to="v1")
            done = await agent.call("restore", plan=plan["plan"])
            assert done["status"] == "restored" and volume.read("notes.txt") == "one\ntwo\n"
            assert "replace notes.txt" in seen[0]
            # The code stood in no answer.
            assert code_of(seen[0]) not in json.dumps([plan, done])

    run(use())


def test_nobody_guesses_the_code(volume):
    forms = []

    async def form(message):
        forms.append(message)
        await asyncio.sleep(READING)
        return "accept", {"code": "no"}

    async def use():
        async with connect(volume, form=form) as agent:
            plan = await plan_restore(agent)
            for _ in range(5):
                assert (await agent.call("restore", plan=plan))["status"] == "pending"
            assert len(forms) == 3

    run(use())


def test_a_person_has_allowed_it_beforehand(volume):
    async def use():
        async with connect(volume, "--allow", "restore") as agent:
            done = await agent.call("restore", plan=await plan_restore(agent))
            assert done["status"] == "restored" and volume.read("notes.txt") == "one\ntwo\n"
            # Two calls of one plan: one restores.
            plan = (await agent.call("restore_plan", to=volume.second))["plan"]
            both = await asyncio.gather(*(agent.session.call_tool("restore", {"plan": plan}) for _ in range(2)))
            assert sorted(answer.isError for answer in both) == [False, True]

    run(use())


BAD_CALLS = [
    ("restore", {"plan": "5f2e000000000000"}),
    ("restore", {"plan": "../../x"}),
    ("restore_plan", {"to": "v1", "paths": ["../outside"]}),
    ("restore_plan", {"to": "v1", "paths": ["/etc/passwd"]}),
    ("restore_plan", {"to": "v1", "paths": [".vellum"]}),
    ("restore_plan", {"to": "--discard"}),
    ("restore_plan", {"to": "v1", "paths": ["--discard"]}),
    ("restore_plan", {"to": "v1", "discard": True}),
    ("restore", {"plan": "1", "confirm": True}),
    ("read", {"path": "../outside"}),
    ("read", {"path": "/etc/passwd"}),
    ("read", {"path": "leads-out"}),
    ("read", {"path": "directory-out/passwd"}),
    ("read", {"path": "src"}),
    ("read", {"path": "a" * 5000}),
    ("read", {"path": "notes.txt", "snapshot": "--help"}),
    ("read", {"path": "notes.txt", "snapshot": "no such"}),
    ("list", {"path": "directory-out"}),
    ("list", {"path": "notes.txt"}),
    ("diff", {"from": "--all"}),
    ("diff", {"from": "v1", "path": "--patch"}),
    ("history", {"grep": ""}),
    ("fork", {"name": "../outside"}),
    ("fork", {"name": "-x"}),
    ("fork", {"name": "main"}),
    ("snapshot", {"note": "x" * 501}),
    ("snapshot", {"turn": "a b"}),
    ("snapshot", {"tags": ["v2"]}),
    ("find", {"pattern": ""}),
    ("status", {"all": True}),
    ("versions", {"path": "no/such"}),
]


def test_bad_calls_change_nothing(volume):
    (volume.base / "outside").write_text("secret")
    (volume.data / "leads-out").symlink_to("../outside")
    (volume.data / "directory-out").symlink_to("/etc")
    volume.run("snapshot", "--quiet")
    before = volume.json("operations")["operations"][0]["number"]

    async def use():
        async with connect(volume) as agent:
            for tool, arguments in BAD_CALLS:
                answer = await agent.session.call_tool(tool, arguments)
                said = json.dumps(answer.structuredContent)
                if (tool, arguments) == ("versions", {"path": "no/such"}):
                    assert answer.isError or answer.structuredContent["versions"] == []
                    continue
                assert answer.isError and "root:" not in said and "secret" not in said, (tool, arguments, said)
            with pytest.raises(Exception, match="no such tool"):
                await agent.session.call_tool("gc", {})
            assert (await agent.call("status"))["clean"]

    run(use())
    assert volume.json("operations")["operations"][0]["number"] == before
    assert not (volume.base / "data.forks").exists() or not list((volume.base / "data.forks").iterdir())


def test_names_are_options_nowhere(volume):
    volume.write("--discard", "a name")
    note = "--tag=v9\n--help"

    async def use():
        async with connect(volume) as agent:
            made = await agent.call("snapshot", note=note)
            assert made["snapshot"]["note"] == note and made["snapshot"]["tags"] == []
            assert (await agent.call("read", path="--discard"))["text"] == "a name"
            volume.write("--discard", "another")
            plan = await agent.call("restore_plan", to="HEAD", paths=["--discard"])
            assert plan["steps"] == [{"action": "replace", "path": "--discard"}] and plan["unsaved"] == 1
            assert [row["path"] for row in (await agent.call("diff", path="--discard"))["changes"]] == ["--discard"]

    run(use())


def speak(volume, lines, seconds=20):
    """Speaks to the server by hand. Returns what it says."""
    started = subprocess.Popen(
        [VELLUM, "mcp"], cwd=volume.data, env=volume.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = started.communicate(b"".join(lines), timeout=seconds)
    return [json.loads(line) for line in output.splitlines()], errors.decode(), started.returncode


def line(number, method, **params):
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


HELLO = [
    line(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "by hand", "version": "1"}),
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
]


def test_hostile_lines(volume):
    hostile = [
        b"not JSON\n",
        b'{"jsonrpc":"2.0","method":"notifications/nothing"}\n' * 500,
        b'{"jsonrpc":"2.0","id":2,"method":"no/such","params":{}}\n',
        b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"read","arguments":"text"}}\n',
        b'"' + b"x" * (10 << 20) + b'"\n',
        line(4, "tools/list"),
        b'{"jsonrpc":"2.0","id":5,"meth',
    ]
    answers, _, code = speak(volume, HELLO + hostile)
    assert code == 0
    by_id = {answer.get("id"): answer for answer in answers}
    # Standard output has answers alone, and the connection lives to the last whole line.
    assert by_id[1]["result"]["serverInfo"]["name"] == "vellum" and "error" in by_id[2] and len(by_id[4]["result"]["tools"]) == 11


def test_older_and_newer_protocols(volume):
    for asked in ["2024-11-05", "2025-06-18", "2099-01-01"]:
        hello = line(1, "initialize", protocolVersion=asked, capabilities={}, clientInfo={"name": "x", "version": "1"})
        answers, errors, _ = speak(volume, [hello])
        assert answers[0]["result"]["protocolVersion"] in (asked, "2025-11-25"), (answers, errors)


def test_the_server_answers_soon(volume):
    """Not a limit: that a client does not wait for seconds when it starts."""
    begin = time.monotonic()
    speak(volume, HELLO)
    assert time.monotonic() - begin < 10
