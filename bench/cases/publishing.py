"""What publishing takes from who works in a mount.

In turns, in a file of 64 MiB: 1 MiB is written, then read, past the kernel's cache, on the filesystem beneath, in a
mount at rest, and in a mount that publishes unique content. Then how long publishing takes of a mount that nobody uses.
"""

import mmap
import os
import re
import statistics
import time
from pathlib import Path

from benchkit import host, mounts, record
from benchkit.runner import Case, Run

BENEATH, RESTING, BUSY = "beneath", "at rest", "publishing"
BLOCK = 1 << 20
FILE = 64 * BLOCK
DATA = 384 * BLOCK
# Longest that publishing may take, seconds.
PATIENCE = 300.0


def published(mount: mounts.Vellum) -> int:
    """How often a mount has published."""
    found = re.search(r"^vellum_publish_seconds_count (\d+)", (mount.root / ".vellum/stats").read_text(), re.M)
    return int(found.group(1))


def fill(path: Path):
    """A file of content that nobody has stored, half of which compresses."""
    with open(path, "wb") as file:
        for _ in range(DATA // BLOCK):
            file.write(os.urandom(BLOCK // 2) + os.urandom(BLOCK // 8).hex().encode() * 2)


def make_file(directory: Path) -> Path:
    """The file to work on, on the disk."""
    path = directory / "worked on"
    path.write_bytes(os.urandom(FILE))
    os.sync()
    return path


def work_on(path: Path, seconds: float) -> dict:
    """Median seconds of a write and of a read of a block, one after the other for some time."""
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(os.urandom(BLOCK))
    taken = {"write 1 MiB": [], "read 1 MiB": []}
    descriptor, end, offset = os.open(path, os.O_RDWR | os.O_DIRECT), time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            for times, call in zip(taken.values(), (os.pwritev, os.preadv)):
                start = time.perf_counter()
                if call(descriptor, [buffer], offset) != BLOCK:
                    raise host.CommandFailed(f"{path}: a block was cut short")
                times.append(time.perf_counter() - start)
            offset = (offset + BLOCK) % FILE
    finally:
        os.close(descriptor)
    return {row: statistics.median(times) for row, times in taken.items()}


def measure_mount(run: Run, mount: mounts.Vellum):
    """At rest, while it publishes, and while it publishes and nobody uses it."""
    path = make_file(mount.root)
    mount.settle()
    run.add_all(work_on(path, 1), RESTING)
    for is_used in (True, False):
        fill(mount.root / f"data {is_used}")
        before, start = published(mount), time.monotonic()
        mount.run("-C", mount.root, "snapshot", "-q")
        if is_used:
            found = work_on(path, 0.7)
            if published(mount) != before:
                raise host.CommandFailed("publishing ended before the work did: more DATA is needed")
            run.add_all(found, BUSY)
        host.wait_until(lambda: published(mount) != before, "publishing", PATIENCE)
        if not is_used:
            run.add(f"publish {DATA >> 20} MiB", RESTING, time.monotonic() - start)


def measure(run: Run):
    """All of it in turns."""
    setting = {"cache": "the kernel's is passed by", "requests": record.requests(), "versions": [host.vellum()]}
    run.start([BENEATH, RESTING, BUSY], ours=BUSY, floors=[BENEATH, RESTING], **setting)
    for number in run.rounds():
        path = make_file(run.work)
        run.add_all(work_on(path, 1), BENEATH)
        path.unlink()
        with mounts.Vellum(run.work / str(number)) as mount:
            measure_mount(run, mount)
        host.remove(run.work / str(number))


CASE = Case("publishing", "What publishing takes from who works in a mount", measure)
