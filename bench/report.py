#!/usr/bin/env python3
"""Makes docs/benchmarks.md from its template and the records, so that no figure in it was typed by hand.

    bench/report.py                   writes docs/benchmarks.md from docs/benchmarks.in.md and bench/records/*.json
    bench/report.py --check           says whether it is what they make, and changes nothing
    bench/report.py RECORD.json...    prints the tables of some records

In the template stand, each on a line of its own or within one:

    {{about RECORD}}                                   command, machine, versions, setting, load
    {{table RECORD [group=G] [quantity=Q] [rows=R;R] [to=T,T] [without=T]}}
                                                       a row for each row (or for some, in that order), a column for each tool, the ratios
    {{figure RECORD row=R tool=T [group=G] [quantity=Q]}}
    {{ratio RECORD row=R to=T [of=T] [group=G] [quantity=Q]}}
    {{costs RECORD group=G [rows=R;R]}}                what the work of some rows would cost at the prices of prices.toml

A ratio is to a tool, to the best of some (T/T), or to the `best` rival. Ratios over the targets of bench/targets.json, and
figures of ours over theirs, are bold. A figure that no record has is "not measured", and named on standard error. Text
that has a measured figure of its own is refused: see `typed`.
"""

import argparse
import fnmatch
import json
import re
import shlex
import sys
from pathlib import Path

import costs
import curves
from benchkit import contest, record
from benchkit.figures import shown

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "docs" / "benchmarks.in.md"
OUTPUT = ROOT / "docs" / "benchmarks.md"
RECORDS = ROOT / "bench" / "records"
# Beside records and page: what was kept of releases and machines, and the curves of it.
KEPT = {"releases": ("history", curves.releases), "machines": ("machines", curves.machines)}
# The most that a ratio may be, or without `to` our figure itself, or that of `tool`, where several are ours. The first that
# fits a row is meant; `rows` are shell patterns of their names.
TARGETS = json.loads((ROOT / "bench" / "targets.json").read_text())
MISSING = "not measured"
DIRECTIVE = re.compile(r"\{\{(\w+) ([^}]*)\}\}")
# Older records have peak memory with the size of the interpreter that started the tool: a floor of about so much.
MEMORY_FLOOR = 20 << 20
# Length of a reason that is worth a reader's while.
REASON = 160
# Columns that are ours, and what a measured figure looks like in running text.
OURS = ("measured", "mounted", "checked out", "here")
MEASURED = re.compile(r"\d ?(ns|µs|us|ms|s|×|x|%|times|[KMG]i?B/s|/s)(?![\w])")
HEADER = "<!-- Made by `make report` from docs/benchmarks.in.md and bench/records. Edit those. -->\n\n"


def chosen(whole, group=None, quantity=None):
    """The rows that a directive asks for."""
    return [
        row
        for row in whole["rows"]
        if (group is None or row["group"] == group) and (quantity is None or row["quantity"] == quantity)
    ]


def table(whole, to=None, without="", rows="", **wanted) -> str:
    """A Markdown table of the record's rows, or of some of them."""
    names = rows.split(";")
    rows = chosen(whole, **wanted)
    if names != [""]:
        rows = sorted((row for row in rows if row["name"] in names), key=lambda row: names.index(row["name"]))
    if not rows:
        return MISSING
    ours, floors = whole["ours"], whole["floors"]
    present = [name for name in whole["columns"] if any(contest.median(row, name) is not None for row in rows)]
    columns = [name for name in present if name not in without.split(",")]
    rivals = [name for name in columns if name != ours and name not in floors]
    versus = to.split(",") if to else ["best"] * bool(rivals) + [name for name in floors if name in columns]
    versus = versus if ours in columns else []
    head = [", ".join(filter(None, (wanted.get("group"), wanted.get("quantity")))), *columns]
    head += [f"to {'the best rival' if name == 'best' else name.replace('/', ', ')}" for name in versus]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [label(row, rows), *(told(whole, row, name) for name in columns)]
        cells += [compared(whole, row, ours, name, rivals) for name in versus]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def told(whole, row, tool) -> str:
    """A tool's figure in a row."""
    value = contest.median(row, tool)
    hidden = "≤ " if is_floor(whole, row, value) else ""
    text = hidden + shown(value, row["unit"])
    most = target(whole, row, tool=tool) if value is not None else None
    return f"**{text}**" if most is not None and value > most else text


def is_floor(whole, row, value) -> bool:
    """Whether a figure of memory only says that it is no more than what started the tool."""
    own = whole["setting"].get("started by")
    return row["quantity"] == "peak memory" and value is not None and value < MEMORY_FLOOR and not own


def compared(whole, row, ours, to, rivals) -> str:
    """A ratio: to a tool, or to the best of some, whose name it then has; bold if it misses its target."""
    among = rivals if to == "best" else to.split("/")
    other = contest.best(row, among)
    found = contest.ratio(row, ours, other) if other else None
    if not found or any(is_floor(whole, row, contest.median(row, name)) for name in (ours, other)):
        return "–"
    text = f"{found} ({other})" if len(among) > 1 or to == "best" else str(found)
    most = target(whole, row, to)
    return f"**{text}**" if most and not found.noisy and round(found.value, 2) > most else text


