"""Paths: what pathlib has, in a tree."""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath

import pytest
import vellum


@pytest.fixture
def tree(work):
    (work / "a" / "b").mkdir(parents=True)
    (work / "a" / "b" / "one.txt").write_text("one")
    (work / "a" / "two.txt").write_text("two")
    (work / "three.bin").write_bytes(b"\0\1")
    (work / "link").symlink_to("a/two.txt")
    (work / "dangling").symlink_to("nowhere")
    return work


def names(paths):
    return sorted(str(path) for path in paths)


def test_parts_are_those_of_a_path(tree):
    path = tree / "a" / "b" / "one.txt"
    assert (path.name, path.stem, path.suffix, path.parts) == ("one.txt", "one", ".txt", ("a", "b", "one.txt"))
    assert str(path.parent) == "a/b" and str(tree.root) == "" and tree.root.parent == tree.root
    assert path.with_name("x") == tree / "a/b/x" and path.with_suffix(".md") == tree / "a/b/one.md"
    assert path.relative_to(tree / "a") == PurePosixPath("b/one.txt")
    assert tree / "/a" == tree.root.joinpath("a") and hash(tree / "a") == hash(tree / "a")
    assert tree / "a" < tree / "b"
    with pytest.raises(TypeError):
        os.fspath(path)


def test_kinds_are_told_apart(tree):
    assert (tree / "a").is_dir() and not (tree / "a").is_file()
    assert (tree / "link").is_symlink() and (tree / "link").is_file() and (tree / "link").readlink() == "a/two.txt"
    assert (tree / "dangling").is_symlink() and not (tree / "dangling").exists()
    assert not (tree / "nothing").exists() and not (tree / "three.bin" / "x").is_dir()
    assert stat.S_ISLNK((tree / "link").lstat().st_mode) and (tree / "link").stat().st_size == 3


def test_directories_are_listed_walked_and_searched(tree):
    assert [path.name for path in tree.root.iterdir()] == ["a", "dangling", "link", "three.bin"]
    assert [(str(top), dirs, files) for top, dirs, files in tree.root.walk()] == [
        ("", ["a"], ["dangling", "link", "three.bin"]),
        ("a", ["b"], ["two.txt"]),
        ("a/b", [], ["one.txt"]),
    ]
    assert names(tree.root.glob("*.bin")) == ["three.bin"]
    assert names(tree.root.glob("a/*.txt")) == ["a/two.txt"]
    assert names(tree.root.glob("**/*.txt")) == names(tree.root.rglob("*.txt")) == ["a/b/one.txt", "a/two.txt"]
    assert names((tree / "a").glob("b/one.???")) == ["a/b/one.txt"]
    assert names(tree.root.glob("nothing/*")) == names((tree / "three.bin").glob("*")) == []
    with pytest.raises(ValueError):
        list(tree.root.glob("/a"))


def test_entries_of_a_walk_have_attributes(tree):
    found = {entry.path: entry for entry in tree.find()}
    assert sorted(found) == ["", "a", "a/b", "a/b/one.txt", "a/two.txt", "dangling", "link", "three.bin"]
    assert found["a/two.txt"].kind == "file" and found["a/two.txt"].stat.st_size == 3
    assert found["a"].kind == "directory" and found["link"].kind == "symlink"


def test_many_entries_arrive_in_batches(work):
    for number in range(2500):
        work.write_bytes(f"f{number:04}", b"")
    assert sum(1 for _ in work.find()) == 2501


def test_changes_are_made_by_path(tree):
    (tree / "new").mkdir()
    (tree / "new").mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        (tree / "new").mkdir()
    (tree / "new" / "x").touch()
    (tree / "new" / "x").touch()
    moved = (tree / "new" / "x").rename("new/y")
    assert moved.exists() and moved == tree / "new/y"
    (tree / "hard").hardlink_to("three.bin")
    assert (tree / "hard").stat().st_nlink == 2
    moved.chmod(0o640)
    assert stat.S_IMODE(moved.stat().st_mode) == 0o640
    with pytest.raises(OSError):
        (tree / "new").rmdir()
    moved.unlink()
    moved.unlink(missing_ok=True)
    with pytest.raises(vellum.NotFound):
        moved.unlink()
    with pytest.raises(IsADirectoryError):
        (tree / "new").unlink()
    with pytest.raises(NotADirectoryError):
        (tree / "hard").rmdir()
    (tree / "new").rmdir()
    tree.remove("a", recursive=True)
    assert not (tree / "a").exists()
    tree.copy("three.bin", "four.bin")
    assert tree.read_bytes("four.bin") == b"\0\1"


def test_attributes_are_those_of_os_stat(tree):
    tree.set_times("three.bin", accessed_ns=1_500_000_000_000_000_001, modified_ns=-5_000_000_001)
    found = tree.stat("three.bin")
    assert isinstance(found, os.stat_result)
    assert found.st_mtime_ns == -5_000_000_001 and found.st_atime_ns == 1_500_000_000_000_000_001
    assert found.st_mtime == pytest.approx(-5.000000001) and found.st_uid == os.geteuid()
    tree.set_xattr("three.bin", "user.origin", b"here")
    assert tree.xattrs("three.bin") == {"user.origin": b"here"}


def test_names_that_are_no_text_are_kept(work):
    raw = b"caf\xe9"
    work.write_bytes(raw, b"1")
    (entry,) = work.list_dir()
    assert os.fsencode(entry.path) == raw
    assert work.read_bytes(entry.path) == work.read_bytes(raw) == (work / raw).read_bytes() == b"1"
    first = work.snapshot("one")
    work.write_bytes(raw, b"22")
    second = work.snapshot("two")
    work.flush()
    assert [os.fsencode(change.path) for change in work._volume.compare(first, second)] == [raw]


def test_no_path_leads_out(tree):
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "up").symlink_to("../../../../etc/passwd")
    for path in ("out", "up", "../../etc/passwd", "/etc/passwd"):
        with pytest.raises(vellum.Error):
            tree.read_bytes(path)


def test_snapshots_cannot_be_changed(work):
    (work / "a").write_text("a")
    snapshot = work.snapshot("one")
    changes = (
        lambda: (snapshot / "a").write_bytes(b"x"),
        lambda: (snapshot / "a").unlink(),
        lambda: (snapshot / "b").mkdir(),
        lambda: (snapshot / "a").open("r+"),
        lambda: (snapshot / "a").rename("b"),
    )
    for change in changes:
        with pytest.raises(OSError) as failure:
            change()
        assert isinstance(failure.value, vellum.ReadOnly)
    assert (snapshot / "a").read_text() == "a"
