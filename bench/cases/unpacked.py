"""What a mount does right after much was unpacked into it: the snapshot of all of it, and the memory that it takes.

In each round the Go distribution and an archive of small files are unpacked, each into a mount of its own of an empty
volume. As soon as tar is done a snapshot is made, while everything is in the write log alone; its figure is that of the
command. Memory is what the process behind the mount has resident (without the page cache) when tar is done, and the
most that it had. Needs go and tar.
"""

import io
import tarfile
from pathlib import Path

from benchkit import host, mounts, record
from benchkit.runner import Case, Option, Run

FILES_IN_A_DIRECTORY = 1000


def go_distribution(archive: Path) -> Path:
    """An archive of all of it."""
    root = Path(host.run("go", "env", "GOROOT"))
    host.run("tar", "cf", archive, "-C", root.parent, root.name)
    return archive


def small_files(archive: Path, count: int) -> Path:
    """An archive of so many files of a few bytes, a thousand in each directory."""
    with tarfile.open(archive, "w") as tar:
        for number in range(count):
            content = f"{number}\n".encode()
            entry = tarfile.TarInfo(f"d{number // FILES_IN_A_DIRECTORY:04}/f{number:07}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive


def unpack(run: Run, side: mounts.Vellum, archive: Path, tree: str):
    """Unpacks an archive into a mount, and measures at once."""
    run.add(f"unpacking {tree}", "vellum", host.timed("tar", "xf", archive, "-C", side.root))
    resident = host.memory(side.pid(), "VmRSS")
    took = host.timed(side.program, "-C", side.root, "snapshot", "-q")
    run.add(f"snapshot right after unpacking {tree}", "vellum", took)
    run.add(f"until {tree} is published", "vellum", host.timed(side.program, "-C", side.root, "flush"))
    memory = {"quantity": "memory", "unit": "bytes"}
    run.add(f"the process after unpacking {tree}", "vellum", resident, **memory)
    run.add(f"the process with {tree}, at most", "vellum", side.peak(), **memory)


def measure(run: Run):
    """Makes the archives, runs the rounds."""
    versions = record.version(host.vellum())
    run.start(["vellum"], filesystem=record.filesystem(run.work), requests=record.requests(), versions=versions)
    files = run.options.files
    archives = {
        "the Go distribution": go_distribution(run.work / "go.tar"),
        f"{files:,} files": small_files(run.work / "files.tar", files),
    }
    for _ in run.rounds():
        for tree, archive in archives.items():
            with mounts.present([lambda: mounts.Vellum(run.work / "side")]) as (side,):
                unpack(run, side, archive, tree)
            host.remove(run.work / "side")


CASE = Case(
    "unpacked",
    "A mount into which much was just unpacked",
    measure,
    help=__doc__,
    rounds=3,
    options=(Option("files", 1_000_000, "in the archive of small files"),),
    short=("--rounds 1 --files 1000",),
)
