#!/usr/bin/env python3
"""Measures Vellum and its rivals side by side: first snapshot, unchanged second snapshot, restore, verify, space, memory.

Within a round every operation is run by all tools one after another, and the order of the tools turns from round to
round: a busy machine's drift then hits all alike. Times are for ratios; take no absolute figure from a shared machine.
"""

import argparse
import fcntl
import os
import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import check
import contest
import measure
import record
import report
import tools
import trees

# Operations, and what their tables are called.
OPS = {
    "first": "First snapshot",
    "again": "Second snapshot, nothing changed",
    "restore": "Restore into an empty directory",
    "verify": "Verify, all content read",
}
DEFAULT_TREES = ("goroot", "registry", "small100k", "big4g", "wheels")
# Trees of fewer files leave nothing behind that slows down who comes next.
FEW = 1000
# The column that says how much a tree's files hold, beside what each tool stores of it.
LOGICAL = "contents"
CACHE = Path(os.environ.get("VELLUM_BENCH_CACHE", os.path.expanduser("~/.cache/vellum-bench")))


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", default=",".join(DEFAULT_TREES), help=f"of {', '.join(trees.TREES)}")
    parser.add_argument("--tools", default=",".join(tools.TOOLS), help="which take part, if they are installed")
    parser.add_argument("--ops", default=",".join(OPS), help="first always runs, since the others need it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=CACHE / "work", help="emptied; on the disk to be measured")
    parser.add_argument("--json", type=Path, help="where to keep the record (rows that it has of other trees stay)")
    return parser.parse_args()


class Run:
    """One run over some trees with some tools; collects samples."""

    def __init__(self, args):
        self.args = args
        self.ops = [op for op in OPS if op == "first" or op in args.ops.split(",")]
        self.kinds = tools.available(args.tools.split(","))
        args.work.mkdir(parents=True, exist_ok=True)
        self.record = record.Record(
            "backup",
            "Snapshots, and backup programs",
            columns=[*(kind.name for kind in self.kinds), LOGICAL],
            floors=(*tools.FLOORS, LOGICAL),
            setting={
                "filesystem": record.filesystem(args.work),
                "engine": "a store in a directory, encrypted, zstd level 3",
                "started by": measure.STARTED_BY,
                "cache": "sources and repositories in the page cache",
                "versions": ", ".join(filter(None, (record.version(kind.program()) for kind in self.kinds))),
            },
        )
        self.dropped = set()

    def tree(self, name: str):
        """All rounds on one tree."""
        tree = trees.ensure(name, CACHE / "trees")
        for number in range(self.args.rounds):
            self.round(name, tree, number)
        shutil.rmtree(self.args.work, ignore_errors=True)

    def round(self, name: str, tree: Path, number: int):
        """Every operation once, by every tool."""
        team = [kind(self.args.work) for kind in contest.order(self.kinds, number)]
        team = [tool for tool in team if (name, tool.name) not in self.dropped]
        for tool in team:
            self.guard(name, tool, lambda: tool.prepare(tree))
        measure.warm(tree)
        for op in self.ops:
            for tool in team:
                if op in tool.ops and (name, tool.name) not in self.dropped:
                    self.guard(name, tool, lambda: self.sample(name, tree, tool, op, number))
        for tool in team:
            tool.clean()

    def guard(self, name, tool, action):
        """A tool that fails is named and leaves the tree's contest; the others go on."""
        try:
            action()
        except measure.CommandFailed as failure:
            self.record.leave_out(name, tool.name, failure)
            self.dropped.add((name, tool.name))

    def sample(self, name, tree, tool, op, number):
        """Runs one operation and notes what it cost."""
        cost = getattr(tool, op)(tree)
        group = OPS[op]
        self.record.add(name, tool.name, cost.wall, group=group, number=number)
        self.record.add(name, tool.name, cost.cpu, group=group, quantity="processor time", number=number)
        self.record.add(name, tool.name, cost.peak, group=group, quantity="peak memory", unit="bytes", number=number)
        space = tool.space() if op == "first" else None
        if space is not None:
            self.record.add(name, tool.name, space, group=group, quantity="space", unit="bytes", number=number)
            logical = trees.describe(CACHE / "trees" / name)["bytes"]
            self.record.add(name, LOGICAL, logical, group=group, quantity="space", unit="bytes", number=number)
        if op == "verify":
            self.rate(name, tool, cost, number)
        if op == "restore":
            if number == 0 and not check.same(tool.out, tree):
                raise measure.CommandFailed(f"{tool.name} restored something else than {tree}")
            self.set_aside(name, tool.out)
        measure.settle(self.args.work)
        print(f"{name} {number} {op} {tool.name}: {cost.wall:.3f} s", file=sys.stderr)

    def set_aside(self, name, restored: Path):
        """Keeps a restored tree of many files until the last round: ext4 gives the inodes of deleted files to nobody for
        minutes, and whoever makes files next to them searches past them all."""
        if trees.describe(CACHE / "trees" / name)["files"] < FEW:
            shutil.rmtree(restored)
            return
        aside = self.args.work / "aside"
        aside.mkdir(exist_ok=True)
        restored.rename(aside / str(len(os.listdir(aside))))

    def rate(self, name, tool, cost, number):
        """Verify again, as logical bytes in a second."""
        size = trees.describe(CACHE / "trees" / name)["bytes"]
        self.record.add(
            name,
            tool.name,
            size / cost.wall,
            group=OPS["verify"],
            quantity="rate",
            unit="bytes per second",
            better="more",
            number=number,
        )


def only_one():
    """Two runs at once would measure each other, and empty each other's directory."""
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = open(CACHE / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run is under way: it holds {CACHE / 'lock'}")
    return lock


def main():
    """Runs, keeps the samples, prints the tables."""
    args = arguments()
    args.work = args.work.absolute()
    run = Run(args)
    if not run.kinds:
        sys.exit("none of the tools is installed: set VELLUM, RESTIC, BORG or RUSTIC, or put them on PATH")
    with only_one():
        try:
            for name in args.trees.split(","):
                run.tree(name)
                run.record.keep(args.json)
        finally:
            shutil.rmtree(args.work, ignore_errors=True)
    print(report.printed(run.record.whole()))


if __name__ == "__main__":
    main()
