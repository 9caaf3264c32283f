"""`vellum sync` and other tools that copy trees: fresh copies, nothing changed, one large file changed.

VELLUM, RSYNC, CP, SY, SY03, XCP, CPZ and RCLONE name the binaries (one that is missing is left out). Needs root: each
filesystem is made in memory. Sources are warm, destinations fresh, and dirty pages are written back between runs,
outside the timing. In the first round each copy is compared with its source.

Beside the time of each run stand processor time, peak memory and the bytes that it made dirty; where strace is
installed, its system calls are counted once for each case, outside the rounds. --huge adds a file of 4 GB and
1,000,000 files, which take 16 GB of memory and most of an hour.
"""

import multiprocessing
import os
import random
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from benchkit import host, measure as measuring, record
from benchkit.host import program
from benchkit.runner import Case, Option, Run

MIB = 1 << 20
BIG, HUGE = 100 * MIB, 4096 * MIB
MILLION = 1_000_000
# What is changed in the large file, or put into it: in its middle.
CHANGED, INSERTED = MIB, 4096
LONG_AGO = 1_600_000_000
SPACE, HUGE_SPACE = "3G", "10G"
# Rounds of what takes minutes.
HUGE_ROUNDS = 3


# How each is told to copy what is in SRC into DST, with times and modes.
TOOLS = {
    "vellum": lambda src, dst: [host.vellum(), "sync", "-a", f"{src}/", f"{dst}/"],
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


def huge(root: Path):
    """One file that fits no cache but the page cache."""
    root.mkdir(parents=True)
    rng = random.Random(11)
    with open(root / "huge", "wb") as file:
        for _ in range(HUGE // MIB):
            file.write(rng.randbytes(MIB))


SMALL = files(1000, range(1024, 10 * 1024), lambda n: f"f{n:04}")
MANY = files(20_000, [4096], lambda n: f"d{n // 100:03}/f{n:05}")
# Empty ones: it is names and attributes that many files are about, and their blocks would fill the memory.
MYRIADS = files(MILLION, [0], lambda n: f"d{n // 1000:03}/f{n:06}")
UPDATERS = tuple(name for name in TOOLS if name not in MAKERS)
# What writes least over an old file, where no reader is looked after.
IN_PLACE = {"vellum": ["--in-place"], "rsync": ["--inplace", "--no-whole-file"]}
# What writes least and keeps the old file whole until the new one has its name.
LEAST = {"vellum": ["--delta=always"], "rsync": ["--no-whole-file"]}
CASES = {
    "1,000 files of 1 to 10 KB": CopyCase(SMALL, files=1000),
    "100 files of 100 KB": CopyCase(files(100, [100 * 1024], lambda n: f"f{n:03}"), files=100),
    "one file of 100 MB": CopyCase(large("nothing")),
    "nested, 200 files": CopyCase(files(200, [5 * 1024], nested), files=200),
    "20,000 files of 4 KB": CopyCase(MANY, files=20_000),
    "nothing changed, 1,000 files": CopyCase(SMALL, "the same", UPDATERS, files=1000),
    "nothing changed, 20,000 files": CopyCase(MANY, "the same", UPDATERS, files=20_000),
    "1 MB changed in 100 MB": CopyCase(large("changed"), "an older one", UPDATERS),
    "4 KB inserted in 100 MB": CopyCase(large("inserted"), "an older one", UPDATERS),
    "1 MB changed in 100 MB, written least": CopyCase(large("changed"), "an older one", tuple(LEAST), flags=LEAST),
    "1 MB changed in 100 MB, in place": CopyCase(large("changed"), "an older one", tuple(IN_PLACE), flags=IN_PLACE),
    "one file of 4 GB": CopyCase(huge, huge=True),
    "1,000,000 empty files": CopyCase(MYRIADS, files=MILLION, huge=True, tools=("vellum", "rsync", "cp", "cpz")),
    "nothing changed, 1,000,000 empty files": CopyCase(MYRIADS, "the same", ("vellum", "rsync", "cp"), files=MILLION, huge=True),
}
# Where blocks can be shared only these differ from what was measured elsewhere.
SHARING = re.compile("one file of|MB changed|KB inserted")


class Ground:
    """A filesystem in memory, with the sources on it."""

    def __init__(self, kind: str, space: str):
        self.kind = kind
        self.space = space
        self.root = Path(f"/tmp/vellum-bench-{kind}-{os.getpid()}")
        self.script = host.BENCH / "ramdisk.sh"

    def __enter__(self):
        host.run(self.script, "make", self.root, self.space, self.kind)
        return self

    def __exit__(self, *_):
        host.run(self.script, "remove", self.root)

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
            host.run("cp", "-a", source, target)
        elif before == "an older one":
            host.run("cp", "-a", "--reflink=never", f"{source}.before", target)
        elif tool not in MAKERS:
            target.mkdir()
        host.settle(self.root)
        measuring.warm(source)
        if target.exists():
            measuring.warm(target)
        return source, target

    def forget(self, name):
        """Makes room after a case."""
        source = self.source(name)
        for path in (source, f"{source}.before", self.root / "dst"):
            shutil.rmtree(path, ignore_errors=True)


def is_wanted(run: Run, name, kind) -> bool:
    """Whether a case is measured on a filesystem."""
    return (
        (kind == "ext4" or SHARING.search(name) is not None)
        and (run.options.huge or not CASES[name].huge)
        and any(word in name for word in run.options.cases.split(";"))
    )


def team(run: Run, name) -> list:
    """The tools that can do a case."""
    return [tool for tool in run.record.head["columns"] if tool in CASES[name].tools]


def command(name, tool, source, target) -> list:
    """How a tool does a case."""
    argv = TOOLS[tool](source, target)
    flags = CASES[name].flags.get(tool, [])
    # After the program and, of ours, its command.
    place = 2 if tool == "vellum" else 1
    return [*argv[:place], *flags, *argv[place:]]


def one_round(run: Run, ground: Ground, name):
    """A case once, by every tool that can do it."""
    for tool in run.turns(team(run, name)):
        source, target = ground.prepare(name, tool)
        with run.guard(f"{name} ({ground.kind})", tool):
            cost = measuring.run(command(name, tool, source, target))
            if run.number == 0 and not host.is_same(source, target):
                raise host.CommandFailed("its copy differs from the source")
            run.add_cost(name, tool, cost, group=ground.kind)
            run.add(name, tool, cost.dirtied, group=ground.kind, quantity="written", unit="bytes")


def count_calls(run: Run, ground: Ground, name):
    """System calls of every tool from its start to its end, divided by files."""
    log = ground.root / "calls"
    for tool in team(run, name):
        source, target = ground.prepare(name, tool)
        try:
            measuring.run(["strace", "-f", "-qq", "-c", "-U", "calls", "-o", log, *command(name, tool, source, target)])
        except host.CommandFailed:
            continue
        calls = int(re.search(r"(\d+) total", log.read_text())[1])
        quantity = "system calls a file" if CASES[name].files > 1 else "system calls"
        run.add(name, tool, calls / CASES[name].files, group=ground.kind, quantity=quantity, unit="count")


def measure_on(run: Run, kind, is_huge: bool):
    """All cases of one filesystem that are huge, or that are not."""
    names = [name for name in CASES if CASES[name].huge == is_huge and is_wanted(run, name, kind)]
    if not names:
        return
    with Ground(kind, HUGE_SPACE if is_huge else SPACE) as ground:
        for name in names:
            for _ in run.rounds(HUGE_ROUNDS if is_huge else None):
                one_round(run, ground, name)
            if shutil.which("strace"):
                count_calls(run, ground, name)
            ground.forget(name)


def measure(run: Run):
    """All filesystems, one after the other."""
    tools = [name for name in run.list_option("tools") if program(name)]
    run.start(
        tools,
        filesystem="each in memory, on a loop device",
        cache="sources and destinations in the page cache",
        started_by=measuring.STARTED_BY,
        versions=record.versions(map(program, tools)),
    )
    for kind in run.list_option("filesystems"):
        for is_huge in (False, True):
            measure_on(run, kind, is_huge)
            run.keep()


CASE = Case(
    "sync",
    "vellum sync, and other tools that copy trees",
    measure,
    help=__doc__,
    options=(
        Option("filesystems", "ext4,xfs,btrfs", "where it is measured"),
        Option("cases", "", "parts of names, with ';' between them"),
        Option("tools", ",".join(TOOLS), "which take part, if they are installed"),
        Option("huge", False, "also a file of 4 GB and a million files"),
    ),
    whole=("--huge",),
    short=("--rounds 1 --filesystems ext4 --cases '1,000 files'",),
)
