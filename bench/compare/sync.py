#!/usr/bin/env python3
"""`vellum sync` and other tools that copy trees: fresh copies, nothing changed, one large file changed.

    bench/compare/sync.py [--rounds 5] [--filesystems ext4,xfs,btrfs] [--cases NAME,...] [--tools NAME,...] [--json FILE]

VELLUM, RSYNC, CP, SY, SY03, XCP, CPZ and RCLONE name the binaries (default: from PATH; one that is missing is left out). Needs
root: each filesystem is made in memory. Sources are warm, destinations fresh, and dirty pages are written back between
runs, outside the timing. In the first round each copy is compared with its source.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

sys.path.append(str(Path(__file__).resolve().parent.parent))

import contest
import measure
import record
import report

MIB = 1 << 20
BIG = 100 * MIB
# What is changed in the large file, or put into it: in its middle.
CHANGED, INSERTED = MIB, 4096
LONG_AGO = 1_600_000_000
SPACE = "3G"


def program(name) -> str | None:
    """Where a tool is."""
    return os.environ.get(name.upper()) or shutil.which(name)


# How each is told to copy what is in SRC into DST, with times and modes.
TOOLS = {
    "vellum": lambda src, dst: [program("vellum"), "sync", "-a", f"{src}/", f"{dst}/"],
    "rsync": lambda src, dst: [program("rsync"), "-a", f"{src}/", f"{dst}/"],
    "cp": lambda src, dst: [program("cp"), "-a", "--reflink=auto", f"{src}/.", f"{dst}/"],
    "sy": lambda src, dst: [program("sy"), "-a", "-q", f"{src}/", f"{dst}/"],
    "sy03": lambda src, dst: [program("sy03"), "-a", "-q", f"{src}/", f"{dst}/"],
    "xcp": lambda src, dst: [program("xcp"), "-r", "--no-progress", "-T", src, dst],
    "cpz": lambda src, dst: [program("cpz"), src, dst],
    "rclone": lambda src, dst: [program("rclone"), "copy", src, dst],
}
# These make the destination themselves, and do not look at what is there.
MAKERS = ("xcp", "cpz")


@dataclass
class Case:
    """A source, and what the destination holds before."""

    make: Callable
    before: str = "nothing"
    tools: tuple = tuple(TOOLS)


def files(count, sizes, place):
    """Files of random bytes; `place` says where the one of a number goes."""

    def make(root: Path):
        rng = random.Random(42)
        for number in range(count):
            path = root / place(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.randbytes(rng.choice(sizes)))

    return make


def nested(number):
    """Forty files at each of five levels."""
    return Path(*(f"level{level}" for level in range(number // 40 + 1))) / f"f{number:03}"


def large(change):
    """One large file, and beside the source what the destination has of it."""

    def make(root: Path):
        old = random.Random(9).randbytes(BIG)
        middle, new = BIG // 2, random.Random(10).randbytes(CHANGED)
        root.mkdir(parents=True)
        content = {
            "nothing": old,
            "changed": old[:middle] + new + old[middle + CHANGED :],
            "inserted": old[:middle] + new[:INSERTED] + old[middle:],
        }[change]
        (root / "large").write_bytes(content)
        before = root.parent / f"{root.name}.before"
        before.mkdir()
        (before / "large").write_bytes(old)
        os.utime(before / "large", (LONG_AGO, LONG_AGO))

    return make


SMALL = files(1000, range(1024, 10 * 1024), lambda n: f"f{n:04}")
MANY = files(20_000, [4096], lambda n: f"d{n // 100:03}/f{n:05}")
UPDATERS = tuple(name for name in TOOLS if name not in MAKERS)
CASES = {
    "1,000 files of 1 to 10 KB": Case(SMALL),
    "100 files of 100 KB": Case(files(100, [100 * 1024], lambda n: f"f{n:03}")),
    "one file of 100 MB": Case(large("nothing")),
    "nested, 200 files": Case(files(200, [5 * 1024], nested)),
    "20,000 files of 4 KB": Case(MANY),
    "nothing changed, 1,000 files": Case(SMALL, "the same", UPDATERS),
    "nothing changed, 20,000 files": Case(MANY, "the same", UPDATERS),
    "1 MB changed in 100 MB": Case(large("changed"), "an older one", UPDATERS),
    "4 KB inserted in 100 MB": Case(large("inserted"), "an older one", UPDATERS),
}
# Where blocks can be shared only these differ from what was measured elsewhere.
SHARING_CASES = ("one file of 100 MB", "1 MB changed in 100 MB", "4 KB inserted in 100 MB")


class Ground:
    """A filesystem in memory, with the sources on it."""

    def __init__(self, kind: str, cases):
        self.kind = kind
        self.root = Path(f"/tmp/vellum-bench-{kind}")
        self.script = Path(__file__).resolve().parent.parent / "ramdisk.sh"
        self.cases = cases

    def __enter__(self):
        subprocess.run([self.script, "make", self.root, SPACE, self.kind], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run([self.script, "remove", self.root], check=True)

    def source(self, name) -> Path:
        """A case's source, made at first use."""
        source = self.root / "src" / name.replace(" ", "-").replace(",", "")
        if not source.exists():
            source.parent.mkdir(exist_ok=True)
            # In a process of its own: those that are measured would inherit the memory that it takes as their peak.
            maker = multiprocessing.Process(target=CASES[name].make, args=(source,))
            maker.start()
            maker.join()
            if maker.exitcode != 0:
                sys.exit(f"{name}: its source could not be made")
        return source

    def prepare(self, name, tool) -> tuple[Path, Path]:
        """Source and destination before a run, at rest."""
        source, target = self.source(name), self.root / "dst"
        shutil.rmtree(target, ignore_errors=True)
        before = CASES[name].before
        if before == "the same":
            measure.run(["cp", "-a", source, target])
        elif before == "an older one":
            measure.run(["cp", "-a", "--reflink=never", f"{source}.before", target])
        elif tool not in MAKERS:
            target.mkdir()
        measure.settle(self.root)
        measure.warm(source)
        if target.exists():
            measure.warm(target)
        return source, target


