"""`vellum sync` and other tools that copy trees: fresh copies, nothing changed, one large file changed.

VELLUM, RSYNC, CP, SY, SY03, XCP, CPZ and RCLONE name the binaries (one that is missing is left out). Needs root: each
filesystem is made in memory. Sources are warm, destinations fresh, and dirty pages are written back between runs,
outside the timing. In the first round each copy is compared with its source.

Beside the time of each run stand processor time, peak memory and the bytes that it made dirty; where strace is
installed, its system calls are counted once for each case, outside the rounds. --huge adds a file of 4 GB and
1,000,000 files, which take 16 GB of memory and most of an hour.
"""

import contextlib
import multiprocessing
import os
import random
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from benchkit import host, measure as measuring, mounts, trees
from benchkit.host import program
from benchkit.runner import Case, Option, Run

MIB = 1 << 20
BIG = 100 * MIB
MILLION = 1_000_000
# What is changed in the large file, or put into it: in its middle.
CHANGED, INSERTED = MIB, 4096
LONG_AGO = 1_600_000_000
SPACE, HUGE_SPACE = "3G", "10G"
# Rounds of what takes minutes.
HUGE_ROUNDS = 3
# How each is told to copy what is in {src} into {dst}, with times and modes; {flags} are those of the case.
TOOLS = {
    "vellum": "sync {flags} -a {src}/ {dst}/",
    "rsync": "{flags} -a {src}/ {dst}/",
    "cp": "-a --reflink=auto {src}/. {dst}/",
    "sy": "-a -q {src}/ {dst}/",
    "sy03": "-a -q {src}/ {dst}/",
    "xcp": "-r --no-progress -T {src} {dst}",
    "cpz": "{src} {dst}",
    "rclone": "copy {src} {dst}",
}
# These make the destination themselves, and do not look at what is there.
MAKERS = ("xcp", "cpz")
UPDATERS = tuple(name for name in TOOLS if name not in MAKERS)


@dataclass
class CopyCase:
    """A source, and what the destination holds before."""

    make: Callable
    before: str = "nothing"
    tools: tuple = tuple(TOOLS)
    # Regular files of the source, by which system calls are divided.
    files: int = 1
    # Whether only --huge asks for it.
    huge: bool = False
    # What a tool is told beside all else.
    flags: dict = field(default_factory=dict)


