#!/usr/bin/env python3
"""Sees whether the limits of bench/limits.json are kept: absolute ones, apart from `make test`.

    bench/regression.py                    all limits; a Markdown table on standard output
    bench/regression.py --only WORD...     those in whose name one of the words is
    bench/regression.py --json FILE        keeps the figures, too
    bench/regression.py --short            small trees, to see that it works; nothing is judged

A figure is the median of three runs of the command, from its start to its exit. The load and two yardsticks of the machine
(copying memory, the cheapest system call) stand above the table. On a machine that is busy, or of which a yardstick is
below half of the reference, nothing is judged. Exit code 0: all are kept, are known to fail, or were not judged; 1: a limit
is not kept, or a command failed; 2: it could not be tried. How to add a limit: CONTRIBUTING.md.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchkit import host, machine, measure
from benchkit.figures import shown
from benchkit.scene import Scene

LIMITS = host.BENCH / "limits.json"
RUNS = 3
KEPT, OVER, FAILED = "kept", "OVER", "FAILED"
KNOWN, KEPT_AGAIN, NOT_JUDGED = "known to fail", "kept: remove known_failing", "not judged"


def verdict(limit: dict, figure, is_judged: bool) -> str:
    """What is said of a figure; None: the command failed."""
    if figure is None:
        return FAILED
    if not is_judged:
        return NOT_JUDGED
    is_kept = figure <= limit["limit"]
    if "known_failing" in limit:
        return KEPT_AGAIN if is_kept else KNOWN
    return KEPT if is_kept else OVER


def is_red(words) -> bool:
    """Whether a verdict fails the run."""
    return any(word in (OVER, FAILED) for word in words)


def run_limit(scene: Scene, limit: dict, log: Path) -> list:
    """The figures of one limit."""
    found = []
    for _ in range(RUNS):
        scene.run_all(limit.get("before", []))
        cost = measure.run(scene.words(limit["command"]), env=scene.env, log=log)
        found.append(cost.peak if limit["unit"] == "bytes" else cost.wall)
        scene.next_round()
    return found


def run_all(told: dict, limits: list, work: Path, short: bool) -> dict:
    """The figures of all limits by name, scene by scene. What fails has none, and the others go on."""
    found = {}
    for number, name in enumerate(dict.fromkeys(limit["scene"] for limit in limits)):
        print(f"{name} ...", file=sys.stderr, flush=True)
        here = [limit for limit in limits if limit["scene"] == name]
        try:
            with Scene(told["scenes"][name], work / str(number), short) as scene:
                for limit in here:
                    try:
                        found[limit["name"]] = run_limit(scene, limit, work / "log")
                    except host.CommandFailed as failure:
                        print(f"{limit['name']}: {failure}", file=sys.stderr)
        except host.CommandFailed as failure:
            print(f"{name}: {failure}", file=sys.stderr)
    return found


def rows(limits: list, found: dict, is_judged: bool) -> list:
    """Each limit with its figure and what is said of it."""
    made = []
    for limit in limits:
        runs = found.get(limit["name"], [])
        figure = statistics.median(runs) if runs else None
        made.append(limit | {"runs": runs, "figure": figure, "verdict": verdict(limit, figure, is_judged)})
    return made


def table(made: list) -> str:
    """A Markdown table."""
    lines = ["| | figure | limit | | from |", "|---|---|---|---|---|"]
    for row in made:
        figure, limit = (shown(row[key], row["unit"]) for key in ("figure", "limit"))
        known = row.get("known_failing")
        why = f" ({shown(known['figure'], row['unit'])}: {known['why']})" if known else ""
        lines.append(f"| {row['name']} | {figure} | {limit} | {row['verdict']}{why} | {row['why']} |")
    return "\n".join(lines)


def main() -> int:
    """Runs and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="limits in whose name a word is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures there")
    parser.add_argument("--short", action="store_true", help="small trees; nothing is judged")
    parser.add_argument("--work", type=Path, default=host.CACHE / "work", help="on the disk to be measured")
    asked = parser.parse_args()
    told = json.loads(LIMITS.read_text())
    limits = [limit for limit in told["limits"] if any(word in limit["name"] for word in asked.only)]
    asked.work.mkdir(parents=True, exist_ok=True)
    try:
        here = machine.State.now()
        with tempfile.TemporaryDirectory(dir=asked.work, prefix="regression-") as work:
            found = run_all(told, limits, Path(work), asked.short)
        after = machine.State.now()
    except host.CommandFailed as failure:
        print(f"regression.py: {failure}", file=sys.stderr)
        return 2
    doubts = ["small trees"] * asked.short + machine.doubts([here, after], told["reference"])
    made = rows(limits, found, not doubts)
    print(f"Before: {here}. After: {after}. Reference: {told['reference']['machine']}.")
    print(*[f"Not judged: {each}." for each in doubts], "", table(made), sep="\n")
    if asked.json:
        whole = {"before": vars(here), "after": vars(after), "doubts": doubts, "limits": made}
        asked.json.write_text(json.dumps(whole, indent=1) + "\n")
    return 1 if is_red(row["verdict"] for row in made) else 0


if __name__ == "__main__":
    sys.exit(main())
