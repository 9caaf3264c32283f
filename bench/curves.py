"""What the page shows of bench/history and bench/machines: tables, and a curve for each headline as SVG.

A curve is broken where the machine changes: figures of different machines are never joined. Machines that others
contributed stand in a table of their own.
"""

import json
import re
from html import escape
from pathlib import Path

import history
from benchkit.figures import shown

# The picture, and the frame in it, in pixels.
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 480, 160, 70, 24, 30
NONE_YET = "None yet."


def load(folder: Path) -> list:
    """What a folder keeps: releases in the order of their versions, what is not released last; machines by name."""
    return sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=place)


def place(kept: dict) -> tuple:
    """By what records are sorted."""
    version = kept.get("version", "")
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return version == history.UNRELEASED, numbers, kept.get("name", "")


def table(kept: list, heading: str) -> str:
    """A row for each headline, a column for each record."""
    if not kept:
        return NONE_YET
    lines = [f"| | {' | '.join(each[heading] for each in kept)} |", "|---" * (len(kept) + 1) + "|"]
    for name in names(kept):
        cells = (each["figures"].get(name) for each in kept)
        texts = [shown(cell["value"], cell["unit"]) if cell else "–" for cell in cells]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def names(kept: list) -> list:
    """The headlines that some record has."""
    return [each["name"] for each in history.HEADLINES if any(each["name"] in record["figures"] for record in kept)]


def releases(folder: Path) -> str:
    """The table of releases, what they are, and the curves."""
    kept = load(folder)
    if not kept:
        return NONE_YET
    about = [f"{each['version']}: commit `{each['commit'][:12]}`, {each['time'][:10]}." for each in kept]
    pictures = [f"![{name}](history/{slug(name)}.svg)" for name in names(kept)] if len(kept) > 1 else []
    return "\n\n".join([table(kept, "version"), " ".join(about), *pictures])


def machines(folder: Path) -> str:
    """The table of contributed machines, and what they are."""
    kept = load(folder)
    about = [
        f"{each['name']}: {each['machine']['processors']} × {each['machine']['processor']}, Linux {each['machine']['kernel']}, "
        f"governor {each['governor']}; {each['yardsticks']['copy']:,.0f} MiB/s copied, {each['yardsticks']['calls']:,.0f} "
        f"system calls/s; commit `{each['commit'][:12]}`, {each['time'][:10]}."
        for each in kept
    ]
    return "\n\n".join([table(kept, "name"), *about])


def slug(name: str) -> str:
    """A name as a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def pictures(folder: Path) -> dict:
    """The SVG of each headline, by file name; none as long as there is one release only."""
    kept = load(folder)
    return {f"{slug(name)}.svg": curve(name, kept) for name in names(kept)} if len(kept) > 1 else {}


def segments(kept: list, name: str) -> list:
    """The figures of a headline, each with its number in the history; a new segment where the machine changes."""
    found, last = [], None
    for number, figures in enumerate(each["figures"] for each in kept):
        if name not in figures:
            continue
        if figures[name]["machine"] != last:
            found.append([])
            last = figures[name]["machine"]
        found[-1].append((number, figures[name]["value"]))
    return found


def curve(name: str, kept: list) -> str:
    """One curve, from nothing to its highest figure."""
    parts = segments(kept, name)
    unit = next(each["figures"][name]["unit"] for each in kept if name in each["figures"])
    most = max(value for part in parts for _, value in part) or 1
    across, down = WIDTH - LEFT - TOP, HEIGHT - TOP - BOTTOM

    def point(number, value):
        return f"{LEFT + across * number / max(len(kept) - 1, 1):.1f},{TOP + down * (1 - value / most):.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="15" font-weight="bold">{escape(name)}</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{shown(most, unit)}</text>',
        f'<text x="{LEFT - 6}" y="{TOP + down}" text-anchor="end">0</text>',
        f'<path d="M{LEFT},{TOP} V{TOP + down} H{LEFT + across}" fill="none" stroke="#888"/>',
    ]
    for part in parts:
        lines.append(f'<polyline points="{" ".join(point(*each) for each in part)}" fill="none" stroke="#06c" stroke-width="2"/>')
        for each in part:
            across_at, down_at = point(*each).split(",")
            lines.append(f'<circle cx="{across_at}" cy="{down_at}" r="3" fill="#06c"/>')
    for number, each in enumerate(kept):
        across_at = point(number, 0).split(",")[0]
        lines.append(f'<text x="{across_at}" y="{HEIGHT - 10}" text-anchor="middle">{escape(each["version"])}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
