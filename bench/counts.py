#!/usr/bin/env python3
"""Counts the instructions of commands and of operations of the library, and compares them with bench/counts.json. What is counted is
in bench/counted.json, in scenes as they are described in benchkit/scene.py.

    bench/counts.py                   a Markdown table; exit code 1 if something takes more than it did
    bench/counts.py --only WORD...    what has one of the words in its name
    bench/counts.py --record          writes what was counted into bench/counts.json, as what is compared with from now on

valgrind counts (`--tool=callgrind`), of the shipped binary (VELLUM, target/dist/vellum) and of an example of the library
(OPERATIONS, target/dist/examples/counted_operations): `make counts` builds both. The smallest of five
counts, each in a new volume, is compared with the largest of five that were recorded: keys are random, and with them the
shape of trees. Commands that read the clock through the kernel's shared page
cannot be counted: valgrind takes that page away, and they crash; among these are mounts. Nor can what varies by
itself by more than is allowed: 'usage', and snapshots of changes. More is what exceeds the recorded count by 1 % and
by 10,000 instructions. Counts of another compiler, C library or valgrind cannot be compared: that is said, and fails
nothing. valgrind runs one thread at a time, so that what is gained by several is not seen here: that is measured by
`make measure`.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from benchkit import host, record
from benchkit.scene import Scene

COUNTED, COUNTS = host.BENCH / "counted.json", host.BENCH / "counts.json"
VALGRIND = "valgrind --tool=callgrind --callgrind-out-file=/dev/null".split()
RUNS = 5
# How often an operation is done, and what may be more before somebody has to look.
TIMES = 200
PART, LEAST = 0.01, 10_000
MORE, SAME, NEW, NOT_COMPARABLE = "MORE", "no more", "not recorded", "not comparable"
REFS = re.compile(rb"I\s+refs:\s+([\d,]+)")


def made_with() -> dict:
    """What counts depend on, beside the code."""
    libc = host.run("ldd", "--version").splitlines()[0]
    return {"compiler": record.version("rustc"), "valgrind": record.version("valgrind"), "C library": libc}


def verdict(count: float, recorded, is_comparable: bool) -> str:
    """What is said of a count."""
    if recorded is None:
        return NEW
    if not is_comparable:
        return NOT_COMPARABLE
    return MORE if count - recorded > max(PART * recorded, LEAST) else SAME


def count(words: list, env=None) -> int:
    """The instructions of one command."""
    with tempfile.NamedTemporaryFile() as log:
        # 1: a command that lists what can be done has something to list.
        host.run(*VALGRIND, f"--log-file={log.name}", *words, env=env, ok=(0, 1))
        found = REFS.search(log.read())
    if not found:
        raise host.CommandFailed(f"{' '.join(map(str, words))}: valgrind counted nothing")
    return int(found.group(1).replace(b",", b""))


def count_command(scene: Scene, command: dict) -> int:
    """A command with what stands around it."""
    scene.run_all(command.get("before", []))
    counted = count(scene.words(command["command"]), scene.env)
    scene.run_all(command.get("after", []))
    scene.next_round()
    return counted


def count_operation(program: str, name: str, volume: Path) -> int:
    """The instructions of one operation: what many take, less what none takes."""
    some, none = (count([program, volume, name, times]) for times in (TIMES, 0))
    return max(some - none, 0) // TIMES


def count_once(told: dict, only: list, work: Path) -> dict:
    """A count of everything by name, in scenes and a volume of their own."""
    found = {}
    wanted = [command for command in told["commands"] if any(word in command["name"] for word in only)]
    for number, name in enumerate(dict.fromkeys(command["scene"] for command in wanted)):
        with Scene(told["scenes"][name], work / str(number)) as scene:
            here = [command for command in wanted if command["scene"] == name]
            found |= {command["name"]: count_command(scene, command) for command in here}
    program = os.environ.get("OPERATIONS") or host.ROOT / "target/dist/examples/counted_operations"
    operations = [name for name in told["operations"] if any(word in f"library: {name}" for word in only)]
    if operations:
        host.run(program, work / "volume", "prepare")
    return found | {f"library: {name}": count_operation(program, name, work / "volume") for name in operations}


def count_all(told: dict, only: list, choose=min) -> dict:
    """The smallest, or the largest, of some counts by name: a volume has random keys, by which the shape of its tree varies."""
    found = {}
    for number in range(RUNS):
        with tempfile.TemporaryDirectory() as work:
            for name, counted in count_once(told, only, Path(work)).items():
                found[name] = choose(found.get(name, counted), counted)
        print(f"{number + 1} of {RUNS} runs", file=sys.stderr)
    return found


def compared(recorded: dict, found: dict, here: dict) -> list:
    """Each count with what is said of it."""
    is_comparable, before = recorded["made_with"] == here, recorded["counts"]
    return [(name, found[name], before.get(name), verdict(found[name], before.get(name), is_comparable)) for name in found]


def table(rows: list) -> str:
    """A Markdown table."""
    lines = ["| | instructions | recorded | change | |", "|---|---|---|---|---|"]
    for name, counted, recorded, said in rows:
        change = f"{counted / recorded - 1:+.2%}" if recorded else "–"
        lines.append(f"| {name} | {counted:,} | {f'{recorded:,}' if recorded else '–'} | {change} | {said} |")
    return "\n".join(lines)


def main() -> int:
    """Counts and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="what has a word in its name")
    parser.add_argument("--record", action="store_true", help="write bench/counts.json")
    asked = parser.parse_args()
    told, recorded, here = json.loads(COUNTED.read_text()), json.loads(COUNTS.read_text()), made_with()
    if asked.record and asked.only != [""] and recorded["made_with"] != here:
        parser.error("what is recorded was counted with other tools: record all of it")
    try:
        found = count_all(told, asked.only, max if asked.record else min)
    except host.CommandFailed as failure:
        print(f"counts.py: {failure}", file=sys.stderr)
        return 2
    rows = compared(recorded, found, here)
    print(table(rows))
    if recorded["made_with"] != here:
        print(f"\nNot comparable: recorded with {recorded['made_with']}, counted with {here}.")
    if asked.record:
        kept = recorded["counts"] if asked.only != [""] else {}
        COUNTS.write_text(json.dumps({"made_with": here, "counts": kept | found}, indent=1) + "\n")
        return 0
    return 1 if any(row[-1] == MORE for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
