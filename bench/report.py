#!/usr/bin/env python3
"""Makes docs/benchmarks.md from its template and the records, so that no figure in it was typed by hand.

    bench/report.py                   writes docs/benchmarks.md from docs/benchmarks.in.md and bench/records/*.json
    bench/report.py --check           says whether it is what they make, and changes nothing
    bench/report.py RECORD.json...    prints the tables of some records

In the template stand, each on a line of its own or within one:

    {{about RECORD}}                                   command, machine, versions, setting, load
    {{table RECORD [group=G] [quantity=Q]}}            a row for each row, a column for each tool, the ratios
    {{figure RECORD row=R tool=T [group=G] [quantity=Q]}}
    {{ratio RECORD row=R to=T [of=T] [group=G] [quantity=Q]}}

A record that is not there yet gives "not measured".
"""

import argparse
import re
import shlex
import sys
from pathlib import Path

import contest
import record

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "docs" / "benchmarks.in.md"
OUTPUT = ROOT / "docs" / "benchmarks.md"
RECORDS = ROOT / "bench" / "records"
MISSING = "not measured"
DIRECTIVE = re.compile(r"\{\{(\w+) ([^}]*)\}\}")
HEADER = "<!-- Made by `make report` from docs/benchmarks.in.md and bench/records. Edit those. -->\n\n"


def shown(value, unit) -> str:
    """A figure with a unit that fits it."""
    if value is None:
        return "–"
    if unit == "s":
        return seconds(value)
    if unit == "bytes":
        return scaled(value, ("B", "KiB", "MiB", "GiB"), 1024)
    if unit == "bytes per second":
        return scaled(value, ("B/s", "KB/s", "MB/s", "GB/s"), 1000)
    if unit == "count" and value != int(value):
        return digits(value)
    return f"{value:,.0f}{'/s' if unit == 'per second' else ''}"


def seconds(value) -> str:
    """A time: three digits are as many as such a figure has."""
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
        if value * factor >= 1 or name == "ns":
            return f"{digits(value * factor)} {name}"
    return "0 s"


def scaled(value, names, base) -> str:
    """A size or a rate."""
    for name in names:
        if value < base or name == names[-1]:
            return f"{digits(value)} {name}"
        value /= base
    return ""


def digits(value) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def chosen(whole, group=None, quantity=None):
    """The rows that a directive asks for."""
    return [
        row
        for row in whole["rows"]
        if (group is None or row["group"] == group) and (quantity is None or row["quantity"] == quantity)
    ]


def table(whole, **wanted) -> str:
    """A Markdown table of the record's rows."""
    rows = chosen(whole, **wanted)
    if not rows:
        return MISSING
    ours, floors = whole["ours"], whole["floors"]
    columns = [name for name in whole["columns"] if any(contest.median(row, name) is not None for row in rows)]
    rivals = [name for name in columns if name != ours and name not in floors]
    versus = [name for name in floors if name in columns and ours in columns]
    head = [wanted.get("group") or "", *columns]
    head += ["to the best rival"] * bool(rivals and ours in columns) + [f"to {name}" for name in versus]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [label(row, rows), *(shown(contest.median(row, name), row["unit"]) for name in columns)]
        if rivals and ours in columns:
            cells.append(to_best(row, ours, rivals))
        cells += [str(contest.ratio(row, ours, name) or "–") for name in versus]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def label(row, rows) -> str:
    """A row's name, with its group and quantity where the table mixes them."""
    parts = [row["name"]]
    if len({other["group"] for other in rows}) > 1 and row["group"]:
        parts.insert(0, row["group"])
    if len({other["quantity"] for other in rows}) > 1:
        parts.append(row["quantity"])
    return ", ".join(parts)


def to_best(row, ours, rivals) -> str:
    """The ratio to the best rival, and its name."""
    best = contest.best(row, rivals)
    ratio = contest.ratio(row, ours, best) if best else None
    return f"{ratio} ({best})" if ratio else "–"


def one(whole, row, **wanted):
    """The one row that a directive names."""
    found = [each for each in chosen(whole, **wanted) if each["name"] == row]
    return found[0] if found else None


def figure(whole, row, tool, **wanted) -> str:
    """One median."""
    found = one(whole, row, **wanted)
    return shown(contest.median(found, tool), found["unit"]) if found else MISSING


def ratio(whole, row, to, of=None, **wanted) -> str:
    """One ratio; `to=best` is to the best rival."""
    found = one(whole, row, **wanted)
    if not found:
        return MISSING
    ours = of or whole["ours"]
    if to == "best":
        return to_best(found, ours, [name for name in whole["columns"] if name not in (ours, *whole["floors"])])
    return str(contest.ratio(found, ours, to) or MISSING)


def about(whole) -> str:
    """Where the figures come from."""
    machine = whole["machine"]
    lines = [
        f"`{whole['command']}`, {whole['time'][:10]}; {machine['processors']} processors ({machine['processor']}), "
        f"Linux {machine['kernel']}; load {machine['load']:.1f} before, {whole['load_at_end']:.1f} after."
    ]
    lines += [f"{name[0].upper()}{name[1:]}: {text}." for name, text in whole["setting"].items() if text]
    lines += [f"Left out: {each['tool']} at {each['row']} ({each['why']})." for each in whole["left_out"]]
    return " ".join(lines)


DIRECTIVES = {"about": about, "table": table, "figure": figure, "ratio": ratio}


def directive(match, records) -> str:
    """What a directive stands for."""
    name, arguments = match.group(1), shlex.split(match.group(2))
    if name not in DIRECTIVES or not arguments:
        sys.exit(f"{TEMPLATE}: no directive {match.group(0)}")
    path = records / f"{arguments[0]}.json"
    if not path.is_file():
        return MISSING
    return DIRECTIVES[name](record.load(path), **dict(argument.split("=", 1) for argument in arguments[1:]))


def rendered(records=RECORDS) -> str:
    """The whole page."""
    return HEADER + DIRECTIVE.sub(lambda match: directive(match, records), TEMPLATE.read_text())


def printed(whole) -> str:
    """All tables of one record."""
    kinds = dict.fromkeys((row["group"], row["quantity"]) for row in whole["rows"])
    parts = [f"## {whole['title']}", about(whole)]
    for group, quantity in kinds:
        parts += [f"### {', '.join(filter(None, (group, quantity)))}", table(whole, group=group, quantity=quantity)]
    return "\n\n".join(parts) + "\n"


def main():
    """Prints, writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", nargs="*", type=Path, help="print the tables of these, and make no page")
    parser.add_argument("--check", action="store_true", help="only see whether the page is what would be made")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where they are (default: bench/records)")
    parser.add_argument("--page", type=Path, default=OUTPUT, help="what is written (default: docs/benchmarks.md)")
    arguments = parser.parse_args()
    if arguments.record:
        print("\n".join(printed(record.load(path)) for path in arguments.record))
        return
    page = rendered(arguments.records)
    if not arguments.check:
        arguments.page.write_text(page)
    elif not arguments.page.is_file() or arguments.page.read_text() != page:
        sys.exit(f"{arguments.page} is not what {TEMPLATE.name} and the records make: run `make report`")


if __name__ == "__main__":
    main()
