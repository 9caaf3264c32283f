#!/usr/bin/env python3
"""Turns samples into tables of medians and ratios, in Markdown.

A ratio is the median of the rounds' own ratios (Vellum's figure over the rival's in the same round), never the ratio of two
medians: a slow minute then spoils both sides of one round and no more. "Fastest" is the rival with the least median.

usage: report.py SAMPLES.json
"""

import json
import statistics
import sys
from pathlib import Path

from tools import FLOORS, RIVALS

OURS = "vellum"
TITLES = {
    "first": "First snapshot",
    "again": "Second snapshot, nothing changed",
    "restore": "Restore into an empty directory",
    "verify": "Verify, all content read",
}
MIB = 1 << 20


def merged(path: Path, new: dict) -> dict:
    """What `path` holds, with a tree's old samples replaced by new ones of the same tool and operation."""
    if not path.is_file():
        return new
    old = json.loads(path.read_text())
    again = {key(sample) for sample in new["samples"]}
    kept = [sample for sample in old["samples"] if key(sample) not in again]
    return {"machine": new["machine"], "trees": old["trees"] | new["trees"], "samples": kept + new["samples"]}


def key(sample):
    """What is replaced by a later run."""
    return sample["tree"], sample["tool"], sample["op"]


def series(result, tree, tool, op, field):
    """The figures of one tool in the order of the rounds: round → figure."""
    return {
        s["round"]: s[field]
        for s in result["samples"]
        if (s["tree"], s["tool"], s["op"]) == (tree, tool, op) and s.get(field) is not None
    }


def median(values):
    """The median, or nothing."""
    return statistics.median(values) if values else None


def ratio(ours: dict, theirs: dict):
    """The median of the ratios of the rounds that both were in."""
    return median([ours[r] / theirs[r] for r in ours.keys() & theirs.keys() if theirs[r]])


def seconds(value):
    """A time for a table."""
    return "–" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def mebibytes(value):
    """A size for a table."""
    return "–" if value is None else f"{value / MIB:.1f}"


def times(value):
    """A ratio for a table."""
    return "–" if value is None else f"{value:.2f} ×"


def table(result, title, op, field, shown):
    """One table: a row per tree, a column per tool, then the ratios."""
    present = {s["tool"] for s in result["samples"] if s["op"] == op and s.get(field) is not None}
    columns = [t for t in (OURS, *RIVALS, *FLOORS) if t in present]
    floors = [t for t in FLOORS if t in present and OURS in present]
    versus = ["to the best rival"] if OURS in present and present & set(RIVALS) else []
    head = ["tree", *columns, *versus, *(f"to {t}" for t in floors)]
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for tree in result["trees"]:
        data = {t: series(result, tree, t, op, field) for t in columns}
        if not any(data.values()):
            continue
        cells = [shown(median(list(data[t].values()))) for t in columns]
        best = min((t for t in RIVALS if data.get(t)), key=lambda t: median(data[t].values()), default=None)
        if versus:
            cells.append(f"{times(ratio(data[OURS], data[best]))} ({best})" if best else "–")
        cells += [times(ratio(data[OURS], data[t])) for t in floors]
        lines.append("| " + " | ".join([tree, *cells]) + " |")
    return "\n".join(lines) + "\n"


def speeds(result):
    """Verify again, as logical bytes per second."""
    rows = []
    for tree, size in result["trees"].items():
        for tool in (OURS, *RIVALS):
            wall = median(list(series(result, tree, tool, "verify", "wall").values()))
            if wall:
                rows.append(f"| {tree} | {tool} | {size['bytes'] / wall / 1e6:.0f} |")
    return "\n".join(["### Verify, logical bytes", "", "| tree | tool | MB/s |", "|---|---|---|", *rows]) + "\n"


def markdown(result) -> str:
    """All tables."""
    ops = {s["op"] for s in result["samples"]}
    parts = [table(result, f"{t}: median seconds", op, "wall", seconds) for op, t in TITLES.items() if op in ops]
    if "verify" in ops:
        parts.append(speeds(result))
    parts += [table(result, f"{t}: processor seconds", op, "cpu", seconds) for op, t in TITLES.items() if op in ops]
    parts.append(table(result, "Space of the repository after the first snapshot: MiB", "first", "space", mebibytes))
    parts += [
        table(result, f"{t}: peak memory, MiB", op, "peak", mebibytes) for op, t in TITLES.items() if op in ops
    ]
    sizes = ", ".join(f"{t}: {s['files']} files, {s['bytes'] / MIB:.0f} MiB" for t, s in result["trees"].items())
    return "\n".join([f"Trees: {sizes}.", "", *parts])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
