#!/usr/bin/env python3
"""Snapshot, fork and restore of a mounted worktree, and the first listing of one, by the number of its files.

    bench/mounted.py [--sizes 10,10000,1000000] [--runs 7] [--work DIR]

VELLUM names the binary. Needs root, or fusermount3. For each size a tree is made and recorded in a checked-out
directory and mounted from there; then each command is run and timed as a whole process. The figure is the median;
what matters is that it does not grow with the tree.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time

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
    return (time.perf_counter() - start) * 1000


def make_tree(root, files):
    for number in range(files):
        folder = os.path.join(root, f"d{number // FILES_IN_A_DIRECTORY:04}")
        if number % FILES_IN_A_DIRECTORY == 0:
            os.mkdir(folder)
        with open(os.path.join(folder, f"f{number:07}"), "w") as file:
            file.write(f"{number}\n")


def measure(work, files, runs):
    tree, mount = os.path.join(work, "tree"), os.path.join(work, "mount")
    os.mkdir(tree)
    os.mkdir(mount)
    vellum(tree, "init", "-q")
    make_tree(tree, files)
    vellum(tree, "snapshot", "-q", "--tag", "first")
    start = time.perf_counter()
    vellum(tree, "mount", "-q", mount)
    os.listdir(mount)
    row = {"files": files, "mount and first ls": (time.perf_counter() - start) * 1000}
    times = {"snapshot": [], "snapshot, one file changed": [], "restore": [], "fork, mounted": []}
    for run in range(runs):
        times["snapshot"].append(timed(mount, "snapshot", "-q"))
        vellum(mount, "flush")
        with open(os.path.join(mount, "changed"), "w") as file:
            file.write(str(run))
        times["snapshot, one file changed"].append(timed(mount, "snapshot", "-q"))
        vellum(mount, "flush")
        times["restore"].append(timed(mount, "restore", "-q", "first"))
        vellum(mount, "flush")
        fork = os.path.join(work, f"fork{run}")
        os.mkdir(fork)
        times["fork, mounted"].append(timed(mount, "fork", "-q", f"fork{run}", "--mount", fork))
        vellum(work, "umount", "-q", fork)
    vellum(work, "umount", "-q", mount)
    shutil.rmtree(tree)
    row.update({name: statistics.median(each) for name, each in times.items()})
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="10,10000,1000000")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--work")
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            rows.append(measure(work, int(size), arguments.runs))
    names = [name for name in rows[0] if name != "files"]
    print("| milliseconds | " + " | ".join(f"{row['files']:,} files" for row in rows) + " | largest : smallest |")
    print("|---|" + "---|" * (len(rows) + 1))
    for name in names:
        cells = [f"{row[name]:.1f}" for row in rows]
        print(f"| {name} | " + " | ".join(cells) + f" | {rows[-1][name] / rows[0][name]:.2f} |")


if __name__ == "__main__":
    main()
