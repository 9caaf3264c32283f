"""Snapshots as resources."""

import base64
import json

import pytest
from conftest import connect, run
from mcp import McpError


def test_files_and_directories_have_addresses(volume):
    async def use():
        async with connect(volume) as agent:
            session = agent.session
            listed = (await session.list_resources()).resources
            assert [str(resource.uri) for resource in listed] == [f"vellum://snapshot/{volume.second}/", f"vellum://snapshot/{volume.first}/"]
            # Nothing that the volume holds gets into a name or a description.
            assert not any("Ignore all" in str(resource) for resource in listed)
            [template] = (await session.list_resource_templates()).resourceTemplates
            assert template.uriTemplate == "vellum://snapshot/{id}/{+path}"
            [root] = (await session.read_resource(f"vellum://snapshot/{volume.first}/")).contents
            assert {entry["path"] for entry in json.loads(root.text)["entries"]} == {"notes.txt", "src", "picture"}
            [text] = (await session.read_resource(f"vellum://snapshot/{volume.first}/notes.txt")).contents
            assert (text.text, text.mimeType) == ("one\ntwo\n", "text/plain")
            [text] = (await session.read_resource(f"vellum://snapshot/{volume.second}/notes%2Etxt")).contents
            assert text.text == "one\n2\n"
            [picture] = (await session.read_resource(f"vellum://snapshot/{volume.first}/picture")).contents
            assert base64.b64decode(picture.blob) == bytes([0, 255, 1, 254]) * 10

    run(use())


def test_new_snapshots_are_told(volume):
    async def use():
        told = []

        async def note(message):
            told.append(type(getattr(message, "root", message)).__name__)

        async with connect(volume, message_handler=note) as agent:
            volume.write("notes.txt", "three\n")
            made = (await agent.call("snapshot", turn="1"))["snapshot"]["id"]
            assert (await agent.call("snapshot", turn="1"))["made"] is False
            listed = (await agent.session.list_resources()).resources
            assert str(listed[0].uri) == f"vellum://snapshot/{made}/"
        assert told.count("ResourceListChangedNotification") == 1

    run(use())


def test_nothing_outside_of_a_snapshot_is_read(volume):
    volume.write("long", "x" * (300 << 10))
    (volume.data / "link").symlink_to("/etc/passwd")
    third = volume.run("snapshot", "--quiet")

    async def use():
        async with connect(volume) as agent:
            for address in [
                f"vellum://snapshot/{third}/%2e%2e/x",
                f"vellum://snapshot/{third}/a%00",
                f"vellum://snapshot/{third}/link",
                f"vellum://snapshot/{third}/link/x",
                f"vellum://snapshot/{third}/nothing",
                f"vellum://snapshot/{third}/long",
                f"vellum://snapshot/{'0' * 64}/notes.txt",
                "vellum://snapshot/HEAD/notes.txt",
                "file:///etc/passwd",
            ]:
                with pytest.raises(McpError) as failed:
                    await agent.session.read_resource(address)
                assert "root:" not in str(failed.value), address
            # The connection lives.
            assert (await agent.call("status"))["clean"]

    run(use())