class Contest:
    """All cases on all filesystems."""

    def __init__(self, args):
        self.args = args
        self.tools = [name for name in args.tools.split(",") if program(name)]
        self.record = record.Record(
            "sync",
            "vellum sync, and other tools that copy trees",
            columns=self.tools,
            setting={
                "filesystem": "each in memory, on a loop device",
                "cache": "sources and destinations in the page cache",
                "versions": ", ".join(filter(None, (record.version(program(name)) for name in self.tools))),
            },
        )

    def run(self):
        """Everything."""
        for kind in self.args.filesystems.split(","):
            cases = [name for name in CASES if kind == "ext4" or name in SHARING_CASES]
            if self.args.cases:
                cases = [name for name in cases if any(word in name for word in self.args.cases.split(";"))]
            with Ground(kind, cases) as ground:
                for name in cases:
                    for number in range(self.args.rounds):
                        self.round(ground, name, number)
            self.record.keep(self.args.json)

    def round(self, ground, name, number):
        """A case once, by every tool that can do it."""
        team = [tool for tool in self.tools if tool in CASES[name].tools]
        for tool in contest.order(team, number):
            source, target = ground.prepare(name, tool)
            try:
                cost = measure.run(TOOLS[tool](source, target), log="/dev/null")
                if number == 0 and not same(source, target):
                    raise measure.CommandFailed("its copy differs from the source")
            except measure.CommandFailed as failure:
                self.record.leave_out(f"{name} ({ground.kind})", tool, str(failure).splitlines()[0])
                continue
            add = lambda value, **what: self.record.add(name, tool, value, group=ground.kind, number=number, **what)
            add(cost.wall)
            add(cost.cpu, quantity="processor time")
            add(cost.peak, quantity="peak memory", unit="bytes")


def same(source, target) -> bool:
    """Whether names and contents are equal."""
    return subprocess.run(["diff", "-rq", source, target], stdout=subprocess.DEVNULL).returncode == 0


def main():
    """Runs the contest, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--filesystems", default="ext4,xfs,btrfs")
    parser.add_argument("--cases", default="", help="parts of names, with ';' between them")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--json", type=Path, help="where to keep the record")
    contest_ = Contest(parser.parse_args())
    contest_.run()
    print(report.printed(contest_.record.whole()))


if __name__ == "__main__":
    main()
