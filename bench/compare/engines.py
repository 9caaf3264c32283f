#!/usr/bin/env python3
"""The live metadata engine beside redb and fjall, in turns: engines.py [--rounds 5] [--work DIR] [--json FILE]

Each run is a process of its own (`bench/engines`): files created, with a flush to the disk each second; files created and
flushed one by one; the engine opened again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import contest
import record
import report

ENGINES = ["vellum", "redb", "fjall"]
ROWS = {
    "busy": ("create, flushed each second", "processor time"),
    "median": ("create, flushed each second", "median"),
    "durable": ("create, flushed by itself", "median"),
    "reopen": ("open again", "time"),
}
CRATE = Path(__file__).parent.parent / "engines"


def build() -> Path:
    """The program, built."""
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=CRATE, check=True)
    return CRATE / "target/release/vellum-engines-bench"


def main():
    """All engines, round by round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--durable", type=int, default=1_000)
    parser.add_argument("--work", help="a directory on the disk to measure")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    program = build()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        setting = {"filesystem": record.filesystem(work), "versions": versions()}
        whole = record.Record("live_engines", "Engines for live metadata", columns=ENGINES, setting=setting)
        for number in range(arguments.rounds):
            for engine in contest.order(ENGINES, number):
                with tempfile.TemporaryDirectory(dir=work) as directory:
                    command = [program, engine, directory, str(arguments.transactions), str(arguments.durable)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                for name, value in json.loads(done.stdout).items():
                    row, quantity = ROWS[name]
                    whole.add(row, engine, value, quantity=quantity, number=number)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


def versions() -> str:
    """The rivals' versions, from the lock file."""
    lock = (CRATE / "Cargo.lock").read_text().split("[[package]]")
    found = {}
    for package in lock:
        words = package.split('"')
        if len(words) > 3 and words[1] in ("redb", "fjall"):
            found[words[1]] = words[3]
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


if __name__ == "__main__":
    main()