def nested(number, each=40):
    """Forty files, or so many, at each of some levels."""
    return Path(*(f"level{level}" for level in range(number // each + 1))) / f"f{number:03}"


def levels(count):
    """Three files at each of some levels."""
    return CopyCase(trees.files(3 * count, [1024], lambda n: nested(n, 3), seed=42), files=3 * count)


def few(count):
    """Some files of 1 KiB."""
    return CopyCase(trees.files(count, [1024], lambda n: f"f{n:04}", seed=42), files=count)


def one(mib):
    """One file, small enough that what a program does once counts."""
    return CopyCase(trees.files(1, [mib * MIB], lambda _: "one", seed=42))


def large(change):
    """One large file, and beside the source what the destination has of it."""

    def make(root: Path):
        old = random.Random(9).randbytes(BIG)
        middle, new = BIG // 2, random.Random(10).randbytes(CHANGED)
        content = {
            "nothing": old,
            "changed": old[:middle] + new + old[middle + CHANGED :],
            "inserted": old[:middle] + new[:INSERTED] + old[middle:],
        }[change]
        before = root.parent / f"{root.name}.before"
        for folder, held in ((root, content), (before, old)):
            folder.mkdir(parents=True)
            (folder / "large").write_bytes(held)
        os.utime(before / "large", (LONG_AGO, LONG_AGO))

    return make


SMALL = trees.files(1000, range(1024, 10 * 1024), lambda n: f"f{n:04}", seed=42)
MANY = trees.files(20_000, [4096], lambda n: f"d{n // 100:03}/f{n:05}", seed=42)
# Empty ones: it is names and attributes that many files are about, and their blocks would fill the memory.
MYRIADS = trees.files(MILLION, [0], lambda n: f"d{n // 1000:03}/f{n:06}", seed=42)
# One file that fits no cache but the page cache.
HUGE = trees.files(1, [4096 * MIB], lambda _: "huge", seed=11)
# What writes least over an old file, where no reader is looked after.
IN_PLACE = {"vellum": "--in-place", "rsync": "--inplace --no-whole-file"}
# What writes least and keeps the old file whole until the new one has its name.
LEAST = {"vellum": "--delta=always", "rsync": "--no-whole-file"}
CASES = {
    "1,000 files of 1 to 10 KB": CopyCase(SMALL, files=1000),
    "100 files of 100 KB": CopyCase(trees.files(100, [100 * 1024], lambda n: f"f{n:03}", seed=42), files=100),
    "one file of 100 MB": CopyCase(large("nothing")),
    "nested, 200 files": CopyCase(trees.files(200, [5 * 1024], nested, seed=42), files=200),
    "20,000 files of 4 KB": CopyCase(MANY, files=20_000),
    "nothing changed, 1,000 files": CopyCase(SMALL, "the same", UPDATERS, files=1000),
    "nothing changed, 20,000 files": CopyCase(MANY, "the same", UPDATERS, files=20_000),
    "1 MB changed in 100 MB": CopyCase(large("changed"), "an older one", UPDATERS),
    "4 KB inserted in 100 MB": CopyCase(large("inserted"), "an older one", UPDATERS),
    "1 MB changed in 100 MB, written least": CopyCase(large("changed"), "an older one", tuple(LEAST), flags=LEAST),
    "1 MB changed in 100 MB, in place": CopyCase(large("changed"), "an older one", tuple(IN_PLACE), flags=IN_PLACE),
    **{f"{count} files of 1 KB": few(count) for count in (10, 50, 100, 500)},
    **{f"{count} levels, 3 files at each": levels(count) for count in (5, 10, 20)},
    **{f"one file of {mib} MB": one(mib) for mib in (1, 5, 10, 50)},
    "nothing changed, 100 files": CopyCase(few(100).make, "the same", UPDATERS, files=100),
    "one file of 4 GB": CopyCase(HUGE, huge=True),
    "1,000,000 empty files": CopyCase(MYRIADS, files=MILLION, huge=True, tools=("vellum", "rsync", "cp", "cpz")),
    "nothing changed, 1,000,000 empty files": CopyCase(
        MYRIADS, "the same", ("vellum", "rsync", "cp"), files=MILLION, huge=True
    ),
}
# Where blocks can be shared only these differ from what was measured elsewhere.
SHARING = re.compile("one file of|MB changed|KB inserted")


def make_source(source: Path, name: str):
    """Makes a case's source."""
    source.parent.mkdir(exist_ok=True)
    # In a process of its own: those that are measured would inherit the memory that it takes as their peak.
    maker = multiprocessing.Process(target=CASES[name].make, args=(source,))
    maker.start()
    maker.join()
    if maker.exitcode != 0:
        sys.exit(f"{name}: its source could not be made")


def prepare(source: Path, target: Path, before: str, tool: str):
    """The destination before a run, and both at rest."""
    shutil.rmtree(target, ignore_errors=True)
    if before == "the same":
        host.run("cp", "-a", source, target)
    elif before == "an older one":
        host.run("cp", "-a", "--reflink=never", f"{source}.before", target)
    elif tool not in MAKERS:
        target.mkdir()
    host.settle(source)
    for tree in filter(Path.exists, (source, target)):
        measuring.warm(tree)


def measure_case(run: Run, root: Path, kind: str, name: str):
    """A case in turns, by all tools that can do it; then once more, to count their system calls."""
    case, source, target, log = CASES[name], root / "src/tree", root / "dst", root / "calls"
    commands = {}
    for tool in run.record.head["columns"]:
        if tool in case.tools:
            words = TOOLS[tool].format(src=source, dst=target, flags=case.flags.get(tool, ""))
            commands[tool] = [program(tool), *shlex.split(words)]
    make_source(source, name)
    for number in run.rounds(HUGE_ROUNDS if case.huge else None):
        for tool in run.turns(commands):
            prepare(source, target, case.before, tool)
            with run.guard(f"{name} ({kind})", tool):
                cost = measuring.run(commands[tool])
                if number == 0 and not host.is_same(source, target):
                    raise host.CommandFailed("its copy differs from the source")
                run.add_cost(name, tool, cost, group=kind)
                run.add(name, tool, cost.dirtied, group=kind, quantity="written", unit="bytes")
    for tool in commands if shutil.which("strace") else ():
        prepare(source, target, case.before, tool)
        with contextlib.suppress(host.CommandFailed):
            measuring.run(["strace", "-f", "-qq", "-c", "-U", "calls", "-o", log, *commands[tool]])
            # From its start to its end, divided by files.
            calls = int(re.search(r"(\d+) total", log.read_text())[1])
            quantity = "system calls a file" if case.files > 1 else "system calls"
            run.add(name, tool, calls / case.files, group=kind, quantity=quantity, unit="count")
    for path in (source, f"{source}.before", target):
        shutil.rmtree(path, ignore_errors=True)


def is_wanted(run: Run, name, kind) -> bool:
    """Whether a case is measured on a filesystem."""
    return (
        (kind == "ext4" or SHARING.search(name) is not None)
        and (run.options.huge or not CASES[name].huge)
        and any(word in name for word in run.options.cases.split(";"))
    )


def measure(run: Run):
    """All filesystems, one after the other: first all cases that are not huge."""
    tools = [name for name in run.list_option("tools") if program(name)]
    run.start(
        tools,
        filesystem="each in memory, on a loop device",
        cache="sources and destinations in the page cache",
        started_by=measuring.STARTED_BY,
        versions=map(program, tools),
    )
    for kind in run.list_option("filesystems"):
        for is_huge in (False, True):
            names = [name for name in CASES if CASES[name].huge == is_huge and is_wanted(run, name, kind)]
            if names:
                with mounts.ground(kind, HUGE_SPACE if is_huge else SPACE) as root:
                    for name in names:
                        measure_case(run, root, kind, name)
            run.keep()


CASE = Case(
    "sync",
    "vellum sync, and other tools that copy trees",
    measure,
    options=(
        Option("filesystems", "ext4,xfs,btrfs", "where it is measured"),
        Option("cases", "", "parts of names, with ';' between them"),
        Option("tools", ",".join(TOOLS), "which take part, if they are installed"),
        Option("huge", False, "also a file of 4 GB and a million files"),
    ),
    whole=("--huge",),
    short=("--rounds 1 --filesystems ext4 --cases '1,000 files'",),
)
