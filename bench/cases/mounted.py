"""Snapshot, fork and restore of a mounted worktree, and the first listing of one, by the number of its files.

For each size a tree is made and recorded in a checked-out directory and mounted from there; then each command is timed
as a whole process. What matters is that the figure does not grow with the tree.
"""

import os
import shutil
import time
from pathlib import Path

from benchkit import host, record
from benchkit.runner import Case, Option, Run

FILES_IN_A_DIRECTORY = 1000


def make_tree(root: Path, files: int):
    """Files of a few bytes, a thousand in each directory."""
    for number in range(files):
        folder = root / f"d{number // FILES_IN_A_DIRECTORY:04}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number:07}").write_text(f"{number}\n")


def column(files: int) -> str:
    """What a size is called."""
    return f"{files:,} files"


def measure_size(run: Run, vellum: str, work: Path, files: int):
    """All commands on a tree of one size."""
    tree, mount = work / "tree", work / "mount"
    tree.mkdir(parents=True)
    mount.mkdir()
    host.run(vellum, "-C", tree, "init", "-q")
    make_tree(tree, files)
    host.run(vellum, "-C", tree, "snapshot", "-q", "--tag", "first")
    start = time.perf_counter()
    host.run(vellum, "-C", tree, "mount", "-q", mount)
    os.listdir(mount)
    run.add("mount and first ls", column(files), time.perf_counter() - start)
    try:
        for number in run.rounds():
            measure_commands(run, vellum, mount, column(files))
    finally:
        host.run(vellum, "-C", work, "umount", "-q", mount)
        shutil.rmtree(work)


def measure_commands(run: Run, vellum: str, mount: Path, column_name: str):
    """Each command once; what it leaves to publish is published outside of its time."""

    def add(row, *command):
        run.add(row, column_name, host.timed(vellum, "-C", mount, *command, ok=(0, 1)))

    add("snapshot", "snapshot", "-q")
    host.run(vellum, "-C", mount, "flush")
    (mount / "changed").write_text(str(run.number))
    add("snapshot, one file changed", "snapshot", "-q")
    host.run(vellum, "-C", mount, "flush")
    add("restore", "restore", "-q", "first")
    host.run(vellum, "-C", mount, "flush")
    fork = mount.parent / f"fork{run.number}"
    fork.mkdir()
    add("fork, mounted", "fork", "-q", fork.name, "--mount", fork)
    host.run(vellum, "-C", mount.parent, "umount", "-q", fork)


def measure(run: Run):
    """All sizes, one after the other."""
    vellum, sizes = host.vellum(), [int(size) for size in run.list_option("sizes")]
    columns = [column(size) for size in sizes]
    setting = {"filesystem": record.filesystem(run.work), "cache": "warm", "requests": record.requests()}
    run.start(columns, ours=columns[-1], floors=columns[:-1], **setting, versions=record.version(vellum))
    for size in sizes:
        measure_size(run, vellum, run.work / str(size), size)


CASE = Case(
    "mounted",
    "Commands in a mount, by the number of its files",
    measure,
    help=__doc__,
    rounds=7,
    options=(Option("sizes", "10,10000,1000000", "numbers of files"),),
    short=("--sizes 10,1000 --rounds 1",),
)
