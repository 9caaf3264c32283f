"""What Vellum's own benches (`vellum bench NAME`) report, as records."""

import json
import shutil

from benchkit import host, mounts
from benchkit.runner import Case, Option, Run

# The units of Vellum's reports, and what a record has instead.
UNITS = {
    "s": (1, "s"),
    "ms": (1e-3, "s"),
    "us": (1e-6, "s"),
    "µs": (1e-6, "s"),
    "B": (1, "bytes"),
    "MiB": (1 << 20, "bytes"),
    "MiB/s": (1 << 20, "bytes per second"),
    "MB/s": (1e6, "bytes per second"),
    "GB/s": (1e9, "bytes per second"),
    "B/s": (1, "bytes per second"),
    "/s": (1, "per second"),
    "ops/s": (1, "per second"),
    "files/s": (1, "per second"),
}
# What is reported of each kind of file, and how its column is called.
KINDS = {"bytes": "contents", "unique": "not there twice", "compressed": "of these, compressed"}


def measure(run: Run, *arguments, where=""):
    """Runs one of Vellum's benches. A row's group is what stands before the colon in its name, and `where`."""
    # 1: a promise of a store does not hold, or something was left out; the report says which.
    told = json.loads(host.vellum_in(run.work, "bench", *arguments, "--json", ok=(0, 1)))
    columns = ["vellum", *(KINDS.values() if "kinds" in told else [])]
    run.start(columns, filesystem=told["target"].get("filesystem", ""), versions=[host.vellum()])
    for row in told["rows"]:
        factor, unit = UNITS[row["unit"]]
        group, _, name = row["name"].rpartition(": ")
        group += f", {where}" if where else ""
        kind = {"quantity": {"s": "time", "bytes": "space"}.get(unit, "rate"), "unit": unit}
        better = "more" if row["better"] == "higher" else "less"
        for value in row["runs"]:
            run.add(name, "vellum", value * factor, group=group, better=better, **kind)
    for kind in told.get("kinds", []):
        for key, column in KINDS.items():
            run.add(kind["kind"], column, kind[key], group="kinds of files", quantity="space", unit="bytes")


def measure_pipeline(run: Run):
    """The steps that content takes into a store, on the files of a directory."""
    tree = run.options.tree or (host.run("go", "env", "GOROOT") if shutil.which("go") else str(host.BENCH))
    measure(run, "pipeline", "--sizes", run.options.sizes, tree)


def measure_engines(run: Run):
    """Snapshot, restore and fork, mounted, checked out and by copying."""
    shape = ["--sizes", run.options.sizes, "--counts", run.options.counts]
    if not run.options.filesystem:
        measure(run, "engines", run.work, *shape)
        return
    with mounts.ground(run.options.filesystem, run.options.space) as root:
        measure(run, "engines", root, *shape, where=run.options.filesystem)


# Sizes and numbers of files that are measured on filesystems that share blocks, too.
REFLINKED = (("1K,100K,1M,10M", 1), ("10K", 10), ("100K", 100), ("1M", 1000), ("10M", 10000), ("10M", 500), ("500M", 20))

CASES = [
    Case(
        "pipeline",
        "vellum bench pipeline",
        measure_pipeline,
        options=(
            Option("sizes", "1K,64K,1M,10M", "of the pieces"),
            Option("tree", "", "the directory whose files are sorted by kind; without it, the Go distribution"),
        ),
        rounds=1,
        short=(f"--sizes 64K --tree {host.BENCH}",),
    ),
    Case(
        "engines",
        "vellum bench engines",
        measure_engines,
        options=(
            Option("sizes", "1G", "bytes of all files together"),
            Option("counts", "100", "files"),
            Option("filesystem", "", "ext4, xfs or btrfs: one in memory, and not where --work is"),
            Option("space", "6G", "of the filesystem in memory"),
        ),
        rounds=1,
        whole=(
            "--sizes 1G --counts 100",
            "--sizes 10G --counts 1000",
            "--sizes 10M --counts 10000",
            "--sizes 1M --counts 1000",
            "--sizes 100K --counts 100",
            "--sizes 10K --counts 10",
            # What one file takes, by its size.
            "--sizes 1K,100K,1M,10M --counts 1",
            # Source code, and images of containers.
            "--sizes 10M --counts 500",
            "--sizes 500M --counts 20",
            # Where blocks can be shared.
            *(f"--filesystem {kind} --sizes {size} --counts {count}" for kind in ("xfs", "btrfs") for size, count in REFLINKED),
        ),
        short=("--sizes 1M --counts 10",),
    ),
]
