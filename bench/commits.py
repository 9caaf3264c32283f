#!/usr/bin/env python3
"""Two commits against each other: their benches in turns, OK or REGRESSION for each.

    bench/commits.py BASE                           BASE against HEAD
    bench/commits.py BASE HEAD --rounds 5 --filter map/get
    bench/commits.py BASE --package vellum-chunker  builds and runs one crate's benches

Both are built beneath target/commits, one after the other in one work tree, so that what they have in common is built
once; it stays there for the next time. Each round runs each bench of both, one right after the other,
and the order turns from round to round; a run's figure is the median of its samples, and a ratio is the median of the
rounds' own. A row is a REGRESSION if the rounds agree and HEAD takes more than 1.1 times as much, and UNCLEAR if they do
not agree. The exit code is 1 if there is a regression, 2 if the comparison could not be made.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import report
from benchkit import contest, criterion, host, record
from benchkit.figures import shown
from benchkit.host import CommandFailed
from benchkit.runner import progress
from cases import micro

WORK = host.ROOT / "target" / "commits"
TREE, HOME = WORK / "tree", WORK / "home"
# Over this a row is a regression. Processor time of one thread repeats within a few percent on a shared machine.
WORSE = 1.10
# What every bench that Criterion runs prints; older benches, with a harness of their own, would ignore its flags. A short
# string, such as the name of a variable, is no sure mark: compilers may make instructions of it.
MARK = b"Criterion.rs"


class Side:
    """A commit, and its benches: programs by name."""

    def __init__(self, commit: str):
        try:
            self.commit = host.run("git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", cwd=host.ROOT)
        except CommandFailed:
            raise CommandFailed(f"{commit}: there is no such commit; `git log --oneline` lists some") from None
        self.name = host.run("git", "rev-parse", "--short", self.commit, cwd=host.ROOT)
        self.benches = {}

    def check_out(self):
        """Brings the work tree to the commit. Only files that differ get a new time, and by that cargo knows what to
        build: two work trees that share a target directory would take each other's crates for their own."""
        if not (TREE / "Cargo.toml").is_file():
            shutil.rmtree(TREE, ignore_errors=True)
            host.run("git", "worktree", "prune", cwd=host.ROOT)
            host.run("git", "worktree", "add", "--detach", "--force", TREE, self.commit, cwd=host.ROOT)
        host.run("git", "checkout", "--quiet", "--force", "--detach", self.commit, cwd=TREE)

    def build(self, packages: list):
        """Builds the benches and puts them aside, since the other commit's will have the same names."""
        self.check_out()
        command = [*micro.BENCH, *packages, "--no-run", "--message-format=json-render-diagnostics"]
        environment = os.environ | {"CARGO_TARGET_DIR": str(WORK / "target")}
        progress(f"building {self.name}")
        found = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True)
        if found.returncode:
            raise CommandFailed(f"{self.name}: its benches do not build: see above")
        aside = WORK / "programs" / self.name
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for message in map(json.loads, found.stdout.splitlines()):
            if not message.get("executable") or "bench" not in message["target"]["kind"]:
                continue
            built, crate = Path(message["executable"]), Path(message["manifest_path"]).parent.name
            if MARK in built.read_bytes():
                name = f"{crate}-{message['target']['name']}"
                self.benches[name] = shutil.copy2(built, aside / name)
        if not self.benches:
            raise CommandFailed(f"{self.name}: it has no benches of Criterion's")

    def call(self, bench, *words) -> str:
        """Runs one bench program; what it prints."""
        environment = os.environ | {"CRITERION_HOME": str(HOME)}
        return host.run(self.benches[bench], "--bench", *filter(None, words), cwd=WORK, env=environment)

    def wanted(self, pattern) -> set:
        """The bench programs that have something to run."""
        return {bench for bench in self.benches if ": benchmark" in self.call(bench, "--list", pattern)}


def one_round(whole, sides, benches, number, arguments):
    """Each bench of both commits."""
    for bench in benches:
        for side in contest.order(sides, number):
            if bench in side.benches:
                progress(f"round {number + 1}: {bench} of {side.name}")
                shutil.rmtree(HOME, ignore_errors=True)
                side.call(bench, "--quick" if arguments.quick else "", arguments.filter)
                for row in criterion.benches(HOME):
                    row.add_to(whole, side.name, [statistics.median(row.samples)], number=number)


def verdict(row, base, head) -> tuple:
    """The ratio as text, and what it means."""
    ratio = contest.ratio(row, head, base)
    if ratio is None:
        return "–", "OK" if all(contest.median(row, name) == 0 for name in (base, head)) else "ONE SIDE ONLY"
    if ratio.low > WORSE or (ratio.value > WORSE and not ratio.noisy):
        return str(ratio), "REGRESSION"
    return str(ratio), "UNCLEAR" if ratio.noisy else "OK"


def table(whole, base, head) -> tuple:
    """The rows as Markdown, and how many are regressions."""
    lines, worse = [f"| bench | {base} | {head} | ratio | |", "|---" * 5 + "|"], 0
    for row in whole["rows"]:
        ratio, word = verdict(row, base, head)
        worse += word == "REGRESSION"
        name = "/".join(filter(None, (row["group"], row["name"])))
        name += "" if row["quantity"] in ("time", "rate") else f", {row['quantity']}"
        sides = [shown(contest.median(row, side), row["unit"]) for side in (base, head)]
        lines.append(f"| {' | '.join([name, *sides, ratio, word])} |")
    return "\n".join(lines), worse


def compare(arguments) -> int:
    """Everything from checking out to the exit code."""
    WORK.mkdir(parents=True, exist_ok=True)
    sides = [Side(arguments.base), Side(arguments.head)]
    base, head = (side.name for side in sides)
    if base == head:
        raise CommandFailed(f"{arguments.base} and {arguments.head} are one commit, {base}")
    for side in sides:
        side.build(micro.packages(",".join(arguments.package)))
    setting = {"compiler": record.version("rustc"), "rounds": str(arguments.rounds)}
    title, about = f"{head} against {base}", {"ours": head, "floors": [base], "setting": setting}
    whole = record.Record("commits", title, columns=[base, head], **about)
    benches = sorted(set().union(*(side.wanted(arguments.filter) for side in sides)))
    if not benches:
        raise CommandFailed(f"no bench has an id that matches {arguments.filter}")
    for number in range(arguments.rounds):
        one_round(whole, sides, benches, number, arguments)
        whole.keep(arguments.json)
    text, worse = table(whole.whole(), base, head)
    print(f"{report.about(whole.whole())}\n\n{text}\n\n{f'{worse} regressions' if worse else 'no regression'}")
    return 1 if worse else 0


def main():
    """Parses, and tells what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", default="HEAD", help="another one (default: HEAD)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (default: 3; with fewer nobody disagrees)")
    parser.add_argument("--filter", help="only ids that match this regular expression")
    parser.add_argument("--package", action="append", default=[], help="only this crate's benches (again for more)")
    parser.add_argument("--quick", action="store_true", help="few samples in each run")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    try:
        sys.exit(compare(parser.parse_args()))
    except CommandFailed as failed:
        print(f"commits.py: {failed}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
