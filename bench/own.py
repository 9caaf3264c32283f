#!/usr/bin/env python3
"""Keeps what Vellum's own benches say as a record: own.py NAME [--json FILE] -- ARGUMENTS OF vellum...

    bench/own.py engines --json bench/records/engines.json -- bench engines DIR --sizes 1G --counts 100

VELLUM names the binary. NAME is the record's. A row's group is what stands before the colon in its name.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import record
import report

VELLUM = os.environ.get("VELLUM", "target/dist/vellum")
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
# What is told of each kind of file, and how its column is called.
KINDS = {"bytes": "contents", "unique": "not there twice", "compressed": "of these, compressed"}


def measured(arguments) -> dict:
    """What Vellum printed."""
    done = subprocess.run([VELLUM, *arguments, "--json"], capture_output=True, text=True)
    # 1: a promise of a store does not hold, or something was left out; the report says which.
    if done.returncode not in (0, 1):
        sys.exit(f"vellum {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def convert(told: dict, whole):
    """Rows of a report as rows of a record."""
    for row in told["rows"]:
        factor, unit = UNITS[row["unit"]]
        group, _, name = row["name"].rpartition(": ")
        better = "more" if row["better"] == "higher" else "less"
        quantity = {"s": "time", "bytes": "space"}.get(unit, "rate")
        for number, value in enumerate(row["runs"]):
            whole.add(name, "vellum", value * factor, group=group, quantity=quantity, unit=unit, better=better, number=number)
    for kind in told.get("kinds", []):
        for key, column in KINDS.items():
            whole.add(kind["kind"], column, kind[key], group="kinds of files", quantity="space", unit="bytes")


def main():
    """Runs one bench, keeps the record, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    parser.add_argument("arguments", nargs="+", help="what vellum is called with, behind '--'")
    args = parser.parse_args()
    told = measured(args.arguments)
    setting = {"filesystem": told["target"].get("filesystem", ""), "versions": record.version(VELLUM)}
    title = f"vellum {' '.join(args.arguments)}"
    columns = ["vellum", *(KINDS.values() if "kinds" in told else [])]
    whole = record.Record(args.name, title, columns=columns, setting=setting)
    convert(told, whole)
    whole.keep(args.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
