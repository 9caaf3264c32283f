"""The first touch of a file in a mount that has fetched nothing yet: its first byte, all of it, and all of it again.

Each round mounts a snapshot anew and drops the kernel's caches, so that names, attributes and content come from the
store. The floor is the same file on the filesystem beneath, read after the same dropping.
"""

import os
import time
from pathlib import Path

from benchkit import host, record
from benchkit.runner import Case, Run

SIZE = 1 << 20
FILES = 64
BENEATH = "beneath"


def read(path, size) -> float:
    """Seconds from opening to `size` bytes."""
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        left = size
        while left and (got := len(file.read(left))):
            left -= got
    return time.perf_counter() - start


def touch(run: Run, root: Path, column):
    """The three readings, of files that nobody has read before."""
    host.drop_caches()
    first, file = (root / f"f{(2 * run.number + place) % FILES:02}" for place in (0, 1))
    run.add("first byte", column, read(first, 1))
    run.add("1 MiB, never read before", column, read(file, SIZE))
    run.add("1 MiB, read again", column, read(file, SIZE))


def measure(run: Run):
    """Makes a volume, mounts it again and again."""
    tree, mount = run.folder("tree"), run.folder("mount")
    for number in range(FILES):
        (tree / f"f{number:02}").write_bytes(os.urandom(SIZE))
    host.vellum_in(tree, "init", "-q")
    host.vellum_in(tree, "snapshot", "-q", "--tag", "first")
    setting = {"cache": "cold", "requests": record.requests(), "versions": [host.vellum()]}
    run.start([BENEATH, "vellum"], floors=[BENEATH], **setting)
    for _ in run.rounds():
        touch(run, tree, BENEATH)
        host.vellum_in(tree, "mount", "-q", "--snapshot", "first", mount)
        try:
            touch(run, mount, "vellum")
        finally:
            host.vellum_in(run.work, "umount", "-q", mount)


CASE = Case("hydrate", "The first touch of a file", measure, rounds=9)
