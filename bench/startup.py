#!/usr/bin/env python3
"""Start-up time and size of each tool's binary: startup.py [--json FILE].

The floor is `true`: what the system itself takes to start a program that does nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))

import contest
import record
import report
import tools

ROUNDS = 101
VERSION = {"restic": "version"}


def once(argv) -> float:
    """Seconds from spawn to exit."""
    start = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def contestants() -> dict:
    """What each tool is called with."""
    found = {"true": [shutil.which("true")]}
    for name in ("vellum", *tools.RIVALS):
        program = tools.TOOLS[name].program()
        if program:
            found[name] = [program, VERSION.get(name, "--version")]
    if "vellum" not in found:
        print("no vellum: set VELLUM, or put it on PATH", file=sys.stderr)
    return found


def main():
    """Runs the tools in turns, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    calls = contestants()
    versions = (record.version(argv[0]) for name, argv in calls.items() if name != "true")
    whole = record.Record(
        "startup",
        "Start-up and size",
        columns=list(calls),
        floors=["true"],
        setting={"cache": "warm", "versions": ", ".join(versions)},
    )
    for number in range(ROUNDS):
        for name in contest.order(list(calls), number):
            whole.add("start-up", name, once(calls[name]), number=number)
    for name, argv in calls.items():
        program = Path(os.path.realpath(argv[0]))
        # A script is not the program; what interprets it is part of it, too.
        if program.read_bytes()[:2] != b"#!":
            whole.add("binary", name, program.stat().st_size, quantity="space", unit="bytes")
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
