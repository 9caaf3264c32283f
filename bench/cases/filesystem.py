"""A mounted worktree, the filesystem beneath it and other mounted filesystems: the same work on each in turns.

JUICEFS names the binary of JuiceFS, which is left out without it (metadata in SQLite, objects in a directory). Needs
root (it drops the kernel's caches), git, tar, go and fio. --work should be on a filesystem in memory (bench/ramdisk.sh)
or on a quiet disk: every side's files lie on it. Ratios are time by time, or the other's rate by ours: 1 is as fast, 2
takes twice as long.
"""

import concurrent.futures
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Callable

from benchkit import host, mounts, record
from benchkit.runner import Case, Option, Run

BIG = 512 << 20
BLOCK = 1 << 20
SMALL_FILES, SMALL_SIZE = 1000, 128 << 10
NAMES = 5000
FIO_SECONDS = 4
WRITERS, SYNCED = 8, 100
# Workloads of fio, whose figures are operations in a second: what it is told of each.
WORKLOADS = {
    "fio 4 KiB random read, direct": "--rw=randread --direct=1 --bs=4k",
    "fio 4 KiB random read": "--rw=randread --direct=0 --bs=4k",
    "fio 4 KiB random write, direct": "--rw=randwrite --direct=1 --bs=4k",
    "fio 4 KiB random write": "--rw=randwrite --direct=0 --bs=4k",
    "fio 1 MiB sequential write, direct, 4 jobs": "--rw=write --direct=1 --bs=1m --numjobs=4",
    "fio 1 MiB sequential read, direct, 4 jobs": "--rw=read --direct=1 --bs=1m --numjobs=4",
    "fio 1 MiB random write, direct, 4 jobs": "--rw=randwrite --direct=1 --bs=1m --numjobs=4",
    "fio 1 MiB random read, direct, 4 jobs": "--rw=randread --direct=1 --bs=1m --numjobs=4",
}
FIO = f"--size=64m --ioengine=psync --group_reporting --runtime={FIO_SECONDS} --time_based"
RATE = {"group": "Rates", "quantity": "rate", "unit": "per second", "better": "more"}


def each(folder: str, count: int, work: Callable) -> Callable:
    """A step that does something with each of so many paths in a directory of this name."""

    def step(root: Path):
        os.makedirs(root / folder, exist_ok=True)
        for number in range(count):
            work(f"{root}/{folder}/{number:06}")

    return step


def write_file(name, size=SMALL_SIZE, block=SMALL_SIZE, *, is_flushed=False):
    """A file of random bytes, written in blocks."""
    data = os.urandom(min(size, block))
    with open(name, "wb", buffering=0) as file:
        for _ in range(0, size, block):
            file.write(data)
        if is_flushed:
            os.fsync(file.fileno())


def read_file(name):
    """All of a file."""
    with open(name, "rb", buffering=0) as file:
        while file.read(BLOCK):
            pass


def create(name):
    """An empty file, which must be new."""
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def write_synced(root: Path):
    """New files, each flushed, by several writers."""
    os.makedirs(root / "synced", exist_ok=True)

    def work(writer):
        for number in range(SYNCED):
            handle = os.open(root / "synced" / f"{writer}-{number}", os.O_CREAT | os.O_WRONLY)
            os.write(handle, bytes(4096))
            os.fsync(handle)
            os.close(handle)

    with concurrent.futures.ThreadPoolExecutor(WRITERS) as writers:
        # All of them are waited for, and whoever failed fails the step.
        list(writers.map(work, range(WRITERS)))


def command(*argv, inside="") -> Callable:
    """A step that runs a command in the directory, or in one within it."""
    return lambda root: host.run(*argv, cwd=root / inside)


def remove_directories(root: Path):
    """Removes those that were made, and what they are in."""
    each("dirs", NAMES, os.rmdir)(root)
    os.rmdir(root / "dirs")


