"""How far a mount is from the floor of FUSE: the filesystem beneath, the null filesystem and Vellum, in turns.

VELLUM names the binary; NULLFS the null filesystem, which is built without it (`cargo build --release -p vellum-fuse
--example nullfs`). Several binaries may be compared: VELLUM="before=PATH after=PATH" gives a column to each, and ratios
are of the last. Needs root, a C compiler and tar.

The null filesystem asks of the kernel what Vellum asks, gets the same requests, and answers them from memory. It is
served in two ways: by one thread that waits on the device ("null", the floor), and by the threads of a Vellum mount
("null, served as Vellum"), which tells what the service itself costs. With --one-processor all of it runs on one
processor: where threads are placed then costs nothing, and rounds agree far better. Below the tables stands each ratio
with its target, of medians and of the least disturbed rounds.
"""

import io
import os
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import report
from benchkit import contest, host, mounts, record
from benchkit.runner import Case, Option, Run

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
FILES_IN_A_DIRECTORY = 20


@dataclass
class Step:
    """A row: what gives the seconds of one of it in a directory, and how many there are."""

    row: str
    seconds: Callable
    count: int


def binaries(text: str) -> dict:
    """Names and paths of those that are compared."""
    named = (word.split("=", 1) if "=" in word else ("vellum", word) for word in text.split())
    return {name: os.path.abspath(path) for name, path in named}


def null_filesystem() -> str:
    """Its program, built if nobody says where it is."""
    if path := os.environ.get("NULLFS"):
        return os.path.abspath(path)
    host.run("cargo", "build", "--release", "--locked", "-q", "-p", "vellum-fuse", "--example", "nullfs", cwd=host.ROOT)
    return str(host.ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/examples/nullfs")


def make_archive(path: Path, count: int):
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


def make_steps(run: Run) -> list:
    """What is measured, in its order."""
    program, tree = host.compile_program("names.c", run.work), run.work / "tree.tar"
    files = run.options.files + run.options.files // FILES_IN_A_DIRECTORY
    make_archive(tree, run.options.files)

    def of_names(step):
        return lambda root: float(host.run(program, step, root, run.options.count))

    def of_tree(*command):
        return lambda root: host.timed(*(str(word).replace("ROOT", str(root)) for word in command)) / files

    return [
        *(Step(row, of_names(step), run.options.count) for step, row in NAMES.items()),
        Step("untar", of_tree("tar", "xf", tree, "-C", "ROOT"), files),
        Step("find, cold", of_tree("find", "ROOT/tree", "-printf", "%s "), files),
        Step("rm -rf", of_tree("rm", "-rf", "ROOT/tree"), files),
    ]


def measure_step(run: Run, step: Step, side: mounts.Side):
    """One step on one side: its time, and what the side's process took for it."""
    side.settle()
    if step.row.endswith("cold"):
        host.drop_caches()
    before = side.processor_time()
    run.add(step.row, side.name, step.seconds(side.root), group=WORK)
    if side.pid():
        spent = (side.processor_time() - before) / step.count
        run.add(step.row, side.name, spent, group=WORK, quantity=PROCESSOR)


def measure(run: Run):
    """Mounts all sides, and runs the steps in turns."""
    compared, null = binaries(os.environ.get("VELLUM") or host.vellum()), null_filesystem()
    if run.options.one_processor:
        os.sched_setaffinity(0, {0})
    makers = [
        lambda: mounts.Beneath(run.work),
        lambda: mounts.Null(run.work, null, NULL),
        lambda: mounts.Null(run.work, null, SERVED, ["--session"]),
        *(lambda name=name, path=path: mounts.Vellum(run.work, path, name) for name, path in compared.items()),
    ]
    steps, words = make_steps(run), run.list_option("steps")
    with mounts.present(makers) as present:
        names = [side.name for side in present]
        setting = {"filesystem": record.filesystem(run.work), "requests": record.requests()}
        setting |= {"processors": "one for all" if run.options.one_processor else ""}
        versions = record.versions(compared.values())
        run.start(names, ours=names[-1], floors=[BENEATH, NULL, SERVED], **setting, versions=versions)
        for _ in run.rounds():
            for step in steps:
                if not words or any(word in step.row for word in words):
                    for side in run.turns(present):
                        measure_step(run, step, side)
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


CASE = Case(
    "floor",
    "A mount and the floor of FUSE",
    measure,
    help=__doc__,
    rounds=9,
    options=(
        Option("count", 5000, "names of each step"),
        Option("files", 2000, "in the archive that is unpacked"),
        Option("one-processor", False, "all of it runs on processor 0"),
        Option("steps", "", "only rows with one of these words in their names"),
    ),
    short=("--rounds 1 --count 200 --files 100",),
    conclusions=verdicts,
)
