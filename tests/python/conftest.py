"""Volumes to test on."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, NamedTuple

import pytest
import vellum
from s3_server import ACCESS_KEY, SECRET_KEY, S3Server


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[vellum.Volume]:
    """An empty volume."""
    with vellum.create(tmp_path / "volume") as made:
        yield made


@pytest.fixture
def work(volume: vellum.Volume) -> vellum.Worktree:
    """An empty live worktree of it."""
    return volume.create_worktree("work")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with one bucket."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of a user, who has the credentials `test` for the server."""
    for name in ("config", "cache", "state"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    folder = tmp_path / "config/vellum/credentials"
    folder.mkdir(parents=True)
    file = folder / "test"
    file.touch(mode=0o600)
    file.write_text(f"access-key-id = {ACCESS_KEY}\nsecret-access-key = {SECRET_KEY}\n")
    return tmp_path


class StoredVolume(NamedTuple):
    """A volume in the bucket of the server."""

    address: str
    code: str
    """Its recovery code."""
    first: str
    """The id of its first snapshot."""


@pytest.fixture
def stored(home: Path, s3_server: S3Server, request: pytest.FixtureRequest) -> StoredVolume:
    """A volume with the snapshots v1 and v2 of the worktree `w`, of which this machine has no directory any more."""
    address = s3_server.store(f"{request.node.name.replace('[', '-').replace(']', '')}-{home.name}")
    with vellum.create(home / "maker", store=address, credentials="test") as made:
        with made.create_worktree("w") as work:
            (work / "data" / "deep").mkdir(parents=True)
            work.write_bytes("data/x", b"0123456789")
            work.write_bytes("data/deep/y", b"y" * 100_000)
            first = work.snapshot("one", tags=["v1"]).id
            work.write_bytes("data/x", b"second")
            work.snapshot("two", tags=["v2"])
        assert made.recovery_code is not None
        return StoredVolume(address, made.recovery_code, first)