def steps(archive) -> dict:
    """What is measured, in order: later steps use what earlier ones made."""
    read_big = lambda root: read_file(root / "big")
    look, status = each("names", NAMES, os.stat), command("git", "status", inside="tree")
    find, grep = command("find", "tree"), command("grep", "-rc", "vellum", "tree")
    return {
        "big write, 1 MiB blocks, with fsync": lambda root: write_file(root / "big", BIG, BLOCK, is_flushed=True),
        "big read, cold": read_big,
        "big read, warm": read_big,
        "write 1,000 files of 128 KiB": each("small", SMALL_FILES, write_file),
        "read them, cold": each("small", SMALL_FILES, read_file),
        "remove them": lambda root: shutil.rmtree(root / "small"),
        "create 5,000 files": each("names", NAMES, create),
        "stat, cold": look,
        "stat, warm": look,
        "rename": each("names", NAMES, lambda name: os.rename(name, name + "x")),
        "unlink": each("names", NAMES, lambda name: os.unlink(name + "x")),
        "mkdir 5,000": each("dirs", NAMES, os.mkdir),
        "rmdir": remove_directories,
        "fsync of new 4 KiB files, 8 writers": write_synced,
        "untar": command("tar", "xf", archive),
        "find, cold": find,
        "find, warm": find,
        "grep -r, cold": grep,
        "grep -r, warm": grep,
        "git status, after untar": status,
        "git status, warm": status,
        "cp -r": command("cp", "-r", "tree", "copy"),
        "git status, cold": status,
        "rm -rf, two trees": command("rm", "-rf", "tree", "copy"),
    }


def timed(name, step, root) -> float:
    """Seconds that a step takes, with the kernel's caches as its name says."""
    if name.endswith("cold"):
        host.drop_caches()
    elif name.endswith("warm"):
        # Another side may have dropped them.
        step(root)
    start = time.perf_counter()
    step(root)
    return time.perf_counter() - start


def one_round(run: Run, todo: dict, present: list):
    """Every step once, on every side. All sides are at rest before, so that no step pays for the one before."""
    wanted = [name for name in (*todo, *WORKLOADS) if run.is_wanted(name)]
    for name in wanted:
        for side in run.turns(present):
            os.sync()
            for each_side in present:
                each_side.settle()
            if name in todo:
                run.add(name, side.name, timed(name, todo[name], side.root), group="Work")
            else:
                run.add(name, side.name, host.fio(side.root, WORKLOADS[name], FIO)["iops"], **RATE)
    for side in present:
        side.empty()


def make_archive(archive: Path):
    """The Go standard library as a git work tree, in an archive."""
    tree = archive.parent / "tree"
    shutil.copytree(Path(host.run("go", "env", "GOROOT"), "src"), tree, symlinks=True)
    (tree / "vellum.txt").write_text("vellum\n")
    # Nothing of git may be at work in the background while the rest is measured.
    settings = ("user.name=b", "user.email=b@example.org", "gc.auto=0", "maintenance.auto=false")
    git = ["git", *(word for setting in settings for word in ("-c", setting))]
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "tree")):
        host.run(*git, *arguments, cwd=tree)
    host.run("tar", "cf", archive, "tree", cwd=archive.parent)
    shutil.rmtree(tree)


def measure(run: Run):
    """Makes the sides, runs the rounds."""
    kinds = [mounts.Beneath, mounts.Vellum, *([mounts.JuiceFs] if os.environ.get("JUICEFS") else [])]
    archive = run.work / "tree.tar"
    if run.is_wanted("untar"):
        make_archive(archive)
    with mounts.present([partial(kind, run.work) for kind in kinds]) as present:
        run.start(
            [side.name for side in present],
            floors=[mounts.Beneath.name],
            engine="embedded live store, a store in a directory, encrypted",
            cache="cold: the kernel's caches are dropped before; warm: the step follows another that read it",
            requests=record.requests(),
            versions=", ".join(filter(None, (side.version() for side in present))),
        )
        for _ in run.rounds():
            one_round(run, steps(archive), present)
        memory = {"group": "Memory of the process", "quantity": "space", "unit": "bytes"}
        for side in filter(mounts.Beneath.peak, present):
            run.add("at most", side.name, side.peak(), **memory)


CASE = Case(
    "filesystem",
    "A mounted worktree, and other filesystems",
    measure,
    options=(Option("steps", "", "only rows with one of these words in their names"),),
    rounds=3,
    short=("--rounds 1 --steps big,create,mkdir,rmdir,fsync",),
)
