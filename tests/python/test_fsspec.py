"""The filesystem for fsspec."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import datetime, timezone
from urllib.parse import quote

import pytest

fsspec = pytest.importorskip("fsspec")

import vellum  # noqa: E402
from vellum.fsspec_filesystem import VellumFileSystem  # noqa: E402


@pytest.fixture
def place(tmp_path):
    """A volume with two snapshots of the worktree w, closed."""
    directory = tmp_path / "photos"
    with vellum.create(directory) as volume, volume.create_worktree("w") as work:
        (work / "data" / "deep").mkdir(parents=True)
        work.write_bytes("data/x", b"0123456789")
        work.write_bytes("data/deep/y", b"y")
        work.symlink("x", "data/link")
        work.snapshot("one", tags=["v1.0"])
        work.write_bytes("data/x", b"second")
        work.snapshot("two", tags=["v2"])
    yield directory
    VellumFileSystem.clear_instance_cache()


def test_addresses_name_volume_snapshot_and_path(place):
    for address, content in {
        f"vellum://{place}@v1.0/data/x": b"0123456789",
        f"vellum://{quote(str(place), safe='')}@v2/data/x": b"second",
        f"vellum://{place}@w/data/x": b"second",
        f"vellum://{place}@v2~1//data/./deep/../x": b"0123456789",
    }.items():
        with fsspec.open(address) as file:
            assert file.read() == content, address


@pytest.mark.parametrize(
    ("address", "volume", "snapshot", "path"),
    [
        ("vellum://Photos@v1.0/x", "Photos", "v1.0", "x"),
        ("vellum://photos@v1~3/a//b/", "photos", "v1~3", "a/b"),
        ("vellum://photos/x", "photos", None, "x"),
        ("vellum://photos@v1", "photos", "v1", ""),
        ("vellum://a%40b@c/x", "a@b", "c", "x"),
        ("vellum://a@b@c/x", "a", "b@c", "x"),
        ("vellum://photos@v1/a#b?c=d", "photos", "v1", "a#b?c=d"),
        ("vellum://photos@v1/~/@x", "photos", "v1", "~/@x"),
    ],
)
def test_addresses_are_taken_apart(address, volume, snapshot, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = VellumFileSystem._get_kwargs_from_urls(address)
    assert found == {"volume": str(tmp_path / volume), **({"snapshot": snapshot} if snapshot else {})}
    assert VellumFileSystem._strip_protocol(address) == path


def test_directories_with_an_at_sign_are_found(tmp_path):
    directory = tmp_path / "a@b"
    with vellum.create(directory) as volume, volume.create_worktree("main2") as work:
        work.write_bytes("c@d", b"1")
        work.snapshot("one", tags=["t"])
    with fsspec.open(f"vellum://{directory}@t/c@d") as file:
        assert file.read() == b"1"
    with pytest.raises(vellum.NotFound):
        fsspec.open(f"vellum://{tmp_path}/none@t/x")
    VellumFileSystem.clear_instance_cache()


def test_reading(place):
    fs = fsspec.filesystem("vellum", volume=place, snapshot="v1.0")
    assert fs.ls("", detail=False) == ["data"] and fs.ls("/data/", detail=False) == [
        "data/deep",
        "data/link",
        "data/x",
    ]
    assert fs.info("data/x")["size"] == 10 and fs.info("data")["type"] == "directory"
    assert fs.info("data/link")["islink"] and fs.info("data/link")["type"] == "file"
    assert fs.find("") == ["data/deep/y", "data/link", "data/x"]
    assert fs.find("data", maxdepth=1, withdirs=True) == ["data", "data/deep", "data/link", "data/x"]
    assert fs.glob("data/**/y") == ["data/deep/y"] and fs.du("data") == 21
    assert fs.find("nothing") == [] and not fs.exists("nothing") and fs.isdir("data") and fs.isfile("data/x")
    assert fs.cat_file("data/x", 2, 5) == b"234" and fs.cat_file("data/x", -3) == b"789"
    assert fs.cat_ranges(["data/x", "data/deep/y"], 0, [4, None]) == [b"0123", b"y"]
    assert fs.head("data/x", 3) == b"012" and fs.tail("data/x", 3) == b"789"
    assert (datetime.now(timezone.utc) - fs.modified("data/x")).total_seconds() < 600
    with pytest.raises(FileNotFoundError):
        fs.info("nothing")
    with pytest.raises(OSError):
        fs.pipe_file("data/x", b"")
    assert fs.unstrip_protocol("data/x").endswith(f"@{fs.snapshot}/data/x")
    with fsspec.open(fs.unstrip_protocol("data/x")) as file:
        assert file.read() == b"0123456789"


def test_equal_contents_have_one_key(place):
    first = fsspec.filesystem("vellum", volume=place, snapshot="v1.0")
    second = fsspec.filesystem("vellum", volume=place, snapshot="v2")
    assert first.ukey("data/deep/y") == second.ukey("data/deep/y")
    assert first.checksum("data/x") != second.checksum("data/x")


def test_files_are_copied_out(place, tmp_path):
    fs = fsspec.filesystem("vellum", volume=place, snapshot="v2")
    fs.get("data", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out/x").read_bytes() == b"second" and (tmp_path / "out/deep/y").read_bytes() == b"y"


def test_a_pickled_filesystem_reads_the_same_snapshot(place):
    fs = fsspec.filesystem("vellum", volume=place, snapshot="w")
    packed = pickle.dumps(fs)
    with vellum.open(place) as volume, volume.worktree("w") as work:
        work.write_bytes("data/x", b"third")
        work.snapshot("three")
    code = "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).cat_file('data/x'))"
    found = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True)
    assert found.stdout == b"second"


def test_a_worktree_is_written(place):
    fs = fsspec.filesystem("vellum", volume=place, worktree="w")
    with fs.open("new/dir/file", "wb") as file:
        file.write(b"1")
    with fs.open("new/dir/file", "ab") as file:
        file.write(b"2")
    fs.cp_file("new/dir/file", "copy")
    fs.mv("copy", "new")
    assert fs.cat("new/copy") == b"12" and not fs.exists("copy")
    fs.touch("new/copy")
    assert fs.cat("new/copy") == b""
    fs.rm("new", recursive=True)
    assert not fs.exists("new")
    with pytest.raises(IsADirectoryError):
        fs.rm("data")
    fs.tree.snapshot("from fsspec", tags=["made"])
    fs.close()
    with vellum.open(place) as volume:
        assert volume.describe("made").note == "from fsspec"
    with fsspec.open(f"vellum://{place}@w:live/again", "wb") as file:
        file.write(b"x")
    fsspec.filesystem("vellum", volume=str(place), worktree="w").close()


def test_one_filesystem_is_of_one_tree(place):
    with pytest.raises(vellum.Usage):
        fsspec.filesystem("vellum", volume=place, snapshot="v2", worktree="w")


def test_many_files_are_found_in_one_walk(place):
    fs = fsspec.filesystem("vellum", volume=place, worktree="w")
    for number in range(3000):
        fs.tree.write_bytes(f"f{number}", b"")
    assert len(fs.find("")) == 3003
    fs.close()


def test_names_that_are_no_text_are_listed_and_read(place):
    fs = fsspec.filesystem("vellum", volume=place, worktree="w")
    name = os.fsdecode(b"caf\xe9")
    fs.pipe_file(name, b"1")
    assert name in fs.ls("", detail=False) and fs.cat_file(name) == b"1"
    fs.close()
