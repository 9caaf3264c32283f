#!/usr/bin/env python3
"""Measures Vellum and its rivals side by side: first snapshot, unchanged second snapshot, restore, verify, space, memory.

Within a round every operation is run by all tools one after another, and the order of the tools turns from round to
round: a busy machine's drift then hits all alike. Times are for ratios; take no absolute figure from a shared machine.
"""

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import check
import measure
import report
import tools
import trees

OPS = ("first", "again", "restore", "verify")
DEFAULT_TREES = ("goroot", "registry", "small100k", "big4g", "wheels")
CACHE = Path(os.environ.get("VELLUM_BENCH_CACHE", os.path.expanduser("~/.cache/vellum-bench")))


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", default=",".join(DEFAULT_TREES), help=f"of {', '.join(trees.TREES)}")
    parser.add_argument("--tools", default=",".join(tools.TOOLS), help="which take part, if they are installed")
    parser.add_argument("--ops", default=",".join(OPS), help="first always runs, since the others need it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=CACHE / "work", help="emptied; on the disk to be measured")
    parser.add_argument("--json", type=Path, help="where to keep the samples (added to, if it exists)")
    return parser.parse_args()


class Run:
    """One run over some trees with some tools; collects samples."""

    def __init__(self, args):
        self.args = args
        self.ops = [op for op in OPS if op == "first" or op in args.ops.split(",")]
        self.kinds = tools.available(args.tools.split(","))
        self.samples = []
        self.dropped = set()

    def tree(self, name: str):
        """All rounds on one tree."""
        tree = trees.ensure(name, CACHE / "trees")
        for number in range(self.args.rounds):
            self.round(name, tree, number)
        shutil.rmtree(self.args.work, ignore_errors=True)

    def round(self, name: str, tree: Path, number: int):
        """Every operation once, by every tool."""
        turn = number % len(self.kinds)
        team = [kind(self.args.work) for kind in self.kinds[turn:] + self.kinds[:turn]]
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
            print(f"{name}: {tool.name} fails and is left out: {failure}", file=sys.stderr)
            self.dropped.add((name, tool.name))

    def sample(self, name, tree, tool, op, number):
        """Runs one operation and notes what it cost."""
        cost = getattr(tool, op)(tree)
        sample = {"tree": name, "tool": tool.name, "op": op, "round": number, **vars(cost)}
        if op == "first":
            sample["space"] = tool.space()
        if op == "restore":
            if number == 0 and not check.same(tool.out, tree):
                raise measure.CommandFailed(f"{tool.name} restored something else than {tree}")
            shutil.rmtree(tool.out)
        measure.settle(self.args.work)
        self.samples.append(sample)
        print(f"{name} {number} {op} {tool.name}: {cost.wall:.3f} s", file=sys.stderr)


def machine(kinds) -> dict:
    """What a reader needs to judge the figures."""
    return {
        "time": tools.timestamp(),
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "load_at_end": os.getloadavg()[0],
        "versions": {kind.name: version(kind) for kind in kinds},
    }


def only_one():
    """Two runs at once would measure each other, and empty each other's directory."""
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = open(CACHE / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run is under way: it holds {CACHE / 'lock'}")
    return lock


def version(kind) -> str:
    """The first line of what a tool says about itself."""
    for flag in ("--version", "version"):
        found = subprocess.run([kind.program(), flag], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout:
            return found.stdout.splitlines()[0]
    return "unknown"


def keep(args, run, names) -> dict:
    """Writes what is known so far, so that a long run that breaks off has not been for nothing."""
    sizes = {name: trees.describe(CACHE / "trees" / name) for name in names}
    result = {"machine": machine(run.kinds), "trees": sizes, "samples": run.samples}
    if args.json:
        args.json.write_text(json.dumps(report.merged(args.json, result), indent=1) + "\n")
    return result


def main():
    """Runs, keeps the samples, prints the tables."""
    args = arguments()
    args.work = args.work.absolute()
    run = Run(args)
    if not run.kinds:
        sys.exit("none of the tools is installed: set VELLUM, RESTIC, BORG or RUSTIC, or put them on PATH")
    names, result = args.trees.split(","), None
    with only_one():
        try:
            for number, name in enumerate(names):
                run.tree(name)
                result = keep(args, run, names[: number + 1])
        finally:
            shutil.rmtree(args.work, ignore_errors=True)
    print(report.markdown(result))


if __name__ == "__main__":
    main()
