#!/usr/bin/env python3
"""A volume with very many snapshots: what `gc plan`, `gc run`, the first page of `history`, the history of one path and a
search by tag cost.

A hundred, a thousand, ten thousand snapshots of a tree of a thousand files, each with one file changed; one in a hundred
has a tag; one in a hundred is forgotten before the collection, so that there is something to collect. Times are of the
whole process.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))

import measure
import record
import report
import tools

FILES = 1000
# Every so many snapshots one has a tag, and another one is forgotten.
STRIDE = 100


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--snapshots", default="100,1000,10000", help="how many, one after another")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--work", type=Path, default=Path(os.path.expanduser("~/.cache/vellum-bench/snapshots")))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def make_tree(tree: Path):
    """A thousand small files in ten directories."""
    rng = random.Random(1000)
    for number in range(FILES):
        file = path(tree, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(1024))


def path(tree: Path, number: int) -> Path:
    """The place of one file."""
    return tree / f"d{number % 10}" / f"f{number:04}"


class Volume:
    """A worktree and the binary that works on it."""

    def __init__(self, work: Path):
        self.tree = work / "tree"
        self.log = work / "log"
        self.program = tools.Vellum.program()
        self.env = dict(os.environ, HOME=str(work / "home"), XDG_CACHE_HOME=str(work / "cache"))

    def told(self, *args) -> str:
        """What a command printed."""
        command = [self.program, *args]
        return subprocess.run(command, cwd=self.tree, env=self.env, check=True, capture_output=True, text=True).stdout

    def run(self, *args, ok=(0,)):
        """One command in the worktree."""
        return measure.run([self.program, *args], cwd=self.tree, env=self.env, ok=ok, log=self.log)


def fill(volume: Volume, count: int) -> list[float]:
    """Takes `count` snapshots. Returns what each took."""
    took = []
    for number in range(count):
        path(volume.tree, number % FILES).write_text(f"change {number}\n")
        tag = ["--tag", f"t{number}"] if number % STRIDE == 0 else []
        took.append(volume.run("snapshot", *tag).wall)
        if number % 1000 == 999:
            print(f"{number + 1} snapshots, the last hundred {statistics.median(took[-100:]):.4f} s each", file=sys.stderr)
    return took


def forget(volume: Volume, count: int):
    """Forgets one snapshot in a hundred: those in the middle between two that have a tag."""
    told = json.loads(volume.told("history", "-n", str(count), "--json"))["snapshots"]
    # The newest is what the worktree stands on.
    unnamed = [each["id"] for each in told[min(STRIDE // 2, count - 1) :: STRIDE] if not (each["tags"] or each["heads"])]
    if unnamed:
        volume.run("forget", *unnamed)


def wanted(count: int) -> int:
    """The tagged snapshot in the middle."""
    return count // 2 // STRIDE * STRIDE


class Notes:
    """Where the figures of one number of snapshots go."""

    def __init__(self, whole, count: int):
        self.whole, self.group = whole, f"{count:,} snapshots"

    def time(self, row, seconds):
        """What one run took."""
        self.whole.add(row, "vellum", seconds, group=self.group)

    def cost(self, row, cost):
        """What one run cost."""
        self.time(row, cost.wall)
        self.whole.add(row, "vellum", cost.peak, group=self.group, quantity="peak memory", unit="bytes")


def timed(volume: Volume, notes: Notes, row, rounds: int, *args, ok=(0,)):
    """Several runs of one command that changes nothing."""
    for _ in range(rounds):
        notes.cost(row, volume.run(*args, ok=ok))


def worktrees(volume: Volume, notes: Notes, rounds: int):
    """A second worktree: made, listed, taken off the list."""
    for number in range(rounds):
        to = volume.tree.parent / f"fork{number}"
        notes.cost("fork, checked out", volume.run("fork", f"fork{number}", "--to", to))
        notes.cost("worktree list", volume.run("worktree", "list"))
        notes.cost("worktree remove", volume.run("worktree", "remove", f"fork{number}"))
        shutil.rmtree(to)


def measure_all(volume: Volume, count: int, rounds: int, notes: Notes):
    """All figures of one number of snapshots."""
    volume.run("init", ".")
    took = fill(volume, count)
    for row, part in (("snapshot, early", took[:STRIDE]), ("snapshot, late", took[-STRIDE:])):
        for wall in part:
            notes.time(row, wall)
    tag = f"t{wanted(count)}"
    timed(volume, notes, "history, first page", rounds, "history", "-n", "50")
    timed(volume, notes, "history, all", 3, "history", "-n", str(count))
    # The file was changed by one snapshot in a thousand, something in the directory by one in ten.
    timed(volume, notes, "history of a file, all", 3, "history", "-n", "0", "--path", str(path(Path(), 7)))
    timed(volume, notes, "history of a directory, all", 3, "history", "-n", "0", "--path", "d7")
    timed(volume, notes, "history of a directory, first page", rounds, "history", "-n", "20", "--path", "d7")
    timed(volume, notes, "find by tag", rounds, "history", "--tag", tag)
    timed(volume, notes, "show by tag", rounds, "show", tag)
    worktrees(volume, notes, min(rounds, 5))
    forget(volume, count)
    timed(volume, notes, "gc plan", 3, "gc", "plan", ok=(0, 1))
    timed(volume, notes, "gc run", 1, "gc", "run", ok=(0, 1))
    timed(volume, notes, "verify after gc", 1, "verify", "--all")


def main():
    """Makes a volume for each number, measures, prints the tables."""
    args = arguments()
    counts = [int(count) for count in args.snapshots.split(",")]
    args.work.mkdir(parents=True, exist_ok=True)
    whole = record.Record(
        "snapshots",
        f"Many snapshots of {FILES:,} files, whole processes",
        columns=["vellum"],
        setting={
            "filesystem": record.filesystem(args.work),
            "cache": "warm",
            "started by": measure.STARTED_BY,
            "versions": record.version(tools.Vellum.program() or sys.exit("no vellum: set VELLUM, or put it on PATH")),
        },
    )
    for count in counts:
        shutil.rmtree(args.work, ignore_errors=True)
        try:
            make_tree(args.work / "tree")
            measure_all(Volume(args.work), count, args.rounds, Notes(whole, count))
        finally:
            shutil.rmtree(args.work, ignore_errors=True)
    whole.keep(args.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
