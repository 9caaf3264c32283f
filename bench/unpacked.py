#!/usr/bin/env python3
"""What a mount does right after much was unpacked into it: the snapshot of all of it, and the memory that it takes.

    bench/unpacked.py [--runs 3] [--files 1000000] [--work DIR] [--json FILE]

VELLUM names the binary. Needs root, or fusermount3; go and tar. In each run the Go distribution and an archive of FILES
small files are unpacked, each into a mount of its own of an empty volume. As soon as tar is done a snapshot is made, while
everything is in the write log alone; its figure is that of the command. Memory is what the process behind the mount has
resident (without the page cache) when tar is done, and the most that it had.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))

import record
import report
import sides

FILES_IN_A_DIRECTORY = 1000


def go_distribution(archive: Path):
    """All of it."""
    root = Path(sides.output("go", "env", "GOROOT"))
    sides.run("tar", "cf", archive, "-C", root.parent, root.name)


def small_files(archive: Path, count: int):
    """So many files of a few bytes, a thousand in each directory."""
    with tarfile.open(archive, "w") as tar:
        for number in range(count):
            content = f"{number}\n".encode()
            entry = tarfile.TarInfo(f"d{number // FILES_IN_A_DIRECTORY:04}/f{number:07}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def timed(*argv) -> float:
    """The time of a command that must succeed."""
    start = time.perf_counter()
    sides.run(*argv)
    return time.perf_counter() - start


def one_run(work: Path, archive: Path, tree: str, whole):
    """Unpacks an archive into a mount, and looks at once."""
    side = sides.Vellum(work)
    try:
        whole.add(f"unpacking {tree}", "vellum", timed("tar", "xf", archive, "-C", side.root))
        resident = side.resident()
        took = timed(sides.VELLUM, "-C", side.root, "snapshot", "-q")
        whole.add(f"snapshot right after unpacking {tree}", "vellum", took)
        took = timed(sides.VELLUM, "-C", side.root, "flush")
        whole.add(f"until {tree} is published", "vellum", took)
        for name, value in ((f"the process after unpacking {tree}", resident), (f"the process with {tree}, at most", side.peak())):
            whole.add(name, "vellum", value, quantity="memory", unit="bytes")
    finally:
        side.end()


def main():
    """Makes the archives, runs the rounds, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        whole = record.Record(
            "unpacked",
            "A mount into which much was just unpacked",
            columns=["vellum"],
            setting={
                "filesystem": record.filesystem(work),
                "requests": record.requests(),
                "versions": record.version(sides.VELLUM),
            },
        )
        archives = {"the Go distribution": Path(work, "go.tar"), f"{arguments.files:,} files": Path(work, "files.tar")}
        distribution, files = archives.values()
        go_distribution(distribution)
        small_files(files, arguments.files)
        for _ in range(arguments.runs):
            for tree, archive in archives.items():
                with tempfile.TemporaryDirectory(dir=work) as place:
                    one_run(Path(place), archive, tree, whole)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
