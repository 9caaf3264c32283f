#!/usr/bin/env python3
"""Keeps the headlines of a release, or of another machine, for the tables and curves of docs/benchmarks.md.

    bench/history.py release VERSION           from bench/records into bench/history/VERSION.json
    bench/history.py machine NAME --records R  from records that were measured on another machine into bench/machines/NAME.json

What the headlines are is in bench/headlines.json. A release has a heading in CHANGELOG.md, or is `unreleased`: what is
measured since the last one, which is replaced each time. A release's record, and that of a machine, is never replaced. Both
are refused in a work tree with changes, since nobody could say what was measured; machines also if they were busy
(load 0.3 or more when a record began). Exit code 2: refused.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

from benchkit import contest, host, machine, record

FORMAT = 1
HEADLINES = json.loads((host.BENCH / "headlines.json").read_text())
HISTORY, MACHINES = host.BENCH / "history", host.BENCH / "machines"
RECORDS, COUNTS = host.BENCH / "records", host.BENCH / "counts.json"
LIMITS = host.ROOT / "target" / "bench" / "limits.json"
UNRELEASED = "unreleased"
# Above it another machine's figures are not taken.
IDLE = 0.3
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class Refused(Exception):
    """Nothing is kept, and why."""


def headlines(records: Path) -> dict:
    """The median of each headline that the records have, and where it was measured."""
    found = {}
    for each in HEADLINES:
        path = records / f"{each['record']}.json"
        whole = record.load(path) if path.is_file() else {"rows": []}
        key = (each.get("group", ""), each["row"], each.get("quantity", "time"))
        row = next((row for row in whole["rows"] if record.row_key(row) == key), None)
        value = contest.median(row, each.get("tool", whole["ours"])) if row else None
        if value is not None:
            where = whole["machine"]
            on = f"{where['processors']} × {where['processor']}"
            found[each["name"]] = {"value": value, "unit": row["unit"], "machine": on, "date": whole["time"][:10]}
    return found


def versions(changelog: str) -> list:
    """The releases that a changelog knows."""
    return re.findall(r"^## \[?(\d+\.\d+\.\d+[^\s\]]*)", changelog, re.M)


def check_version(version: str, changelog: str, folder: Path):
    """Refuses what is no release, or has a record."""
    if version == UNRELEASED:
        return
    if version not in versions(changelog):
        raise Refused(f"CHANGELOG.md has no release {version}; what is not released yet is '{UNRELEASED}'")
    if (folder / f"{version}.json").exists():
        raise Refused(f"{folder / version}.json exists: the record of a release is not replaced")


def check_machine(name: str, folder: Path, records: list):
    """Refuses a name that is taken or is none, and records of a busy machine."""
    if not NAME.fullmatch(name):
        raise Refused(f"'{name}' is no name of a machine: small letters, digits, dots and hyphens, as in lab-server.2026-12")
    if (folder / f"{name}.json").exists():
        raise Refused(f"{folder / name}.json exists: give this one another name, with its month for example")
    if not records:
        raise Refused("there are no records: 'make measure RECORDS=DIR' makes them")
    busy = [f"{each['name']} (load {each['machine']['load']:.1f})" for each in records if each["machine"]["load"] >= IDLE]
    if busy:
        raise Refused(f"the machine was busy when these were measured: {', '.join(busy)}. Measure them again")


def commit_of(root: Path) -> str:
    """The commit of a work tree that has no changes."""
    if changed := host.run("git", "status", "--porcelain", cwd=root):
        first = changed.splitlines()[0].split(maxsplit=1)[-1]
        raise Refused(f"the work tree has changes ({first}, …): commit them first")
    return host.run("git", "rev-parse", "HEAD", cwd=root)


def about(commit: str, records: Path) -> dict:
    """What all that is kept begins with."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"format": FORMAT, "commit": commit, "time": moment, "figures": headlines(records)}


def release(version: str) -> dict:
    """The record of a release: with the counts of instructions, and what `make regression` found last."""
    check_version(version, (host.ROOT / "CHANGELOG.md").read_text(), HISTORY)
    made = about(commit_of(host.ROOT), RECORDS) | {"version": version, "counts": json.loads(COUNTS.read_text())}
    if LIMITS.is_file():
        limits = json.loads(LIMITS.read_text())["limits"]
        made["limits"] = {row["name"]: {key: row[key] for key in ("figure", "unit", "verdict")} for row in limits}
    return made


def other_machine(name: str, folder: Path) -> dict:
    """The record of another machine, with what tells how far it can be trusted."""
    records = [record.load(path) for path in sorted(folder.glob("*.json"))]
    check_machine(name, MACHINES, records)
    governor = GOVERNOR.read_text().strip() if GOVERNOR.is_file() else "unknown"
    commands = list(dict.fromkeys(command for each in records for command in record.commands_of(each)))
    known = {"name": name, "machine": record.machine(), "governor": governor, "yardsticks": vars(machine.State.now())}
    return about(commit_of(host.ROOT), folder) | known | {"commands": commands}


def keep(made: dict, place: Path):
    """Writes it."""
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{place}: {len(made['figures'])} of {len(HEADLINES)} headlines; 'make report' puts them into docs/benchmarks.md")


def main() -> int:
    """Keeps one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("release", help="of this project").add_argument("version")
    other = kinds.add_parser("machine", help="of somebody else's machine")
    other.add_argument("name")
    other.add_argument("--records", type=Path, required=True, help="the directory of its records")
    asked = parser.parse_args()
    try:
        if asked.kind == "release":
            keep(release(asked.version), HISTORY / f"{asked.version}.json")
        else:
            keep(other_machine(asked.name, asked.records), MACHINES / f"{asked.name}.json")
    except (Refused, host.CommandFailed) as refused:
        print(f"history.py: {refused}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
