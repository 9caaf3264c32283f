#!/usr/bin/env python3
"""A mounted worktree, the filesystem beneath it and other mounted filesystems: the same work on each in turns.

    bench/compare/filesystem.py [--rounds 3] [--work DIR] [--steps NAME,...] [--json FILE]

VELLUM names the binary, JUICEFS that of JuiceFS, which is left out without it (metadata in SQLite, objects in a directory).
Needs root (it drops the kernel's caches), git, tar and fio. DIR should lie on a filesystem in memory (bench/ramdisk.sh) or
on a quiet disk: every side's files lie on it. Ratios are time by time, or the other's rate by ours: 1 is as fast, 2 takes
twice as long.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import contest
import record
import report
import sides

BIG = 512 << 20
BLOCK = 1 << 20
SMALL_FILES, SMALL_SIZE = 1000, 128 << 10
NAMES = 5000
FIO_SECONDS = 4
WRITERS, SYNCED = 8, 100


def run(*argv, cwd=None):
    subprocess.run(argv, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")


def path(root, *names):
    return os.path.join(root, *names)


def write_file(name, size, block):
    data = os.urandom(min(size, block))
    with open(name, "wb", buffering=0) as file:
        for _ in range(0, size, block):
            file.write(data)


def read_file(name, block=BLOCK):
    with open(name, "rb", buffering=0) as file:
        while file.read(block):
            pass


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def names(root):
    return [path(root, "names", f"file-{number:06}") for number in range(NAMES)]


def make_names(root):
    os.makedirs(path(root, "names"), exist_ok=True)
    for name in names(root):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def make_directories(root):
    os.makedirs(path(root, "dirs"))
    for number in range(NAMES):
        os.mkdir(path(root, "dirs", f"dir-{number:06}"))


def remove_directories(root):
    for number in range(NAMES):
        os.rmdir(path(root, "dirs", f"dir-{number:06}"))
    os.rmdir(path(root, "dirs"))


def small_files(root, work):
    os.makedirs(path(root, "small"), exist_ok=True)
    for number in range(SMALL_FILES):
        work(path(root, "small", str(number)))


def synced_files(root):
    os.makedirs(path(root, "synced"), exist_ok=True)

    def work(writer):
        for number in range(SYNCED):
            handle = os.open(path(root, "synced", f"{writer}-{number}"), os.O_CREAT | os.O_WRONLY)
            os.write(handle, bytes(4096))
            os.fsync(handle)
            os.close(handle)

    in_threads(WRITERS, work)


@dataclass
class Fio:
    """A workload of fio; its figure is operations in a second."""

    name: str
    kind: str
    direct: bool = False
    block: str = "4k"
    jobs: int = 1

    def run(self, root):
        """How many operations a second it does."""
        argv = ["fio", "--name=work", f"--rw={self.kind}", f"--bs={self.block}", "--size=64m", "--ioengine=psync"]
        argv += [f"--direct={int(self.direct)}", f"--numjobs={self.jobs}", "--group_reporting"]
        argv += [f"--directory={root}", f"--runtime={FIO_SECONDS}", "--time_based", "--output-format=json"]
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
        job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
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


class Steps:
    """What is measured, in order: later steps use what earlier ones made."""

    def __init__(self, tree):
        self.tree = tree
        self.all = [
            ("big write, 1 MiB blocks, with fsync", self.big_write),
            ("big read, cold", lambda root: read_file(path(root, "big"))),
            ("big read, warm", lambda root: read_file(path(root, "big"))),
            ("write 1,000 files of 128 KiB", lambda root: small_files(root, lambda n: write_file(n, SMALL_SIZE, SMALL_SIZE))),
            ("read them, cold", lambda root: small_files(root, read_file)),
            ("remove them", lambda root: shutil.rmtree(path(root, "small"))),
            ("create 5,000 files", make_names),
            ("stat, cold", lambda root: [os.stat(name) for name in names(root)]),
            ("stat, warm", lambda root: [os.stat(name) for name in names(root)]),
            ("rename", lambda root: [os.rename(name, name + "x") for name in names(root)]),
            ("unlink", lambda root: [os.unlink(name + "x") for name in names(root)]),
            ("mkdir 5,000", make_directories),
            ("rmdir", remove_directories),
            ("fsync of new 4 KiB files, 8 writers", synced_files),
            ("untar", lambda root: run("tar", "xf", self.tree, cwd=root)),
            ("find, cold", lambda root: run("find", "tree", cwd=root)),
            ("find, warm", lambda root: run("find", "tree", cwd=root)),
            ("grep -r, cold", lambda root: run("grep", "-rc", "vellum", "tree", cwd=root)),
            ("grep -r, warm", lambda root: run("grep", "-rc", "vellum", "tree", cwd=root)),
            ("git status, after untar", lambda root: run("git", "status", cwd=path(root, "tree"))),
            ("git status, warm", lambda root: run("git", "status", cwd=path(root, "tree"))),
            ("cp -r", lambda root: run("cp", "-r", "tree", "copy", cwd=root)),
            ("git status, cold", lambda root: run("git", "status", cwd=path(root, "tree"))),
            ("rm -rf, two trees", lambda root: run("rm", "-rf", "tree", "copy", cwd=root)),
        ]

    def big_write(self, root):
        write_file(path(root, "big"), BIG, BLOCK)
        with open(path(root, "big"), "rb") as file:
            os.fsync(file.fileno())


def timed(name, step, root):
    """Seconds that a step takes, with the kernel's caches as its name says."""
    if name.endswith("cold"):
        drop_caches()
    elif name.endswith("warm"):
        # Another side may have dropped them.
        step(root)
    start = time.perf_counter()
    step(root)
    return time.perf_counter() - start


