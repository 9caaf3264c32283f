"""Every structure by itself: runs the workspace's Criterion benches and keeps their samples.

    run.py micro --filter map/get --quick
    run.py micro --save old               keeps them as Criterion's baseline of that name, too
    run.py micro --against old            Criterion says what changed since that baseline
    run.py micro --read                   runs nothing: what Criterion's folder holds
    VELLUM_BENCH_KEYS=10000000 run.py micro --filter map/     at the size for which there are targets

A row for each bench; its group is what stands before the first slash of its id. The benches run two more times, quickly, to
count what one operation allocates: how often, and how many bytes (`vellum-benchkit`'s clocks count instead; Criterion then
prints an allocation, or a byte, as a nanosecond). A comparison with a baseline of Criterion's has only times.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from benchkit import criterion, host, record
from benchkit.runner import Case, Option, Run, progress

# All benches and no unit tests, which would not understand Criterion's arguments.
BENCH = [os.environ.get("CARGO", "cargo"), "bench", "--locked", "--bench", "*"]


def packages(names: str) -> list:
    """What cargo is told of the crates."""
    return [word for name in names.replace(",", " ").split() for word in ("--package", name)] or ["--workspace"]


def run_benches(options, home: Path):
    """Builds and runs the benches for their times."""
    flags = ["--quick"] if options.quick else []
    flags += ["--save-baseline", options.save] if options.save else []
    flags += ["--baseline-lenient", options.against] if options.against else []
    call_benches(options, home, flags, {})


def call_benches(options, home: Path, flags: list, environment: dict):
    """Builds and runs the benches; cargo says which one fails."""
    command = [*BENCH, *packages(options.package), "--", *filter(None, [options.filter]), *flags]
    progress(f"$ {' '.join(command)}")
    environment = os.environ | {"CRITERION_HOME": str(home)} | environment
    # Criterion's own lines are progress here; the tables go to standard output.
    if subprocess.run(command, cwd=host.ROOT, env=environment, stdout=sys.stderr).returncode:
        raise host.CommandFailed("a bench failed; nothing is kept")


def measure(run: Run):
    """Runs or reads, and keeps all samples."""
    # Where Criterion keeps results and baselines between runs.
    target = host.ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    home = Path(os.environ.get("CRITERION_HOME", target / "criterion")).resolve()
    # The file system's clock may be a tick behind.
    since = 0.0 if run.options.read else time.time() - 1
    sizes = {name: value for name, value in os.environ.items() if name.startswith("VELLUM_BENCH_")}
    base = sizes.pop("VELLUM_BENCH_DIR", os.environ.get("TMPDIR", "/tmp"))
    run.start(
        ["vellum"],
        filesystem="",
        compiler=record.version("rustc"),
        directory=record.filesystem(base),
        sizes=", ".join(f"{name}={value}" for name, value in sorted(sizes.items())),
        mode="quick: few samples" if run.options.quick else "",
    )
    if not run.options.read:
        run_benches(run.options, home)
        for quantity in () if run.options.against else criterion.COUNTED:
            call_benches(run.options, home / quantity, ["--quick"], {"VELLUM_BENCH_QUANTITY": quantity})
    found = criterion.benches(home, since)
    for quantity, (name, unit) in criterion.COUNTED.items():
        found += criterion.counts(home / quantity, name, unit, since)
    if not found:
        raise host.CommandFailed(f"{home}: no results of Criterion; run without --read, or with another --filter")
    for bench in sorted(found, key=lambda each: (each.group, each.name, each.quantity not in ("time", "rate"), each.quantity)):
        bench.add_to(run.record, "vellum")


CASE = Case(
    "micro",
    "Every structure by itself",
    measure,
    options=(
        Option("filter", "", "only ids that match this regular expression"),
        Option("package", "", "only the benches of these crates, with commas between them"),
        Option("quick", False, "few samples: seconds instead of minutes"),
        Option("save", "", "keep as a baseline of Criterion's"),
        Option("against", "", "compare with such a baseline"),
        Option("read", False, "run nothing, read what is there"),
    ),
    rounds=1,
    short=("--quick --package vellum-host,vellum-fuse",),
    # The map at the size for which there are targets.
    environment={"VELLUM_BENCH_KEYS": os.environ.get("VELLUM_BENCH_KEYS", "10000000")},
)
