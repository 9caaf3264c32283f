"""Volumes, snapshots, history, comparison, forks."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import vellum


def snapshots_of_notes(work: vellum.Worktree) -> list[str]:
    """Three snapshots of a file and of another one beside it."""
    made = []
    for number in range(3):
        (work / "album").mkdir(exist_ok=True)
        if number != 1:
            (work / "album" / "notes.txt").write_text("x" * (number + 1))
        (work / f"other{number}").write_bytes(b"o")
        made.append(work.snapshot(f"number {number}", tags=[f"t{number}"]).id)
    work.flush()
    return made


def test_the_history_is_newest_first_and_complete(volume, work):
    made = snapshots_of_notes(work)
    rows = list(volume.history())
    assert [row.id for row in rows] == made[::-1]
    newest = rows[0]
    assert newest.note == "number 2" and newest.tags == ("t2",) and newest.worktree == "work"
    assert newest.heads == ("work",) and newest.parents == (made[1],) and newest.origin == "user"
    assert abs(newest.time - datetime.now(timezone.utc)) < timedelta(minutes=10)
    assert newest.files == 4
    assert [row.id for row in volume.history(limit=2)] == made[:0:-1]
    assert [row.id for row in volume.history(tag="t1")] == [made[1]]
    assert [row.id for row in volume.history(grep="BER 0")] == [made[0]]
    assert [row.id for row in volume.history(path="album/notes.txt")] == [made[2], made[0]]
    assert [row.id for row in volume.history(worktree="main")] == []


def test_pages_of_the_history_follow_each_other(volume, work, monkeypatch):
    made = snapshots_of_notes(work)
    monkeypatch.setattr("vellum.volumes.PAGE", 1)
    assert [row.id for row in volume.history()] == made[::-1]
    assert [row.id for row in volume.history(limit=2)] == made[:0:-1]


def test_a_snapshot_is_found_by_every_name(volume, work):
    made = snapshots_of_notes(work)
    for name in (made[2], made[2][:10], "t2", "work"):
        assert volume.snapshot(name).id == made[2]
    assert volume.snapshot().id == made[2] and volume.resolve("t2~1") == made[1]
    assert volume.describe("t0").note == "number 0"
    # What is returned can be given back.
    assert volume.snapshot(volume.describe("t0")).id == volume.snapshot(volume.snapshot("t0")).id == made[0]
    with pytest.raises(vellum.NotFound):
        volume.snapshot("nothing")


def test_differences_have_kinds_and_sizes(volume, work):
    (work / "a").write_bytes(b"1")
    (work / "gone").write_bytes(b"1")
    (work / "old").write_bytes(os.urandom(100))
    first = work.snapshot("first")
    (work / "a").write_bytes(b"22")
    (work / "gone").unlink()
    (work / "old").rename("new")
    (work / "added").write_bytes(b"")
    second = work.snapshot("second")
    work.flush()
    changes = {change.path: change for change in volume.compare(first, second) if change.path}
    assert {path: change.change for path, change in changes.items()} == {
        "a": "modified",
        "added": "added",
        "gone": "deleted",
        "new": "renamed",
    }
    assert (changes["a"].old_size, changes["a"].size) == (1, 2) and "content" in changes["a"].aspects
    assert changes["new"].old_path == "old"
    assert [change.path for change in volume.compare(first, second, path="a")] == ["a"]


def test_versions_of_a_path_are_its_contents(volume, work):
    made = snapshots_of_notes(work)
    newest, oldest = volume.versions("album/notes.txt")
    assert (newest.first, newest.snapshots, newest.size) == (made[2], 1, 3)
    assert (oldest.first, oldest.last, oldest.snapshots, oldest.size) == (made[0], made[1], 2, 1)
    assert newest.content != oldest.content == volume.content_id("album/notes.txt", snapshot="t0")
    assert len(volume.versions("album/notes.txt", limit=1)) == 1


def test_a_fork_stays_unless_its_block_fails(volume, work):
    (work / "a").write_text("first")
    work.snapshot("start", tags=["start"])
    work.flush()
    with volume.fork("start", name="kept") as fork:
        (fork / "a").write_text("second")
        result = fork.snapshot("result", tags=["run-17"])
    assert (result / "a").read_text() == "second"
    with pytest.raises(RuntimeError, match="stop"), volume.fork("start", name="failed") as fork:
        fork.write_bytes("b", b"b")
        raise RuntimeError("stop")
    with pytest.raises(RuntimeError), volume.fork("start", name="failed-kept", keep=True):
        raise RuntimeError
    with volume.fork("start", keep=False) as fork:
        fork.write_bytes("b", b"b")
        scratch, lost = fork.name, fork.snapshot("of no use")
    assert lost.closed
    assert sorted(volume.worktrees()) == ["failed-kept", "kept", "main", "work"] and scratch.startswith("fork-")
    assert (volume.snapshot("run-17") / "a").read_text() == "second"
    assert (volume.snapshot("start") / "a").read_text() == "first"


def test_a_restore_keeps_what_no_snapshot_has(work):
    (work / "a").write_text("first")
    work.snapshot("one", tags=["one"])
    assert not work.is_changed
    (work / "a").write_text("second")
    assert work.is_changed
    safety = work.restore("one")
    assert (work / "a").read_text() == "first" and safety is not None
    assert work.restore(safety) is None
    assert (work / "a").read_text() == "second"
    (work / "a").write_text("third")
    assert work.restore("one", discard=True) is None


def test_a_worktree_is_open_once(volume, work, tmp_path):
    with pytest.raises(vellum.Conflict):
        volume.worktree("work")
    work.write_bytes("a", b"a")
    work.close()
    with volume.worktree("work") as again:
        assert again.read_bytes("a") == b"a"
    with pytest.raises(vellum.NotFound):
        volume.worktree("nothing")
    with pytest.raises(vellum.Conflict, match="exists"):
        volume.create_worktree("work")


def test_what_nothing_needs_is_deleted(volume, work):
    (work / "a").write_bytes(os.urandom(100_000))
    first = work.snapshot("first")
    (work / "a").unlink()
    work.snapshot("second")
    work.flush()
    volume.tag("mark", first)
    with pytest.raises(vellum.Error):
        volume.forget(first)
    assert volume.describe(first).tags == ("mark",)
    assert volume.collect_garbage() >= 0


def test_a_volume_is_opened_from_below_and_closed(tmp_path):
    with vellum.create(tmp_path / "v", plain=True) as made:
        assert made.recovery_code is None
        work = made.create_worktree("w")
        file = (work / "a").open("wb")
    for use in (lambda: made.worktrees(), lambda: work.list_dir(), lambda: file.write(b"x")):
        with pytest.raises(ValueError):
            use()
    below = tmp_path / "v" / "below"
    below.mkdir()
    with vellum.open(below) as again:
        assert again.id == made.id
    with pytest.raises(vellum.NotFound):
        vellum.open(tmp_path)


def test_an_encrypted_volume_tells_its_recovery_code_once(tmp_path):
    with vellum.create(tmp_path / "v") as made:
        assert len(made.recovery_code or "") > 20
    with vellum.open(tmp_path / "v") as again:
        assert again.recovery_code is None


def test_a_volume_can_have_its_store_elsewhere(tmp_path: Path):
    with vellum.create(tmp_path / "v", store=str(tmp_path / "store")) as made, made.create_worktree("w") as work:
        work.write_bytes("a", b"1")
        work.snapshot("one")
    assert (tmp_path / "store").is_dir()
