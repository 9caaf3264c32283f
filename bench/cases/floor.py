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
from functools import partial
from pathlib import Path

import report
from benchkit import contest, host, mounts, record
from benchkit.figures import seconds
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
TREES = {
    "untar": ["tar", "xf", "{archive}", "-C", "{root}"],
    "find, cold": ["find", "{root}/tree", "-printf", "%s "],
    "rm -rf": ["rm", "-rf", "{root}/tree"],
}
FILES_IN_A_DIRECTORY = 20


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


def make_steps(run: Run) -> dict:
    """Rows in their order: how many there are of each, and what gives the seconds of one in a directory."""
    program, archive, count = host.compile_program("names.c", run.work), run.work / "tree.tar", run.options.count
    files = run.options.files + run.options.files // FILES_IN_A_DIRECTORY
    make_archive(archive, run.options.files)

    def time_names(step, root) -> float:
        return float(host.run(program, step, root, count))

    def time_tree(words, root) -> float:
        return host.timed(*(word.format(archive=archive, root=root) for word in words)) / files

    steps = {row: (count, partial(time_names, step)) for step, row in NAMES.items()}
    steps |= {row: (files, partial(time_tree, words)) for row, words in TREES.items()}
    return {row: step for row, step in steps.items() if run.is_wanted(row)}


def measure_step(run: Run, row: str, step: tuple, side: mounts.Beneath):
    """One step on one side: its time, and what the side's process took for it."""
    count, seconds = step
    side.settle()
    if row.endswith("cold"):
        host.drop_caches()
    before = side.processor_time()
    run.add(row, side.name, seconds(side.root), group=WORK)
    if side.pid:
        run.add(row, side.name, (side.processor_time() - before) / count, group=WORK, quantity=PROCESSOR)


def measure(run: Run):
    """Mounts all sides, and runs the steps in turns."""
    compared, null = binaries(os.environ.get("VELLUM") or host.vellum()), null_filesystem()
    if run.options.one_processor:
        os.sched_setaffinity(0, {0})
    steps = make_steps(run)
    makers = [
        partial(mounts.Beneath, run.work),
        partial(mounts.Null, run.work, null, NULL),
        partial(mounts.Null, run.work, null, SERVED, ["--session"]),
        *(partial(mounts.Vellum, run.work, path, name) for name, path in compared.items()),
    ]
    with mounts.present(makers) as present:
        names = [side.name for side in present]
        setting = {"requests": record.requests(), "versions": compared.values()}
        setting |= {"processors": "one for all" if run.options.one_processor else ""}
        run.start(names, ours=names[-1], floors=[BENEATH, NULL, SERVED], **setting)
        for _ in run.rounds():
            for row, step in steps.items():
                for side in run.turns(present):
                    measure_step(run, row, step, side)
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
        own = " against ".join(seconds(contest.median(spent[name], side)) for side in (whole["ours"], NULL))
        lines.append(f"{name}: {ratio}, least by least {best:.2f} ×; target {most} ×: {said}; processor time {own}")
    return "\n".join(lines) + "\n"


CASE = Case(
    "floor",
    "A mount and the floor of FUSE",
    measure,
    options=(
        Option("count", 5000, "names of each step"),
        Option("files", 2000, "in the archive that is unpacked"),
        Option("one-processor", False, "all of it runs on processor 0"),
        Option("steps", "", "only rows with one of these words in their names"),
    ),
    rounds=9,
    short=("--rounds 1 --count 200 --files 100",),
    conclusions=verdicts,
)
