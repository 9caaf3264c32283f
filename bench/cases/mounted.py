"""Snapshot, fork, restore and try of a mounted worktree, and the first listing of one, by the number of its files.

For each size a tree is made and recorded in a checked-out directory and mounted from there; then each command is timed
as a whole process. What matters is that the figure does not grow with the tree.
"""

import os
import time
from pathlib import Path

from benchkit import host, record, trees
from benchkit.runner import Case, Option, Run


def column(files: int) -> str:
    """What a size is called."""
    return f"{files:,} files"


def measure_size(run: Run, files: int):
    """All commands on a tree of one size."""
    tree, mount = run.folder(f"{files}/tree"), run.folder(f"{files}/mount")
    host.vellum_in(tree, "init", "-q")
    trees.numbered(tree, files)
    host.vellum_in(tree, "snapshot", "-q", "--tag", "first")
    start = time.perf_counter()
    host.vellum_in(tree, "mount", "-q", mount)
    os.listdir(mount)
    run.add("mount and first ls", column(files), time.perf_counter() - start)
    try:
        for _ in run.rounds():
            measure_commands(run, mount, column(files))
    finally:
        host.vellum_in(run.work, "umount", "-q", mount)
        host.remove(tree.parent)


def measure_commands(run: Run, mount: Path, column_name: str):
    """Each command once; what it leaves to publish is published outside of its time."""
    fork = mount.parent / f"fork{run.number}"
    fork.mkdir()
    for row, words in {
        "snapshot": ["snapshot", "-q"],
        "snapshot, one file changed": ["snapshot", "-q"],
        "restore": ["restore", "-q", "first"],
        "fork, mounted": ["fork", "-q", fork.name, "--mount", fork],
    }.items():
        if row.endswith("changed"):
            (mount / "changed").write_text(str(run.number))
        run.add(row, column_name, host.timed(host.vellum(), "-C", mount, *words, ok=(0, 1)))
        host.vellum_in(mount, "flush")
    host.vellum_in(mount.parent, "umount", "-q", fork)
    measure_try(run, mount, column_name)


def measure_try(run: Run, mount: Path, column_name: str):
    """A command in a fork at the mount's own path: until it runs, and from its end until the fork is given up."""
    start = time.time_ns()
    said = host.run(host.vellum(), "-C", mount, "try", "--discard", "--", "date", "+%s%N")
    end = time.time_ns()
    run.add("try, until the command runs", column_name, (int(said) - start) / 1e9)
    run.add("try, discard", column_name, (end - int(said)) / 1e9)


def measure(run: Run):
    """All sizes, one after the other."""
    sizes = [int(size) for size in run.list_option("sizes")]
    columns = [column(size) for size in sizes]
    setting = {"cache": "warm", "requests": record.requests(), "versions": [host.vellum()]}
    run.start(columns, ours=columns[-1], floors=columns[:-1], **setting)
    for size in sizes:
        measure_size(run, size)


CASE = Case(
    "mounted",
    "Commands in a mount, by the number of its files",
    measure,
    options=(Option("sizes", "10,10000,1000000", "numbers of files"),),
    rounds=7,
    short=("--sizes 10,1000 --rounds 1",),
)