def target(whole, row, to=None, tool=None):
    """The most that a ratio may be, or our figure or that of a tool which has a target of its own, if anybody said."""
    ours = whole["ours"]
    for each in TARGETS:
        fits = each["record"] == whole["name"] and each.get("to") == to
        fits = fits and each.get("tool", ours) == (tool or ours)
        fits = fits and all(each.get(key, row[key]) == row[key] for key in ("group", "quantity"))
        if fits and any(fnmatch.fnmatchcase(row["name"], pattern) for pattern in each.get("rows", ["*"])):
            return each["most"]
    return None


def label(row, rows) -> str:
    """A row's name, with its group and quantity where the table mixes them."""
    parts = [row["name"]]
    if len({other["group"] for other in rows}) > 1 and row["group"]:
        parts.insert(0, row["group"])
    if len({other["quantity"] for other in rows}) > 1:
        parts.append(row["quantity"])
    return ", ".join(parts)


def one(whole, row, **wanted):
    """The one row that a directive names."""
    found = [each for each in chosen(whole, **wanted) if each["name"] == row]
    return found[0] if found else None


def figure(whole, row, tool, **wanted) -> str:
    """One median."""
    found = one(whole, row, **wanted)
    return told(whole, found, tool) if found and contest.median(found, tool) is not None else MISSING


def ratio(whole, row, to, of=None, **wanted) -> str:
    """One ratio; `to=best` is to the best rival."""
    found = one(whole, row, **wanted)
    if not found:
        return MISSING
    ours = of or whole["ours"]
    rivals = [name for name in whole["columns"] if name not in (ours, *whole["floors"])]
    text = compared(whole, found, ours, to, rivals)
    return MISSING if text == "–" else text


def about(whole) -> str:
    """Where the figures come from."""
    machine = whole["machine"]
    command = whole["command"] if isinstance(whole["command"], list) else [whole["command"]]
    lines = [
        f"{', '.join(f'`{each}`' for each in command)}, {whole['time'][:10]}; {machine['processors']} processors ({machine['processor']}), "
        f"Linux {machine['kernel']}; load {machine['load']:.1f} before, {whole['load_at_end']:.1f} after."
    ]
    lines += [f"{name[0].upper()}{name[1:]}: {text}." for name, text in whole["setting"].items() if text]
    left_out = ((each, " ".join(each["why"].split())[:REASON]) for each in whole["left_out"])
    lines += [f"Left out: {each['tool']} at {each['row']} ({why})." for each, why in left_out]
    return " ".join(lines)


def money(whole, group, rows="") -> str:
    """A table of costs at list prices."""
    return costs.table(whole, costs.load_prices(), group, rows)


DIRECTIVES = {"about": about, "table": table, "figure": figure, "ratio": ratio, "costs": money}


def directive(match, records, missing) -> str:
    """What a directive stands for."""
    name, arguments = match.group(1), shlex.split(match.group(2))
    if name not in DIRECTIVES or not arguments:
        sys.exit(f"{TEMPLATE}: no directive {match.group(0)}")
    path = records / f"{arguments[0]}.json"
    text = MISSING
    if path.is_file():
        text = DIRECTIVES[name](record.load(path), **dict(argument.split("=", 1) for argument in arguments[1:]))
    if text == MISSING:
        missing.append(match.group(0))
    # That nothing is known of a record is said once, by its tables.
    return "" if text == MISSING and name == "about" else text


def typed(template) -> list:
    """Lines behind "## Targets" in which a figure was typed that only a record can know: in a column of ours, or in
    running text a time, a rate, a share or a ratio. What a target is may be said, in paragraphs that begin so."""
    found, columns, is_target = [], [], False
    body = template[template.index("\n## Targets") :]
    for line in body.splitlines():
        plain = DIRECTIVE.sub("", line)
        cells = [cell.strip() for cell in re.split(r"\s*\|\s*", plain.strip().strip("|"))]
        if not line.strip():
            columns, is_target = [], False
        elif line.startswith("|"):
            columns = columns or cells
            ours = [cell for name, cell in zip(columns, cells) if name in OURS]
            found += [line] * any(re.search(r"(?<![A-Za-z])\d", re.sub(r"`[^`]*`", "", cell)) for cell in ours)
        else:
            is_target = is_target or plain.startswith("Target")
            found += [line] * bool(not is_target and MEASURED.search(plain))
    return found


def rendered(template, records=RECORDS, missing=None) -> str:
    """The whole page. What no record has goes to `missing`."""
    missing = [] if missing is None else missing
    text = DIRECTIVE.sub(lambda match: directive(match, records, missing), template)
    for name, (folder, told) in KEPT.items():
        text = text.replace("{{" + name + "}}", told(ROOT / "bench" / folder))
    return HEADER + re.sub(r"\n{3,}", "\n\n", text)


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
    template, missing = TEMPLATE.read_text(), []
    if lines := typed(template):
        sys.exit("\n".join([f"{TEMPLATE}: these figures were typed by hand; they belong into a record:", *lines]))
    drawn = curves.pictures(ROOT / "bench" / "history")
    made = {arguments.page: rendered(template, arguments.records, missing)}
    made |= {arguments.page.parent / "history" / name: text for name, text in drawn.items()}
    if not arguments.check:
        for path, text in made.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(*(f"not measured: {each}" for each in missing), sep="\n", file=sys.stderr)
    for path, text in made.items():
        if not path.is_file() or path.read_text() != text:
            sys.exit(f"{path} is not what {TEMPLATE.name} and the records make: run `make report`")


if __name__ == "__main__":
    main()
