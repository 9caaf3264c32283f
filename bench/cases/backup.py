"""Vellum and backup programs side by side: first snapshot, unchanged second snapshot, restore, verify, space, memory.

RESTIC, BORG and RUSTIC name rivals that are not on PATH. Within a round every operation is run by all tools one after
another, and the order of the tools turns from round to round. Times are for ratios; take no absolute figure from a
shared machine.
"""

import fcntl
import os
import shutil
from pathlib import Path

from benchkit import backup_tools, host, measure as measuring, trees
from benchkit.runner import Case, Option, Run, progress

# Operations, and what their tables are called.
OPS = {
    "first": "First snapshot",
    "again": "Second snapshot, nothing changed",
    "restore": "Restore into an empty directory",
    "verify": "Verify, all content read",
}
# Trees of fewer files leave nothing behind that slows down who comes next.
FEW = 1000
# The column that says how much a tree's files hold, beside what each tool stores of it.
LOGICAL = "contents"


def one_round(run: Run, tree: Path, kinds: list, ops: list):
    """Every operation once, by every tool that has not failed."""
    team = [kind(run.work) for kind in run.turns(kinds) if not run.is_out(tree.name, kind.name)]
    for tool in team:
        with run.guard(tree.name, tool.name):
            tool.prepare(tree)
    measuring.warm(tree)
    for op in ops:
        for tool in team:
            if tool.command(op) and not run.is_out(tree.name, tool.name):
                with run.guard(tree.name, tool.name):
                    sample(run, tree, tool, op)
    for tool in team:
        host.remove(tool.work)


def sample(run: Run, tree: Path, tool, op):
    """Runs one operation and notes what it cost."""
    cost, group, size = tool.run(op, tree), OPS[op], trees.describe(tree)["bytes"]
    run.add_cost(tree.name, tool.name, cost, group=group)
    space = tool.space() if op == "first" else None
    if space is not None:
        run.add(tree.name, tool.name, space, group=group, quantity="space", unit="bytes")
        run.add(tree.name, LOGICAL, size, group=group, quantity="space", unit="bytes")
    if op == "verify":
        rate = {"quantity": "rate", "unit": "bytes per second", "better": "more"}
        run.add(tree.name, tool.name, size / cost.wall, group=group, **rate)
    if op == "restore":
        if run.number == 0 and not is_restored(tool.out, tree):
            raise host.CommandFailed(f"{tool.name} restored something else than {tree}")
        set_aside(run.work, tree, tool.out)
    host.settle(run.work)
    progress(f"{tree.name} {run.number} {op} {tool.name}: {cost.wall:.3f} s")


def is_restored(out: Path, tree: Path) -> bool:
    """Whether names and contents are those of the tree; some tools restore it under its whole path. Metadata is the
    matter of each tool's own tests."""
    names = {entry.name for entry in tree.iterdir()}
    roots = [root for root in (out, out / tree.name, out / str(tree).lstrip("/")) if root.is_dir()]
    whole = [root for root in roots if names <= {entry.name for entry in root.iterdir()}]
    return bool(whole) and host.is_same(tree, whole[0])


def set_aside(work: Path, tree: Path, restored: Path):
    """Keeps a restored tree of many files until the last round: ext4 gives the inodes of deleted files to nobody for
    minutes, and whoever makes files next to them searches past them all."""
    if trees.describe(tree)["files"] < FEW:
        shutil.rmtree(restored)
        return
    aside = work / "aside"
    aside.mkdir(exist_ok=True)
    restored.rename(aside / str(len(os.listdir(aside))))


def measure(run: Run):
    """All trees, one after the other."""
    host.CACHE.mkdir(parents=True, exist_ok=True)
    with open(host.CACHE / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Two runs at once would measure each other.
            raise host.CommandFailed(f"another run is under way: it holds {lock.name}") from None
        measure_trees(run)


def measure_trees(run: Run):
    """All trees, by the tools that are here."""
    kinds = [backup_tools.TOOLS[name] for name in run.list_option("tools") if host.program(name)]
    # The others need the first.
    ops = [op for op in OPS if op == "first" or op in run.list_option("ops")]
    run.start(
        [*(kind.name for kind in kinds), LOGICAL],
        floors=(*backup_tools.FLOORS, LOGICAL),
        engine="a store in a directory, encrypted, zstd level 3",
        started_by=measuring.STARTED_BY,
        cache="sources and repositories in the page cache",
        versions=[host.program(kind.name) for kind in kinds],
    )
    for name in run.list_option("trees"):
        tree = trees.ensure(name)
        for _ in run.rounds():
            one_round(run, tree, kinds, ops)
        for entry in run.work.iterdir():
            shutil.rmtree(entry)
        backup_tools.Vellum.copies.clear()
        run.keep()


# Records that these measurements make: the options for the page, and those of a try.
RECORDS = {
    "space": (["--rounds 3 --trees wheels,git --ops first"], "--rounds 1 --trees git --ops first"),
    "restore": (
        ["--rounds 5 --trees goroot,wheels,small100k --ops first,restore"],
        "--rounds 1 --trees small1k --ops first,restore",
    ),
    "backup": (
        [
            "--rounds 5 --trees goroot,small100k,wheels",
            "--rounds 3 --trees git,photos,node,executables,repetitive --ops first",
            "--rounds 3 --trees registry,big4g",
            "--rounds 1 --trees small1m --ops first",
        ],
        "--rounds 1 --trees small1k",
    ),
}
OPTIONS = (
    Option("trees", "goroot,registry,small100k,big4g,wheels", f"of {', '.join(trees.TREES)}"),
    Option("tools", ",".join(backup_tools.TOOLS), "which take part, if they are installed"),
    Option("ops", ",".join(OPS), "first always runs, since the others need it"),
)
CASES = [
    Case(name, "Snapshots, and backup programs", measure, OPTIONS, whole=whole, short=(short,))
    for name, (whole, short) in RECORDS.items()
]