def one_round(steps, wanted, present, whole, number):
    """Every step once, on every side."""
    for name, step in steps.all:
        if wanted and not any(word in name for word in wanted):
            continue
        for side in contest.order(present, number):
            settle(present)
            took = timed(name, step, side.root)
            whole.add(name, side.name, took, group="Work", number=number)
    for workload in WORKLOADS:
        if wanted and not any(word in workload.name for word in wanted):
            continue
        for side in contest.order(present, number):
            settle(present)
            what = {"group": "Rates", "quantity": "rate", "unit": "per second", "better": "more"}
            whole.add(workload.name, side.name, workload.run(side.root), number=number, **what)
    for side in present:
        side.empty()


def settle(present):
    """Writes back and publishes on every side, so that no step pays for the one before."""
    os.sync()
    for side in present:
        side.settle()


def make_tree(work):
    """The Go standard library as a git work tree, in an archive."""
    root = subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip()
    tree, archive = path(work, "tree"), path(work, "tree.tar")
    shutil.copytree(path(root, "src"), tree, symlinks=True)
    with open(path(tree, "vellum.txt"), "w") as file:
        file.write("vellum\n")
    run("git", "init", "-q", cwd=tree)
    run("git", "add", "-A", cwd=tree)
    # Nothing of git may be at work in the background while the rest is measured.
    author = ("-c", "user.name=b", "-c", "user.email=b@example.org")
    run("git", *author, "-c", "gc.auto=0", "-c", "maintenance.auto=false", "commit", "-qm", "tree", cwd=tree)
    run("tar", "cf", archive, "tree", cwd=work)
    shutil.rmtree(tree)
    return archive


def main():
    """Makes the sides, runs the rounds, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--steps", default="")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    wanted = [word for word in arguments.steps.split(",") if word]
    with tempfile.TemporaryDirectory(dir=arguments.work) as work, sides.present(Path(work)) as present:
        whole = record.Record(
            "filesystem",
            "A mounted worktree, and other filesystems",
            columns=[side.name for side in present],
            ours=sides.Vellum.name,
            floors=[sides.Beneath.name],
            setting={
                "filesystem": record.filesystem(work),
                "engine": "embedded live store, a store in a directory, encrypted",
                "cache": "cold: the kernel's caches are dropped before; warm: the step follows another that read it",
                "requests": record.requests(),
                "versions": ", ".join(filter(None, (side.version() for side in present))),
            },
        )
        steps = Steps(make_tree(work))
        for number in range(arguments.rounds):
            one_round(steps, wanted, present, whole, number)
        for side in present:
            if side.peak():
                whole.add("at most", side.name, side.peak(), group="Memory of the process", quantity="space", unit="bytes")
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
