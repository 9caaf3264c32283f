#!/usr/bin/env python3
"""Every structure by itself: runs the workspace's Criterion benches and keeps their samples.

    bench/micro.py                          all of them, in about ten minutes
    bench/micro.py --filter map/get --quick
    bench/micro.py --save old               keeps them as Criterion's baseline of that name, too
    bench/micro.py --against old            Criterion says what changed since that baseline
    bench/micro.py --read                   runs nothing: what Criterion's folder holds
    VELLUM_BENCH_KEYS=10000000 bench/micro.py --filter map/     at the size for which there are targets

A row for each bench; its group is what stands before the first slash of its id.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import criterion
import record
import report

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
# All benches and no unit tests, which would not understand Criterion's arguments.
BENCH = [CARGO, "bench", "--locked", "--bench", "*"]


def home() -> Path:
    """Where Criterion keeps results and baselines between runs."""
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    return Path(os.environ.get("CRITERION_HOME", ROOT / target / "criterion")).resolve()


def run(arguments):
    """Builds and runs the benches; the one that fails is what cargo says."""
    packages = [part for name in arguments.package for part in ("--package", name)] or ["--workspace"]
    command = [*BENCH, *packages, "--", *flags(arguments)]
    print("$", *command, file=sys.stderr, flush=True)
    environment = os.environ | {"CRITERION_HOME": str(home())}
    # Criterion's own lines are progress here; the tables go to standard output.
    if subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr).returncode:
        sys.exit("micro.py: a bench failed; nothing is kept")


def flags(arguments) -> list:
    """What Criterion is told."""
    wanted = [arguments.filter] if arguments.filter else []
    if arguments.quick:
        wanted.append("--quick")
    if arguments.save:
        wanted += ["--save-baseline", arguments.save]
    if arguments.against:
        wanted += ["--baseline-lenient", arguments.against]
    return wanted


def setting(arguments) -> dict:
    """What else decides the figures."""
    sizes = {name: value for name, value in os.environ.items() if name.startswith("VELLUM_BENCH_")}
    base = os.environ.get("VELLUM_BENCH_DIR", os.environ.get("TMPDIR", "/tmp"))
    return {
        "compiler": record.version("rustc"),
        "directory": record.filesystem(base),
        "sizes": ", ".join(f"{name}={value}" for name, value in sorted(sizes.items()) if name != "VELLUM_BENCH_DIR"),
        "mode": "quick: few samples" if arguments.quick else "",
    }


def main():
    """Runs or reads, keeps the record, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to keep the record")
    parser.add_argument("--filter", help="only ids that match this regular expression")
    parser.add_argument("--package", action="append", default=[], help="only this crate's benches (again for more)")
    parser.add_argument("--quick", action="store_true", help="few samples: seconds instead of minutes")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--save", metavar="NAME", help="keep as a baseline of Criterion's")
    kind.add_argument("--against", metavar="NAME", help="compare with such a baseline")
    kind.add_argument("--read", action="store_true", help="run nothing, read what is there")
    arguments = parser.parse_args()
    whole = record.Record("micro", "Every structure by itself", columns=["vellum"], setting=setting(arguments))
    since = 0.0
    if not arguments.read:
        # The file system's clock may be a tick behind.
        since = time.time() - 1
        run(arguments)
    found = criterion.benches(home(), since)
    if not found:
        sys.exit(f"{home()}: no results of Criterion; run without --read, or with another --filter")
    for bench in found:
        bench.add_to(whole, "vellum")
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
