#!/usr/bin/env python3
"""How far a mount is from the floor of FUSE: the filesystem beneath, the null filesystem and Vellum, in turns.

    bench/floor.py [--rounds 9] [--count 5000] [--files 2000] [--one-processor] [--steps NAME,...] [--work DIR] [--json FILE]

VELLUM names the binary; NULLFS the null filesystem, which is built without it (`cargo build --release -p vellum-fuse
--example nullfs`). Several binaries may be compared: VELLUM="before=PATH after=PATH" gives a column to each, and ratios
are of the last. Needs root, a C compiler and tar.

The null filesystem asks of the kernel what Vellum asks, gets the same requests, and answers them from memory. It is served
in two ways: by one thread that waits on the device ("null", the floor), and by the threads of a Vellum mount ("null,
served as Vellum"), which tells what the service itself costs. COUNT names each step; FILES are in the archive that is
unpacked. With --one-processor all of it runs on one processor: where threads are placed then costs nothing, and rounds
agree far better. Below the tables stands each ratio with its target, of medians and of the least disturbed rounds.
"""

import argparse
import contextlib
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))

import contest
import record
import report
import sides

HERE = Path(__file__).resolve().parent
BENEATH, NULL, SERVED = "beneath", "null", "null, served as Vellum"
WORK, PROCESSOR = "Work", "processor time"
# Steps of names.c, in an order in which each finds what it needs, and how their rows are called.
NAMES = {
    "create": "create",
    "create4k": "create + 4 KiB",
    "mkdir": "mkdir",
    "stat": "stat, cold",
    "chmod": "chmod",
    "rename": "rename",
    "unlink": "unlink",
    "unlink4k": "unlink, 4 KiB",
    "rmdir": "rmdir",
}
TREES = ("untar", "find, cold", "rm -rf")
FILES_IN_A_DIRECTORY = 20
# Longest that a mount may take to be there, seconds.
PATIENCE = 20.0


class Null(sides.Side):
    """The null filesystem, served by one thread."""

    name = NULL
    options = ()

    def __init__(self, work, program):
        super().__init__(work)
        self.child = subprocess.Popen([program, *self.options, self.root])
        end = time.monotonic() + PATIENCE
        while not os.path.ismount(self.root):
            if self.child.poll() is not None or time.monotonic() > end:
                sys.exit(f"floor: {program} does not mount {self.root}")
            time.sleep(0.01)

    def end(self):
        subprocess.run(["umount", self.root], check=True)
        self.child.wait(timeout=PATIENCE)

    def pid(self):
        return self.child.pid


class Served(Null):
    """The same, served by the threads of a Vellum mount."""

    name = SERVED
    options = ("--session",)


class Vellum(sides.Vellum):
    """A mount by one of the binaries that are compared."""

    def __init__(self, work, name, program):
        self.name, self.program = name, program
        with served_by(program):
            super().__init__(work)

    def settle(self):
        with served_by(self.program):
            super().settle()

    def end(self):
        with served_by(self.program):
            super().end()


@contextlib.contextmanager
def served_by(program):
    """Lets `sides` call this binary."""
    before, sides.VELLUM = sides.VELLUM, program
    try:
        yield
    finally:
        sides.VELLUM = before


def binaries(told) -> dict:
    """Names and paths of those that are compared."""
    named = (word.split("=", 1) if "=" in word else ("vellum", word) for word in told.split())
    return {name: os.path.abspath(path) for name, path in named}


def null_filesystem() -> str:
    """Its program, built if nobody says where it is."""
    if told := os.environ.get("NULLFS"):
        return os.path.abspath(told)
    root = HERE.parent
    sides.run("cargo", "build", "--release", "--locked", "-q", "-p", "vellum-fuse", "--example", "nullfs", cwd=root)
    return str(root / os.environ.get("CARGO_TARGET_DIR", "target") / "release/examples/nullfs")


@contextlib.contextmanager
def mounted(work, program, compared):
    """All sides; they are given up at the end, whatever happened."""
    with contextlib.ExitStack() as stack:
        found = []

        def add(make, *arguments):
            side = make(work, *arguments)
            stack.callback(side.end)
            found.append(side)

        add(sides.Beneath)
        add(Null, program)
        add(Served, program)
        for name, path in compared.items():
            add(Vellum, name, path)
        yield found


def archive(path, count):
    """An archive as a program's sources are: files of some KiB, in directories of twenty. It is the same each time."""
    chance = random.Random(7)
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            folder = f"tree/d{number // FILES_IN_A_DIRECTORY:04}"
            if number % FILES_IN_A_DIRECTORY == 0:
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            content = chance.randbytes(min(int(chance.lognormvariate(8.3, 1.1)), 200_000)).hex().encode()
            entry = tarfile.TarInfo(f"{folder}/f{number:06}")
            entry.size, entry.mtime = len(content), 1_600_000_000 + number
            tar.addfile(entry, io.BytesIO(content))


