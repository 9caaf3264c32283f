#!/usr/bin/env python3
"""What publishing takes from who works in a mount: publishing.py [--rounds 5] [--work DIR] [--json FILE]

In turns, in a file of 64 MiB: 1 MiB is written, then read, past the kernel's cache, on the filesystem beneath, in a mount
at rest, and in a mount that publishes DATA bytes of unique content. Then how long publishing takes of a mount that nobody
uses. VELLUM names the binary. Needs root, or fusermount3.
"""

import argparse
import mmap
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record
import report

VELLUM = os.path.abspath(os.environ.get("VELLUM", "target/dist/vellum"))
BENEATH, RESTING, BUSY = "beneath", "at rest", "publishing"
BLOCK = 1 << 20
FILE = 64 * BLOCK
DATA = 384 * BLOCK
# Longest that publishing may take, seconds.
PATIENCE = 300.0


class Mount:
    """A volume with a mounted worktree; its live state and its store are new."""

    def __init__(self, work: Path):
        self.root, volume = work / "mount", work / "volume"
        volume.mkdir()
        self.root.mkdir()
        self.run("-C", volume, "init", "-q")
        self.run("-C", volume, "fork", "-q", "bench", "--mount", self.root)

    def run(self, *command):
        """A command that must succeed."""
        command = [VELLUM, *map(str, command)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"publishing: {' '.join(command)}: {done.stderr.strip()}")

    def published(self):
        """How often something was published."""
        found = re.search(r"^vellum_publish_seconds_count (\d+)", Path(self.root, ".vellum/stats").read_text(), re.M)
        return int(found.group(1))

    def leave(self):
        """Ends the mount, whatever is published."""
        self.run("umount", "-q", self.root)


def fill(path):
    """A file of content that nobody has stored, half of which compresses."""
    with open(path, "wb") as file:
        for _ in range(DATA // BLOCK):
            file.write(os.urandom(BLOCK // 2) + os.urandom(BLOCK // 8).hex().encode() * 2)


def work_on(path, until):
    """Median seconds of a write and of a read of a block, one after the other until `until` says so."""
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(os.urandom(BLOCK))
    taken = {"write": [], "read": []}
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        at = 0
        while not until():
            for name, call in (("write", os.pwritev), ("read", os.preadv)):
                start = time.perf_counter()
                if call(descriptor, [buffer], at) != BLOCK:
                    sys.exit("publishing: a block was cut short")
                taken[name].append(time.perf_counter() - start)
            at = (at + BLOCK) % FILE
    finally:
        os.close(descriptor)
    return {name: statistics.median(times) for name, times in taken.items()}


def timer(seconds):
    """Says after some time that it is over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def prepare(directory):
    """The file to work on, on the disk."""
    path = Path(directory, "worked on")
    path.write_bytes(os.urandom(FILE))
    os.sync()
    return path


def measure_mount(work, number, whole):
    """One mount: at rest, then while it publishes; and another that is left alone."""

    def note(found, column):
        for name, seconds in found.items():
            whole.add(f"{name} 1 MiB", column, seconds, number=number)

    with tempfile.TemporaryDirectory(dir=work) as home:
        mount = Mount(Path(home))
        try:
            path = prepare(mount.root)
            mount.run("-C", mount.root, "flush")
            note(work_on(path, timer(1)), RESTING)
            for used, column in ((True, BUSY), (False, "left alone")):
                fill(mount.root / f"data {used}")
                before, start = mount.published(), time.monotonic()
                mount.run("-C", mount.root, "snapshot", "-q")
                if used:
                    found = work_on(path, timer(0.7))
                    if mount.published() != before:
                        sys.exit("publishing: it was over before the work was: more DATA is needed")
                    note(found, column)
                while mount.published() == before:
                    if time.monotonic() - start > PATIENCE:
                        sys.exit("publishing: it does not end")
                    time.sleep(0.1)
                if not used:
                    whole.add(f"publish {DATA >> 20} MiB", RESTING, time.monotonic() - start, number=number)
        finally:
            mount.leave()


def main():
    """Measures in turns, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        whole = record.Record(
            "publishing",
            "What publishing takes from who works in a mount",
            columns=[BENEATH, RESTING, BUSY],
            ours=BUSY,
            floors=[BENEATH, RESTING],
            setting={
                "filesystem": record.filesystem(work),
                "cache": "the kernel's is passed by",
                "requests": record.requests(),
                "versions": record.version(VELLUM),
            },
        )
        for number in range(arguments.rounds):
            path = prepare(work)
            for name, seconds in work_on(path, timer(1)).items():
                whole.add(f"{name} 1 MiB", BENEATH, seconds, number=number)
            path.unlink()
            measure_mount(work, number, whole)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
