#!/usr/bin/env python3
"""What the first touch of a file costs in a mount that has fetched nothing yet: hydrate.py [--runs 9] [--work DIR] [--json FILE]

Each run mounts a snapshot anew and drops the kernel's caches, so that names, attributes and content come from the store;
then one file of 1 MiB is read: its first byte, all of it, and all of it again. The floor is the same file on the
filesystem beneath, read after the same dropping. Needs root.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import record
import report

VELLUM = os.path.abspath(os.environ.get("VELLUM", "target/dist/vellum"))
SIZE = 1 << 20
FILES = 64
BENEATH = "beneath"


def vellum(directory, *arguments):
    """A command that must succeed."""
    subprocess.run([VELLUM, "-C", directory, *arguments], check=True, capture_output=True)


def drop_caches():
    """Makes the kernel forget names, attributes and pages."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def read(path, size):
    """Seconds from opening to `size` bytes."""
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        left = size
        while left and (got := len(file.read(left))):
            left -= got
    return time.perf_counter() - start


def touch(root, run, column, whole):
    """The three readings of files that nobody has read before."""
    first, file = Path(root, f"f{2 * run % FILES:02}"), Path(root, f"f{(2 * run + 1) % FILES:02}")
    whole.add("first byte", column, read(first, 1), number=run)
    whole.add("1 MiB, never read before", column, read(file, SIZE), number=run)
    whole.add("1 MiB, read again", column, read(file, SIZE), number=run)


def main():
    """Makes a volume, mounts it again and again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--work")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        tree, mount = Path(work, "tree"), Path(work, "mount")
        tree.mkdir()
        mount.mkdir()
        for number in range(FILES):
            Path(tree, f"f{number:02}").write_bytes(os.urandom(SIZE))
        vellum(tree, "init", "-q")
        vellum(tree, "snapshot", "-q", "--tag", "first")
        setting = {
            "filesystem": record.filesystem(work),
            "cache": "cold",
            "requests": record.requests(),
            "versions": record.version(VELLUM),
        }
        whole = record.Record(
            "hydrate", "The first touch of a file", columns=[BENEATH, "vellum"], floors=[BENEATH], setting=setting
        )
        for run in range(arguments.runs):
            drop_caches()
            touch(tree, run, BENEATH, whole)
            vellum(tree, "mount", "-q", "--snapshot", "first", mount)
            try:
                drop_caches()
                touch(mount, run, "vellum", whole)
            finally:
                vellum(work, "umount", "-q", mount)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
