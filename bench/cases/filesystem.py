"""A mounted worktree, the filesystem beneath it and other mounted filesystems: the same work on each in turns.

JUICEFS names the binary of JuiceFS, which is left out without it (metadata in SQLite, objects in a directory). Needs
root (it drops the kernel's caches), git, tar, go and fio. --work should be on a filesystem in memory (bench/ramdisk.sh)
or on a quiet disk: every side's files lie on it. Ratios are time by time, or the other's rate by ours: 1 is as fast, 2
takes twice as long.
"""

import concurrent.futures
import json
import os
import shutil
import time
from dataclasses import dataclass
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


def write_file(name, size, block):
    """A file of random bytes, written in blocks."""
    data = os.urandom(min(size, block))
    with open(name, "wb", buffering=0) as file:
        for _ in range(0, size, block):
            file.write(data)


def read_file(name, block=BLOCK):
    """All of a file."""
    with open(name, "rb", buffering=0) as file:
        while file.read(block):
            pass


def names(root):
    """The paths of the files that are made, looked at, renamed and removed."""
    return [f"{root}/names/file-{number:06}" for number in range(NAMES)]


def make_names(root):
    """Empty files."""
    os.makedirs(Path(root, "names"), exist_ok=True)
    for name in names(root):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def make_directories(root):
    """As many directories."""
    os.makedirs(Path(root, "dirs"))
    for number in range(NAMES):
        os.mkdir(Path(root, "dirs", f"dir-{number:06}"))


def remove_directories(root):
    """Removes them."""
    for number in range(NAMES):
        os.rmdir(Path(root, "dirs", f"dir-{number:06}"))
    os.rmdir(Path(root, "dirs"))


def small_files(root, work):
    """Does something with the path of each small file."""
    os.makedirs(Path(root, "small"), exist_ok=True)
    for number in range(SMALL_FILES):
        work(Path(root, "small", str(number)))


def synced_files(root):
    """New files, each flushed, by several writers."""
    os.makedirs(Path(root, "synced"), exist_ok=True)

    def work(writer):
        for number in range(SYNCED):
            handle = os.open(Path(root, "synced", f"{writer}-{number}"), os.O_CREAT | os.O_WRONLY)
            os.write(handle, bytes(4096))
            os.fsync(handle)
            os.close(handle)

    with concurrent.futures.ThreadPoolExecutor(WRITERS) as writers:
        # All of them are waited for, and whoever failed fails the step.
        list(writers.map(work, range(WRITERS)))


@dataclass
class Fio:
    """A workload of fio; its figure is operations in a second."""

    name: str
    kind: str
    direct: bool = False
    block: str = "4k"
    jobs: int = 1

    def rate(self, root) -> float:
        """Operations in a second."""
        argv = ["fio", "--name=work", f"--rw={self.kind}", f"--bs={self.block}", "--size=64m", "--ioengine=psync"]
        argv += [f"--direct={int(self.direct)}", f"--numjobs={self.jobs}", "--group_reporting"]
        argv += [f"--directory={root}", f"--runtime={FIO_SECONDS}", "--time_based", "--output-format=json"]
        printed = host.run(*argv)
        job = json.loads(printed[printed.index("{") :])["jobs"][0]
        return job["write" if "write" in self.kind else "read"]["iops"]


WORKLOADS = (
    Fio("fio 4 KiB random read, direct", "randread", direct=True),
    Fio("fio 4 KiB random read", "randread"),
    Fio("fio 4 KiB random write, direct", "randwrite", direct=True),
    Fio("fio 4 KiB random write", "randwrite"),
    Fio("fio 1 MiB sequential write, direct, 4 jobs", "write", direct=True, block="1m", jobs=4),
    Fio("fio 1 MiB sequential read, direct, 4 jobs", "read", direct=True, block="1m", jobs=4),
    Fio("fio 1 MiB random write, direct, 4 jobs", "randwrite", direct=True, block="1m", jobs=4),
    Fio("fio 1 MiB random read, direct, 4 jobs", "randread", direct=True, block="1m", jobs=4),
)


def big_write(root):
    """A large file, flushed."""
    write_file(Path(root, "big"), BIG, BLOCK)
    with open(Path(root, "big"), "rb") as file:
        os.fsync(file.fileno())


def command(*argv, inside="") -> Callable:
    """A step that runs a command in the directory, or in one within it."""
    return lambda root: host.run(*argv, cwd=Path(root, inside))


def steps(archive) -> dict:
    """What is measured, in order: later steps use what earlier ones made."""
    read_big = lambda root: read_file(Path(root, "big"))
    write_small = lambda path: write_file(path, SMALL_SIZE, SMALL_SIZE)
    look = lambda root: [os.stat(name) for name in names(root)]
    find, grep = command("find", "tree"), command("grep", "-rc", "vellum", "tree")
    status = command("git", "status", inside="tree")
    return {
        "big write, 1 MiB blocks, with fsync": big_write,
        "big read, cold": read_big,
        "big read, warm": read_big,
        "write 1,000 files of 128 KiB": lambda root: small_files(root, write_small),
        "read them, cold": lambda root: small_files(root, read_file),
        "remove them": lambda root: shutil.rmtree(Path(root, "small")),
        "create 5,000 files": make_names,
        "stat, cold": look,
        "stat, warm": look,
        "rename": lambda root: [os.rename(name, name + "x") for name in names(root)],
        "unlink": lambda root: [os.unlink(name + "x") for name in names(root)],
        "mkdir 5,000": make_directories,
        "rmdir": remove_directories,
        "fsync of new 4 KiB files, 8 writers": synced_files,
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


def settle(present):
    """Writes back and publishes on every side, so that no step pays for the one before."""
    os.sync()
    for side in present:
        side.settle()


def is_wanted(run: Run, name) -> bool:
    """Whether --steps asks for a row."""
    words = run.list_option("steps")
    return not words or any(word in name for word in words)


def one_round(run: Run, todo: dict, present: list):
    """Every step once, on every side."""
    for name, step in todo.items():
        for side in run.turns(present):
            settle(present)
            run.add(name, side.name, timed(name, step, side.root), group="Work")
    rate = {"group": "Rates", "quantity": "rate", "unit": "per second", "better": "more"}
    for workload in WORKLOADS:
        for side in run.turns(present) if is_wanted(run, workload.name) else ():
            settle(present)
            run.add(workload.name, side.name, workload.rate(side.root), **rate)
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
    todo = {name: step for name, step in steps(archive).items() if is_wanted(run, name)}
    if "untar" in todo:
        make_archive(archive)
    with mounts.present([lambda kind=kind: kind(run.work) for kind in kinds]) as present:
        run.start(
            [side.name for side in present],
            floors=[mounts.Beneath.name],
            filesystem=record.filesystem(run.work),
            engine="embedded live store, a store in a directory, encrypted",
            cache="cold: the kernel's caches are dropped before; warm: the step follows another that read it",
            requests=record.requests(),
            versions=", ".join(filter(None, (side.version() for side in present))),
        )
        for _ in run.rounds():
            one_round(run, todo, present)
        for side in present:
            if side.peak():
                run.add("at most", side.name, side.peak(), group="Memory of the process", quantity="space", unit="bytes")


CASE = Case(
    "filesystem",
    "A mounted worktree, and other filesystems",
    measure,
    help=__doc__,
    rounds=3,
    options=(Option("steps", "", "only rows with one of these words in their names"),),
    short=("--rounds 1 --steps big,create,mkdir,rmdir,fsync",),
)
