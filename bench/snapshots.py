#!/usr/bin/env python3
"""A volume with very many snapshots: what `gc plan`, `gc run`, the first page of `history` and a search by tag cost.

Ten thousand snapshots of a tree of a thousand files, each with one file changed; one in a hundred has a tag; one in a
hundred is forgotten before the collection, so that there is something to collect. Times are of the whole process.
"""

import argparse
import os
import random
import shutil
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))

import measure
import record
import report
import tools

FILES = 1000
# Every so many snapshots one has a tag, and another is forgotten.
STRIDE = 100


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--snapshots", type=int, default=10_000)
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
        self.program = tools.Vellum.program() or sys.exit("no vellum: set VELLUM, or put it on PATH")
        self.env = dict(os.environ, HOME=str(work / "home"), XDG_CACHE_HOME=str(work / "cache"))

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
    """Forgets one snapshot in a hundred: the tagged ones, but for the one that is searched for."""
    for number in range(STRIDE, count, STRIDE):
        if number != wanted(count):
            volume.run("forget", f"t{number}")


def wanted(count: int) -> int:
    """The tagged snapshot in the middle."""
    return count // 2 // STRIDE * STRIDE


def timed(volume: Volume, whole, row, rounds: int, *args, ok=(0,)):
    """Several runs of one command that changes nothing."""
    for _ in range(rounds):
        note(whole, row, volume.run(*args, ok=ok))


def note(whole, row, cost):
    """What one run cost."""
    whole.add(row, "vellum", cost.wall)
    whole.add(row, "vellum", cost.peak, quantity="peak memory", unit="bytes")


def measure_all(volume: Volume, args, whole):
    """All figures, by name."""
    volume.run("init", ".")
    took = fill(volume, args.snapshots)
    for row, part in (("snapshot, early", took[:STRIDE]), ("snapshot, late", took[-STRIDE:])):
        for wall in part:
            whole.add(row, "vellum", wall)
    tag = f"t{wanted(args.snapshots)}"
    timed(volume, whole, "history, first page", args.rounds, "history", "-n", "50")
    timed(volume, whole, "history, all", 3, "history", "-n", str(args.snapshots))
    timed(volume, whole, "find by tag", args.rounds, "history", "--tag", tag)
    timed(volume, whole, "show by tag", args.rounds, "show", tag)
    forget(volume, args.snapshots)
    timed(volume, whole, "gc plan", 3, "gc", "plan", ok=(0, 1))
    timed(volume, whole, "gc run", 1, "gc", "run", ok=(0, 1))
    timed(volume, whole, "verify after gc", 1, "verify", "--all")


def main():
    """Makes the volume, measures, prints the tables."""
    args = arguments()
    shutil.rmtree(args.work, ignore_errors=True)
    make_tree(args.work / "tree")
    volume = Volume(args.work)
    whole = record.Record(
        "snapshots",
        f"{args.snapshots:,} snapshots of {FILES:,} files, whole processes",
        columns=["vellum"],
        setting={
            "filesystem": record.filesystem(args.work),
            "cache": "warm",
            "versions": record.version(volume.program),
        },
    )
    try:
        measure_all(volume, args, whole)
    finally:
        shutil.rmtree(args.work, ignore_errors=True)
    whole.keep(args.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
