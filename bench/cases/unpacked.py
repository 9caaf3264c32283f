"""What a mount does right after much was unpacked into it: the snapshot of all of it, and the memory that it takes.

In each round the Go distribution and an archive of small files are unpacked, each into a mount of its own of an empty
volume. As soon as tar is done a snapshot is made, while everything is in the write log alone; its figure is that of the
command. Memory is what the process behind the mount has resident (without the page cache) when tar is done, and the
most that it had. Needs go and tar.
"""

from pathlib import Path

from benchkit import host, mounts, record, trees
from benchkit.runner import Case, Option, Run


def pack(archive: Path, tree: Path) -> Path:
    """An archive of a tree."""
    host.run("tar", "cf", archive, "-C", tree.parent, tree.name)
    return archive


def unpack(run: Run, side: mounts.Vellum, archive: Path, tree: str):
    """Unpacks an archive into a mount, and measures at once."""
    run.add(f"unpacking {tree}", "vellum", host.timed("tar", "xf", archive, "-C", side.root))
    resident = host.memory(side.pid, "VmRSS")
    took = host.timed(side.program, "-C", side.root, "snapshot", "-q")
    run.add(f"snapshot right after unpacking {tree}", "vellum", took)
    run.add(f"until {tree} is published", "vellum", host.timed(side.program, "-C", side.root, "flush"))
    memory = {"quantity": "memory", "unit": "bytes"}
    run.add(f"the process after unpacking {tree}", "vellum", resident, **memory)
    run.add(f"the process with {tree}, at most", "vellum", side.peak(), **memory)


def measure(run: Run):
    """Makes the archives, runs the rounds."""
    run.start(["vellum"], requests=record.requests(), versions=[host.vellum()])
    files, small = run.options.files, run.folder("small")
    trees.numbered(small, files)
    archives = {
        "the Go distribution": pack(run.work / "go.tar", Path(host.run("go", "env", "GOROOT"))),
        f"{files:,} files": pack(run.work / "files.tar", small),
    }
    host.remove(small)
    for _ in run.rounds():
        for tree, archive in archives.items():
            with mounts.Vellum(run.work / "side") as side:
                unpack(run, side, archive, tree)
            host.remove(run.work / "side")


CASE = Case(
    "unpacked",
    "A mount into which much was just unpacked",
    measure,
    options=(Option("files", 1_000_000, "in the archive of small files"),),
    rounds=3,
    short=("--rounds 1 --files 1000",),
)
