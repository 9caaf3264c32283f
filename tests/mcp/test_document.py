"""The examples of docs/agents.md, run as they stand there."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

from conftest import VELLUM, connect, run

DOCUMENT = (Path(__file__).parents[2] / "docs/agents.md").read_text()


def blocks(language):
    # All of them: the end of one looks like the beginning of one without a language.
    found = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.M | re.S)
    return [text for kind, text in found if kind == language]


def with_vellum(volume):
    """An environment in which the programs are found by their names."""
    return {**volume.environment, "PATH": f"{Path(VELLUM).parent}:{os.environ['PATH']}"}


def servers():
    """What each client is told to start."""
    for block in blocks("json"):
        told = json.loads(block)
        for name in ("mcpServers", "servers"):
            if name in told:
                yield told[name]["vellum"]
    yield tomllib.loads(blocks("toml")[0])["mcp_servers"]["vellum"]
    for line in re.findall(r"`(?:claude|codex) mcp add vellum -- ([^`]+)`", DOCUMENT):
        program, *words = line.split()
        yield {"command": program, "args": words}


def test_what_clients_are_told_to_start(volume):
    found = list(servers())
    assert len(found) == 5
    for server in found:
        assert server["command"] == "vellum"
        words = [word.replace("/srv/project", str(volume.data)) for word in server["args"]]
        assert words[0] == "mcp"

        async def use():
            async with connect(volume, *words[1:]) as agent:
                assert (await agent.call("status"))["clean"]

        run(use())


def hook_commands(event):
    """What a client runs at an event."""
    for block in blocks("json"):
        for entry in json.loads(block).get("hooks", {}).get(event, []):
            yield from (hook["command"] for hook in entry["hooks"] if hook["type"] == "command")


def fire(volume, event, directory=None):
    """Does what the clients do: a shell, and the event as JSON on standard input."""
    about = json.dumps({"hook_event_name": event, "session_id": "1", "cwd": str(volume.data), "prompt": "go on"})
    commands = list(hook_commands(event))
    assert len(commands) == 1
    return subprocess.run(
        ["sh", "-c", commands[0]], cwd=directory or volume.data, env=with_vellum(volume), input=about, capture_output=True, text=True
    )


def test_hooks_record_each_turn(volume):
    for event, note in [("UserPromptSubmit", "before a turn"), ("PreToolUse", "before a command")]:
        volume.write("notes.txt", event)
        done = fire(volume, event)
        # What a hook prints would be put before the model.
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        last = volume.json("history", "-n", "1")["snapshots"][0]
        assert last["note"] == note and volume.run("cat", last["id"], "notes.txt") == event
        # Nothing changed: nothing is recorded.
        assert fire(volume, event).returncode == 0
        assert volume.json("history", "-n", "1")["snapshots"][0]["id"] == last["id"]
    assert "turn" in volume.json("history", "-n", "2")["snapshots"][1]["properties"]


def test_a_hook_that_fails_stops_nothing(volume, tmp_path):
    elsewhere = tmp_path / "no volume"
    elsewhere.mkdir()
    done = fire(volume, "UserPromptSubmit", elsewhere)
    assert done.returncode == 1 and "error" in done.stderr


def test_what_the_person_types_afterwards(volume):
    volume.write("src/main.rs", "spoilt by an agent")
    fire(volume, "UserPromptSubmit")
    block = [block for block in blocks("") if block.startswith("$ vellum history")][0]
    seen = []
    for line in block.splitlines():
        words = line.removeprefix("$ ").split()[1:]
        done = volume.command(*words, check=False)
        assert done.returncode in (0, 1), (line, done.stderr)
        seen.append(volume.read("src/main.rs"))
    # Restored, and taken back.
    assert seen[2:] == ["fn main() {}\n", "spoilt by an agent"]
