"""Files: what open() of Python does."""

from __future__ import annotations

import io
import os
import signal
import threading
import time

import pytest
import vellum
from forks import run_in_fork


def test_a_file_is_what_the_standard_library_has(work, tmp_path):
    """The same steps on a file of this machine and on one of a worktree end the same."""
    steps = []
    for place in (tmp_path / "f", work / "f"):
        seen = []
        with place.open("w+b") as file:
            seen += [file.write(b"hello world"), file.seek(6), file.read(3), file.tell()]
            seen += [file.seek(0, os.SEEK_END), file.write(b"!"), file.seek(20), file.read()]
            seen += [file.write(b"end"), file.seek(-3, os.SEEK_CUR), file.read(), file.truncate(22)]
            seen += [file.readable(), file.writable(), file.seekable()]
        with place.open("ab") as file:
            seen += [file.tell(), file.write(b"tail")]
        with place.open("rb", buffering=0) as file:
            seen += [file.readall(), file.readinto(bytearray(3)), file.seek(-2, os.SEEK_END), file.read(10)]
        with place.open("rb") as file:
            buffer = bytearray(5)
            seen += [file.readinto(buffer), bytes(buffer), file.read1(2), file.peek(1)[:1], list(file)]
        steps.append(seen)
    assert steps[0] == steps[1]


def test_text_has_encodings_and_line_ends(work):
    path = work / "t"
    path.write_text("grün\r\nzwei\n", encoding="utf-16")
    assert path.read_text(encoding="utf-16") == "grün\nzwei\n"
    with path.open("w", encoding="latin-1", newline="") as file:
        file.write("ü\r\n")
    assert path.read_bytes() == b"\xfc\r\n"
    with path.open(encoding="latin-1") as file:
        assert file.readlines() == ["ü\n"]


@pytest.mark.parametrize("mode", ["", "rw", "rbt", "b", "q", "r++", "+"])
def test_modes_that_are_none_are_refused(work, mode):
    with pytest.raises(ValueError):
        (work / "x").open(mode)


def test_modes_allow_what_they_say(work):
    path = work / "f"
    with pytest.raises(FileNotFoundError):
        path.open()
    with path.open("xb") as file, pytest.raises(io.UnsupportedOperation):
        file.read()
    with pytest.raises(FileExistsError):
        path.open("x")
    with path.open("rb") as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"")
    with pytest.raises(ValueError):
        path.open("rb", encoding="utf-8")
    with pytest.raises(ValueError):
        path.open("r", buffering=0)
    with path.open("rb", buffering=0) as file, pytest.raises(ValueError):
        file.seek(-1)
    (work / "d").mkdir()
    with pytest.raises(IsADirectoryError):
        (work / "d").open("rb")


def test_a_large_file_is_read_whole_and_in_parts(work):
    content = os.urandom(40_000_003)
    (work / "big").write_bytes(content)
    snapshot = work.snapshot("one")
    assert (work / "big").read_bytes() == content
    assert snapshot.read_bytes("big") == content
    with snapshot.open("big", "rb", buffering=0) as file:
        assert file.read_at(39_000_000, 2_000_000) == content[39_000_000:]
        assert file.read(10) == content[:10]
        assert file.seek(1 << 60) and file.read(10) == b""
    ranges = [("big", 5, 10), ("nothing", 0, 1), ("big", 40_000_000, 100), ("big", 1 << 50, 1), ("big", 0, 0)]
    found = snapshot.read_ranges(ranges)
    assert found[0] == content[5:15] and isinstance(found[1], vellum.NotFound)
    assert found[2:] == [content[40_000_000:], b"", b""]
    assert snapshot.read_ranges([]) == []


def test_a_sparse_file_of_a_terabyte_is_no_trouble(work):
    with (work / "sparse").open("wb", buffering=0) as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 3)
        file.write(b"end")
    with (work / "sparse").open("rb") as file:
        file.seek(-6, os.SEEK_END)
        assert file.read() == b"\0\0\0end"


def test_threads_share_a_file(work):
    (work / "f").write_bytes(bytes(range(256)) * 4096)
    failures = []

    def read(number: int) -> None:
        with (work / "f").open("rb", buffering=0) as file:
            for offset in range(0, 1 << 20, 4096):
                if file.read_at(offset + number, 1)[0] != number:
                    failures.append((number, offset))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_interpreter_goes_on_while_a_file_is_read(work):
    (work / "f").write_bytes(os.urandom(60_000_000))
    snapshot = work.snapshot("one")
    turns, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            turns[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    before = turns[0]
    snapshot.read_bytes("f")
    after = turns[0]
    done.set()
    thread.join()
    assert after > before


def test_an_interrupt_ends_a_long_read(work):
    with (work / "sparse").open("wb", buffering=0) as file:
        file.truncate(3 << 30)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        (work / "sparse").read_bytes()


def test_a_file_of_a_closed_worktree_is_closed(volume, work):
    (work / "f").write_bytes(b"1")
    file = (work / "f").open("rb")
    work.close()
    with pytest.raises(ValueError):
        file.read()
    file.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_handles_do_not_outlive_a_fork(volume, work):
    """The child neither uses what the parent opened, nor ends the parent's worktree."""
    (work / "f").write_bytes(b"1")
    child = os.fork()
    if child == 0:
        try:
            work.read_bytes("f")
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 8)
        finally:
            del work, volume
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    work.write_bytes("f", b"22")
    assert work.read_bytes("f") == b"22"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_threads_of_its_own(tmp_path):
    """What the parent's threads shared among themselves, and what they wait for, is made anew there."""
    place = tmp_path / "volume"
    with vellum.create(place) as volume, volume.create_worktree("work") as work:
        for number in range(50):
            work.write_bytes(f"{number}", b"%d" % number * 20_000)
        work.snapshot("one", tags=["v1"])
        work.remove("7")
        work.snapshot("two", tags=["v2"])
    with vellum.open(place) as volume:
        # All processors compare.
        assert [change.path for change in volume.compare("v1", "v2")] == ["7"]

        def use_it_again():
            with vellum.open(place) as again, again.worktree("work") as work:
                assert [change.path for change in again.compare("v1", "v2")] == ["7"]
                work.write_bytes("made", b"there" * 20_000)
                work.snapshot("three", tags=["v3"])
            return 0

        assert run_in_fork(use_it_again) == 0
    with vellum.open(place) as volume:
        assert volume.snapshot("v3").read_bytes("made") == b"there" * 20_000
