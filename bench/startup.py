#!/usr/bin/env python3
"""Start-up time and size of each tool's binary.

The floor is `true`: what the system itself takes to start a program that does nothing.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time

import tools

ROUNDS = 101
VERSION = {"restic": "version"}


def once(argv) -> float:
    """Seconds from spawn to exit."""
    start = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main():
    """Interleaves the tools, prints medians."""
    contest = {"true": [shutil.which("true")]}
    for name in ("vellum", *tools.RIVALS):
        program = tools.TOOLS[name].program()
        if program:
            contest[name] = [program, VERSION.get(name, "--version")]
    if "vellum" not in contest:
        print("no vellum: set VELLUM, or put it on PATH", file=sys.stderr)
    took = {name: [] for name in contest}
    for _ in range(ROUNDS):
        for name, argv in contest.items():
            took[name].append(once(argv))
    print("### Start-up and size\n\n| tool | median ms | least ms | binary, MB |\n|---|---|---|---|")
    for name, argv in contest.items():
        size = os.path.getsize(os.path.realpath(argv[0])) / 1e6
        print(f"| {name} | {statistics.median(took[name]) * 1e3:.2f} | {min(took[name]) * 1e3:.2f} | {size:.1f} |")


if __name__ == "__main__":
    main()
