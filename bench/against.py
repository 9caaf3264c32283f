#!/usr/bin/env python3
"""Whether `vellum bench` measures the filesystem and not itself: its figures against fio's and those of a loop in C.

  against.py [DIR] [--rounds N] [--count N] [--size MIB] [--json FILE]

In turns, so that a slow minute spoils both sides of one round and no more; each ratio is the median of the rounds' own
ratios. A figure that is too high is as wrong as one that is too low: it says that something else was measured. So big
files may differ from fio's by 5 per cent either way, and names from the loop's by a factor of 0.9 either way. Where the
rounds disagree by more than what is to be told apart, no verdict is given, and it says so. Exits with 1 if a row is
wrong, with 2 if none is wrong and some could not be judged.

VELLUM names the binary (default: from PATH), which has to be an optimised build.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

VELLUM = os.environ.get("VELLUM", "vellum")
HERE = Path(__file__).parent
BIG = 0.05
NAMES = 0.9
MIB = 1 << 20

# Rows of `vellum bench` and what fio is told for the same.
FIO = {
    "big write": ["--rw=write", "--fallocate=none"],
    "big write, flushed": ["--rw=write", "--fallocate=none", "--end_fsync=1"],
    "big read, cold": ["--rw=read", "--invalidate=1"],
    "big read, warm": ["--rw=read", "--invalidate=0"],
}
LOOP = ["create", "mkdir", "rename", "readdir", "stat", "unlink", "rmdir"]


def run(command):
    """What a command that has to succeed printed."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"against: {' '.join(map(str, command))}: {done.stderr.decode().strip()}")
    return done.stdout.decode()


def vellum(place, *options):
    """The rows of one run: name → figure."""
    report = json.loads(run([VELLUM, "bench", place, "--json", "--runs", "1", *options]))
    return {row["name"]: row["runs"][0] for row in report["rows"]}


def fio(place, size):
    """The same of fio, MiB/s."""
    rows = {}
    for name, options in FIO.items():
        text = run(
            ["fio", "--name=against", f"--directory={place}", "--ioengine=sync", "--bs=1m", f"--size={size}m"]
            + ["--output-format=json", "--refill_buffers=0", "--scramble_buffers=1", *options]
        )
        job = json.loads(text[text.index("{") :])["jobs"][0]
        side = job["write" if "write" in name else "read"]
        rows[name] = side["io_bytes"] / MIB / (job["job_runtime"] / 1000)
    for file in Path(place).glob("against*"):
        file.unlink()
    return rows


def loop(binary, place, count):
    """The same of the loop."""
    empty = tempfile.mkdtemp(dir=place, prefix="bench-")
    try:
        return json.loads(run([binary, empty, count]))
    finally:
        shutil.rmtree(empty)


def judge(ours, theirs, allowed):
    """The median ratio, how far the rounds are apart, and what that means. `allowed`: as a logarithm."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    middle = statistics.median(ratios)
    spread = statistics.median(abs(math.log(ratio / middle)) for ratio in ratios)
    if spread > allowed:
        return middle, spread, "noisy"
    return middle, spread, "ok" if abs(math.log(middle)) <= allowed else "WRONG"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", default=".")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--json", default="")
    a = parser.parse_args()
    place = tempfile.mkdtemp(dir=a.dir, prefix="against-")
    try:
        binary = Path(place) / "loop"
        run(["cc", "-O2", "-Wall", "-o", binary, HERE / "loop.c"])
        rows = {name: ([], []) for name in [*FIO, *LOOP]}
        for turn in range(a.rounds):
            big = ["--big-file-size", f"{a.size}M", "--small-file-count", "0"]
            names = ["--big-file-size", "0", "--small-file-size", "0", "--small-file-count", a.count]
            sides = [
                (0, lambda: {**vellum(place, *big), **vellum(place, *names)}),
                (1, lambda: {**fio(place, a.size), **loop(binary, place, a.count)}),
            ]
            # Who is first in one round is second in the next.
            for side, measure in sides if turn % 2 == 0 else reversed(sides):
                figures = measure()
                for name, both in rows.items():
                    both[side].append(figures[name])
    finally:
        shutil.rmtree(place)
    verdicts = {}
    print("| row | vellum bench | fio or loop | ratio | rounds differ by | |\n|---|---:|---:|---:|---:|---|")
    for name, (ours, theirs) in rows.items():
        allowed = math.log(1 + BIG) if name in FIO else -math.log(NAMES)
        ratio, spread, verdict = judge(ours, theirs, allowed)
        verdicts[name] = {"ratio": ratio, "spread": spread, "verdict": verdict, "vellum": ours, "other": theirs}
        print(
            f"| {name} | {statistics.median(ours):.0f} | {statistics.median(theirs):.0f} | {ratio:.3f} "
            f"| {spread * 100:.1f} % | {verdict} |"
        )
    if a.json:
        Path(a.json).write_text(json.dumps({"rows": verdicts, "rounds": a.rounds}, indent=1))
    found = {row["verdict"] for row in verdicts.values()}
    return 1 if "WRONG" in found else 2 if "noisy" in found else 0


if __name__ == "__main__":
    sys.exit(main())
