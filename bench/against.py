#!/usr/bin/env python3
"""Whether `vellum bench` measures the filesystem and not itself: its figures against fio's and those of a loop in C.

  against.py [DIR] [--rounds N] [--most N] [--count N] [--size MIB] [--json FILE]

In turns, so that a slow minute spoils both sides of one round and no more; each ratio is the median of the rounds' own
ratios. A figure that is too high is as wrong as one that is too low: it says that something else was measured. So big
files may differ from fio's by 5 per cent either way, and names from the loop's by a factor of 0.9 either way.

Both sides begin with nothing to write back, with new files (one that is written over needs no blocks), and have made
and removed as many names as they are to make (what the filesystem frees it gives again faster). The verdict is of the
interval in which the true median lies with 95 per cent certainty: `ok` if all of it is allowed, `WRONG` if none of it
is, else `noisy`. While a row is noisy there are more rounds, up to `--most`. Exits with 1 if a row is wrong, with 2 if
none is wrong and some could not be judged.

VELLUM names the binary (default: from PATH), which has to be an optimised build.
"""

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from benchkit import contest, host

VELLUM = os.environ.get("VELLUM", "vellum")
BIG = 0.05
NAMES = 0.9
CERTAINTY = 0.95
MIB = 1 << 20

# Rows of `vellum bench` and what fio is told for the same.
FIO = {
    "big write": "--rw=write --fallocate=none",
    "big write, flushed": "--rw=write --fallocate=none --end_fsync=1",
    "big read, cold": "--rw=read --invalidate=1",
    "big read, warm": "--rw=read --invalidate=0",
}
LOOP = ["create", "mkdir", "rename", "readdir", "stat", "unlink", "rmdir"]


def vellum(place, *options):
    """The rows of one run: name → figure."""
    report = json.loads(host.run(VELLUM, "bench", place, "--json", "--runs", "1", *options))
    return {row["name"]: row["runs"][0] for row in report["rows"]}


def fio(place, size):
    """The same of fio, MiB/s."""
    rows = {}
    alike = f"--ioengine=sync --bs=1m --size={size}m --refill_buffers=0 --scramble_buffers=1"
    for name, options in FIO.items():
        if "write" in name:
            empty(place)
        side = host.fio(place, options, alike)
        rows[name] = side["io_bytes"] / MIB / side["runtime"]
    empty(place)
    return rows


def empty(place):
    """Removes fio's files, and waits until everything is written back: no side pays for what was before."""
    for file in Path(place).glob("work.*"):
        file.unlink()
    host.settle(place)


def loop(binary, place, count):
    """The same of the loop."""
    with tempfile.TemporaryDirectory(dir=place, prefix="bench-") as folder:
        return json.loads(host.run(binary, folder, count))


def likely(ratios):
    """The interval in which the true median lies with 95 per cent certainty; of fewer than six all that was seen."""
    found, count, cut, outside = sorted(ratios), len(ratios), 0, 0.0
    # As many are cut off at either end as leave that certainty, whatever the ratios' distribution is.
    while cut < (count - 1) // 2:
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 1 - CERTAINTY:
            break
        cut += 1
    cut = max(cut - 1, 0)
    return found[cut], found[-1 - cut]


def judge(ours, theirs, allowed):
    """The median ratio, the interval in which it lies, and what that means. `allowed`: as a logarithm."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    low, high = likely(ratios)
    if abs(math.log(low)) <= allowed and abs(math.log(high)) <= allowed:
        verdict = "ok"
    elif math.log(low) > allowed or math.log(high) < -allowed:
        verdict = "WRONG"
    else:
        verdict = "noisy"
    return statistics.median(ratios), (low, high), verdict


def judged(rows):
    """All rows: name → ratio, interval, verdict."""
    allowed = {name: math.log(1 + BIG) if name in FIO else -math.log(NAMES) for name in rows}
    return {name: judge(ours, theirs, allowed[name]) for name, (ours, theirs) in rows.items()}


def one_round(turn, place, binary, options, rows):
    """Both sides once: who is first in one round is second in the next."""
    big = ["--big-file-size", f"{options.size}M", "--small-file-count", "0"]
    names = ["--big-file-size", "0", "--small-file-size", "0", "--small-file-count", options.count]
    # First the big files of both, then the names of both: what is compared is measured close together.
    for ours, theirs in (
        (lambda: vellum(place, *big), lambda: fio(place, options.size)),
        (lambda: vellum(place, *names), lambda: loop(binary, place, options.count)),
    ):
        for number, side in contest.order([(0, ours), (1, theirs)], turn):
            empty(place)
            for name, figure in side().items():
                if name in rows:
                    rows[name][number].append(figure)


def measure(options) -> dict:
    """Runs both sides in turns until the rows can be judged."""
    rows = {name: ([], []) for name in [*FIO, *LOOP]}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="against-") as place:
        binary = host.compile_program("loop.c", place)
        for turn in range(max(options.rounds, options.most)):
            if turn >= options.rounds and all(verdict != "noisy" for _, _, verdict in judged(rows).values()):
                break
            one_round(turn, place, binary, options, rows)
    return rows


def main():
    """Measures, and prints the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", default=".")
    for name, default in {"--rounds": 7, "--most": 25, "--count": 20000, "--size": 1024}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    # Whoever ends it finds the directory as it was.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("against: stopped"))
    rows, verdicts = measure(options), {}
    print("| row | vellum bench | fio or loop | ratio | lies between | rounds | |\n|---|---:|---:|---:|---:|---:|---|")
    for name, (ratio, (low, high), verdict) in judged(rows).items():
        ours, theirs = rows[name]
        verdicts[name] = {"ratio": ratio, "between": [low, high], "verdict": verdict, "vellum": ours, "other": theirs}
        print(
            f"| {name} | {statistics.median(ours):.0f} | {statistics.median(theirs):.0f} | {ratio:.3f} "
            f"| {low:.3f} and {high:.3f} | {len(ours)} | {verdict} |"
        )
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": verdicts}, indent=1))
    found = {row["verdict"] for row in verdicts.values()}
    return 1 if "WRONG" in found else 2 if "noisy" in found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except host.CommandFailed as failure:
        sys.exit(f"against: {failure}")