def busy(pid) -> float:
    """Seconds of processor time that a process has had, in all its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # One that ends meanwhile had next to nothing.
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def drop_caches():
    """Names, attributes and pages that the kernel remembers go."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


class Steps:
    """What is measured, and with what."""

    def __init__(self, work, count, files):
        self.names, self.tree = work / "names", work / "tree.tar"
        self.count, self.files = count, files + files // FILES_IN_A_DIRECTORY
        sides.run(os.environ.get("CC", "cc"), "-O2", "-Wall", "-o", self.names, HERE / "names.c")
        archive(self.tree, files)

    def rows(self):
        """Rows, each with what is called with a side and gives the seconds of one of it, and how many there are."""
        for step, row in NAMES.items():
            yield row, lambda root, step=step: float(sides.output(self.names, step, root, self.count)), self.count
        trees = {
            "untar": lambda root: ("tar", "xf", self.tree, "-C", root),
            "find, cold": lambda root: ("find", f"{root}/tree", "-printf", "%s "),
            "rm -rf": lambda root: ("rm", "-rf", f"{root}/tree"),
        }
        for row, command in trees.items():
            yield row, lambda root, command=command: timed(*command(root)) / self.files, self.files


def timed(*argv) -> float:
    """Seconds of a command that must succeed."""
    start = time.perf_counter()
    sides.run(*argv)
    return time.perf_counter() - start


def one_round(steps, wanted, present, whole, number):
    """Every step once, on every side."""
    for row, step, count in steps.rows():
        if wanted and not any(word in row for word in wanted):
            continue
        for side in contest.order(present, number):
            side.settle()
            if row.endswith("cold"):
                drop_caches()
            before = busy(side.pid()) if side.pid() else 0
            whole.add(row, side.name, step(side.root), group=WORK, number=number)
            if side.pid():
                spent = (busy(side.pid()) - before) / count
                whole.add(row, side.name, spent, group=WORK, quantity=PROCESSOR, number=number)
    for side in present:
        side.empty()


def verdicts(whole) -> str:
    """Each ratio that has a target: of the rounds, of the best of each side, and of processor time."""
    lines = []
    times = {row["name"]: row for row in whole["rows"] if row["quantity"] == "time"}
    spent = {row["name"]: row for row in whole["rows"] if row["quantity"] == PROCESSOR}
    for name, row in times.items():
        most = report.target(whole, row, NULL)
        ratio = contest.ratio(row, whole["ours"], NULL)
        if most is None or ratio is None:
            continue
        least = [min(filter(None, row["samples"][side])) for side in (whole["ours"], NULL)]
        best = least[0] / least[1]
        # Where the rounds do not agree, the least disturbed ones are what can be judged.
        said = "met" if (best if ratio.noisy else ratio.value) <= most else "MISSED"
        own = " against ".join(report.seconds(contest.median(spent[name], side)) for side in (whole["ours"], NULL))
        lines.append(f"{name}: {ratio}, least by least {best:.2f} ×; target {most} ×: {said}; processor time {own}")
    return "\n".join(lines) + "\n"


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--one-processor", action="store_true", help="all of it runs on processor 0")
    parser.add_argument("--steps", default="", help="only rows with one of these words in their names")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path, help="where to keep the record")
    return parser.parse_args()


def main():
    """Mounts all sides, measures in turns, prints tables and verdicts."""
    asked = arguments()
    compared, program = binaries(os.environ.get("VELLUM", "target/dist/vellum")), null_filesystem()
    if asked.one_processor:
        os.sched_setaffinity(0, {0})
    wanted = [word for word in asked.steps.split(",") if word]
    with tempfile.TemporaryDirectory(dir=asked.work) as work, mounted(Path(work), program, compared) as present:
        whole = record.Record(
            "floor",
            "A mount and the floor of FUSE",
            columns=[side.name for side in present],
            ours=present[-1].name,
            floors=[BENEATH, NULL, SERVED],
            setting={
                "filesystem": record.filesystem(work),
                "processors": "one for all" if asked.one_processor else "",
                "requests": record.requests(),
                "versions": ", ".join(record.version(path) for path in compared.values()),
            },
        )
        steps = Steps(Path(work), asked.count, asked.files)
        for number in range(asked.rounds):
            one_round(steps, wanted, present, whole, number)
    whole.keep(asked.json)
    print(report.printed(whole.whole()))
    print(verdicts(whole.whole()))


if __name__ == "__main__":
    main()
