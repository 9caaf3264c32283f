"""Vellum and backup programs side by side: first snapshot, unchanged second snapshot, restore, verify, space, memory.

RESTIC, BORG and RUSTIC name rivals that are not on PATH. Within a round every operation is run by all tools one after
another, and the order of the tools turns from round to round. Times are for ratios; take no absolute figure from a
shared machine.
"""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchkit import backup_tools, host, measure as measuring, record, trees
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


@dataclass
class Tree:
    """A tree that is measured."""

    name: str
    path: Path
    files: int
    bytes: int


def prepare(name) -> Tree:
    """The tree of a name, with its size."""
    path = trees.ensure(name)
    return Tree(name, path, **trees.describe(path))


def one_round(run: Run, tree: Tree, kinds: list, ops: list):
    """Every operation once, by every tool that has not failed."""
    team = [kind(run.work) for kind in run.turns(kinds) if not run.is_out(tree.name, kind.name)]
    for tool in team:
        with run.guard(tree.name, tool.name):
            tool.prepare(tree.path)
    measuring.warm(tree.path)
    for op in ops:
        for tool in team:
            if op in tool.ops and not run.is_out(tree.name, tool.name):
                with run.guard(tree.name, tool.name):
                    sample(run, tree, tool, op)
    for tool in team:
        tool.clean()


def sample(run: Run, tree: Tree, tool, op):
    """Runs one operation and notes what it cost."""
    cost, group = getattr(tool, op)(tree.path), OPS[op]
    run.add_cost(tree.name, tool.name, cost, group=group)
    space = tool.space() if op == "first" else None
    if space is not None:
        run.add(tree.name, tool.name, space, group=group, quantity="space", unit="bytes")
        run.add(tree.name, LOGICAL, tree.bytes, group=group, quantity="space", unit="bytes")
    if op == "verify":
        rate = {"quantity": "rate", "unit": "bytes per second", "better": "more"}
        run.add(tree.name, tool.name, tree.bytes / cost.wall, group=group, **rate)
    if op == "restore":
        if run.number == 0 and not is_restored(tool.out, tree.path):
            raise host.CommandFailed(f"{tool.name} restored something else than {tree.path}")
        set_aside(run.work, tree, tool.out)
    host.settle(run.work)
    progress(f"{tree.name} {run.number} {op} {tool.name}: {cost.wall:.3f} s")


def is_restored(out: Path, tree: Path) -> bool:
    """Whether names and contents are those of the tree; some tools restore it under its whole path. Metadata is the
    matter of each tool's own tests."""
    names = {entry.name for entry in tree.iterdir()}
    for root in (out, out / tree.name, out / str(tree).lstrip("/")):
        if root.is_dir() and names <= {entry.name for entry in root.iterdir()}:
            return host.is_same(tree, root)
    return False


def set_aside(work: Path, tree: Tree, restored: Path):
    """Keeps a restored tree of many files until the last round: ext4 gives the inodes of deleted files to nobody for
    minutes, and whoever makes files next to them searches past them all."""
    if tree.files < FEW:
        shutil.rmtree(restored)
        return
    aside = work / "aside"
    aside.mkdir(exist_ok=True)
    restored.rename(aside / str(len(os.listdir(aside))))


def lock_others_out():
    """Two runs at once would measure each other."""
    host.CACHE.mkdir(parents=True, exist_ok=True)
    lock = open(host.CACHE / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise host.CommandFailed(f"another run is under way: it holds {host.CACHE / 'lock'}") from None
    return lock


def measure(run: Run):
    """All trees, one after the other."""
    lock = lock_others_out()
    kinds = backup_tools.available(run.list_option("tools"))
    # The others need it.
    ops = [op for op in OPS if op == "first" or op in run.list_option("ops")]
    run.start(
        [*(kind.name for kind in kinds), LOGICAL],
        floors=(*backup_tools.FLOORS, LOGICAL),
        filesystem=record.filesystem(run.work),
        engine="a store in a directory, encrypted, zstd level 3",
        started_by=measuring.STARTED_BY,
        cache="sources and repositories in the page cache",
        versions=record.versions(host.program(kind.name) for kind in kinds),
    )
    for name in run.list_option("trees"):
        tree = prepare(name)
        for _ in run.rounds():
            one_round(run, tree, kinds, ops)
        for entry in run.work.iterdir():
            shutil.rmtree(entry)
        backup_tools.Vellum.copies.clear()
        run.keep()
    lock.close()


def case(name, whole: tuple, short: str) -> Case:
    """One of the records that these measurements make."""
    options = (
        Option("trees", "goroot,registry,small100k,big4g,wheels", f"of {', '.join(trees.TREES)}"),
        Option("tools", ",".join(backup_tools.TOOLS), "which take part, if they are installed"),
        Option("ops", ",".join(OPS), "first always runs, since the others need it"),
    )
    return Case(name, "Snapshots, and backup programs", measure, help=__doc__, options=options, whole=whole, short=(short,))


CASES = [
    case("space", ("--rounds 3 --trees wheels,git --ops first",), "--rounds 1 --trees git --ops first"),
    case(
        "restore",
        ("--rounds 5 --trees goroot,wheels,small100k --ops first,restore",),
        "--rounds 1 --trees small1k --ops first,restore",
    ),
    case(
        "backup",
        (
            "--rounds 5 --trees goroot,small100k,wheels",
            "--rounds 3 --trees git,photos,node --ops first",
            "--rounds 3 --trees registry,big4g",
            "--rounds 1 --trees small1m --ops first",
        ),
        "--rounds 1 --trees small1k",
    ),
]
