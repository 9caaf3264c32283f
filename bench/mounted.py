#!/usr/bin/env python3
"""Snapshot, fork and restore of a mounted worktree, and the first listing of one, by the number of its files.

    bench/mounted.py [--sizes 10,10000,1000000] [--runs 7] [--work DIR] [--json FILE]

VELLUM names the binary. Needs root, or fusermount3. For each size a tree is made and recorded in a checked-out
directory and mounted from there; then each command is run and timed as a whole process. The figure is the median;
what matters is that it does not grow with the tree.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import record
import report

VELLUM = os.environ.get("VELLUM", "target/dist/vellum")
FILES_IN_A_DIRECTORY = 1000


def vellum(directory, *arguments):
    done = subprocess.run([VELLUM, "-C", directory, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"vellum {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def timed(directory, *arguments):
    start = time.perf_counter()
    vellum(directory, *arguments)
    return time.perf_counter() - start


def make_tree(root, files):
    for number in range(files):
        folder = os.path.join(root, f"d{number // FILES_IN_A_DIRECTORY:04}")
        if number % FILES_IN_A_DIRECTORY == 0:
            os.mkdir(folder)
        with open(os.path.join(folder, f"f{number:07}"), "w") as file:
            file.write(f"{number}\n")


def column(files):
    return f"{files:,} files"


def measure(work, files, runs, whole):
    tree, mount = os.path.join(work, "tree"), os.path.join(work, "mount")
    os.mkdir(tree)
    os.mkdir(mount)
    vellum(tree, "init", "-q")
    make_tree(tree, files)
    vellum(tree, "snapshot", "-q", "--tag", "first")
    start = time.perf_counter()
    vellum(tree, "mount", "-q", mount)
    os.listdir(mount)
    whole.add("mount and first ls", column(files), time.perf_counter() - start)
    for run in range(runs):
        one_run(work, mount, run, lambda row, took: whole.add(row, column(files), took))
    vellum(work, "umount", "-q", mount)
    shutil.rmtree(tree)


def one_run(work, mount, run, add):
    add("snapshot", timed(mount, "snapshot", "-q"))
    vellum(mount, "flush")
    with open(os.path.join(mount, "changed"), "w") as file:
        file.write(str(run))
    add("snapshot, one file changed", timed(mount, "snapshot", "-q"))
    vellum(mount, "flush")
    add("restore", timed(mount, "restore", "-q", "first"))
    vellum(mount, "flush")
    fork = os.path.join(work, f"fork{run}")
    os.mkdir(fork)
    add("fork, mounted", timed(mount, "fork", "-q", f"fork{run}", "--mount", fork))
    vellum(work, "umount", "-q", fork)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10,10000,1000000")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--work")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    whole = record.Record(
        "mounted",
        "Commands in a mount, by the number of its files",
        columns=[column(size) for size in sizes],
        ours=column(sizes[-1]),
        floors=[column(size) for size in sizes[:-1]],
        setting={
            "filesystem": record.filesystem(arguments.work or tempfile.gettempdir()),
            "cache": "warm",
            "requests": record.requests(),
            "versions": record.version(VELLUM),
        },
    )
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            measure(work, size, arguments.runs, whole)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
