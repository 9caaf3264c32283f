"""Errors are those of the standard library, too."""

from __future__ import annotations

import errno

import pytest
import vellum
from vellum.errors import make_error


def test_errors_belong_to_both_families(work):
    with pytest.raises(FileNotFoundError) as missing:
        work.read_bytes("nothing")
    assert isinstance(missing.value, vellum.NotFound) and isinstance(missing.value, vellum.Error)
    assert missing.value.errno == errno.ENOENT and missing.value.kind == "not_found"
    assert "nothing" in str(missing.value)
    work.write_bytes("f", b"")
    with pytest.raises(NotADirectoryError) as wrong:
        work.read_bytes("f/x")
    assert isinstance(wrong.value, vellum.Error) and wrong.value.errno == errno.ENOTDIR
    with pytest.raises(FileExistsError):
        work.mkdir("f")
    work.mkdir("d/e", parents=True)
    with pytest.raises(OSError) as full:
        work.remove("d")
    assert full.value.errno == errno.ENOTEMPTY


@pytest.mark.parametrize(
    "kind",
    ["not_found", "conflict", "corrupt", "denied", "no_space", "unsupported", "usage", "interrupted", "io"],
)
def test_every_kind_has_a_class(kind):
    made = make_error(kind, None, "why")
    assert made.kind == kind and str(made) == "why" and type(made) is not vellum.Error


def test_a_damaged_store_is_reported_as_such(tmp_path):
    with vellum.create(tmp_path / "v", plain=True) as volume, volume.create_worktree("w") as work:
        work.write_bytes("f", b"x" * 100_000)
        work.snapshot("one", tags=["one"])
    for pack in (tmp_path / "v/.vellum/store/packs").rglob("*"):
        if pack.is_file():
            content = bytearray(pack.read_bytes())
            for position in range(16, len(content)):
                content[position] ^= 1
            pack.chmod(0o600)
            pack.write_bytes(content)
    with vellum.open(tmp_path / "v") as volume, pytest.raises(vellum.Error) as damage:
        volume.snapshot("one").read_bytes("f")
    assert damage.value.kind == "corrupt"
