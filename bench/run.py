#!/usr/bin/env python3
"""Runs the cases of bench/cases: what is measured, beside rivals or the physical limit, in turns.

    bench/run.py list                       the names of all cases
    bench/run.py CASE                       one case as for docs/benchmarks.md; its tables on standard output
    bench/run.py CASE --help                its options; with any of them, it runs with these alone
    bench/run.py CASE --json FILE           keeps the record, too; rows that only the old file has stay
    bench/run.py CASE --short               small numbers, to see that it works
    bench/run.py all [--only CASE...]       all cases unattended, into bench/records: hours, and about 60 GB of disk
    bench/run.py all --short --out DIR      each with small numbers; no figures for anybody

VELLUM names the binary (default: target/dist/vellum; `make measure` builds it); RESTIC, BORG, RUSTIC, RSYNC, SY, XCP, CPZ,
KOPIA, RCLONE, UNISON, AWS, S5CMD and JUICEFS name rivals that are not on PATH; VELLUM_BENCH_CACHE says where trees and repositories go
(default: ~/.cache/vellum-bench). Most cases need root. 'all' refuses a machine that does something else (exit code 2)
unless --anyway is given; a case that fails is reported at its end (exit code 1), and the others go on.
"""

import argparse
import signal
import sys
from pathlib import Path

import cases
import report
from benchkit import host, runner, suite

RECORDS = host.BENCH / "records"


def run_one(case: runner.Case, words: list) -> int:
    """Runs a case, keeps the record, prints the tables."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--json", type=Path, metavar="FILE", help="keep the record there")
    own.add_argument("--short", action="store_true", help="small numbers, to see that it works")
    if {"-h", "--help"} & set(words):
        case.parser(parents=[own]).parse_args(words)
    options, rest = own.parse_known_args(words)
    whole = runner.run_case(case, rest, json=options.json, short=options.short)
    print(report.printed(whole))
    print(case.conclusions(whole), end="")
    return 0


def run_all(words: list) -> int:
    """Runs many cases, and says how it went."""
    parser = argparse.ArgumentParser(prog="run.py all", description="Runs all cases, one after another.")
    parser.add_argument("--only", nargs="+", default=list(cases.ALL), metavar="CASE", choices=cases.ALL)
    parser.add_argument("--out", type=Path, help="where records go (default: bench/records)")
    parser.add_argument("--short", action="store_true", help="small numbers, to see that each works; needs --out")
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    asked = parser.parse_args(words)
    if asked.short and not asked.out:
        parser.error("--short makes no figures for anybody: say with --out where they go")
    host.vellum()
    if not (asked.short or asked.anyway):
        suite.refuse_busy()
    out = (asked.out or RECORDS).resolve()
    for folder in (out, suite.LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    for line in suite.missing():
        print(line, file=sys.stderr)
    flags = ["--short"] if asked.short else []
    commands = {name: [sys.executable, __file__, name, *flags] for name in cases.ALL if name in asked.only}
    failed = suite.measure_all(commands, out, short=asked.short)
    print(f"{len(commands) - len(failed)} of {len(commands)} done, into {out}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    """Finds out what is asked for."""
    # Whoever ends it finds the machine as it was: mounts and servers are given up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    word, *rest = sys.argv[1:] or ["--help"]
    try:
        if word == "list":
            print(*(f"{case.name:13} {case.title}" for case in cases.ALL.values()), sep="\n")
            return 0
        if word == "all":
            return run_all(rest)
        if word in cases.ALL:
            return run_one(cases.ALL[word], rest)
    except host.CommandFailed as failure:
        print(f"run.py {word}: {failure}", file=sys.stderr)
        return 2
    if word in ("-h", "--help"):
        print(__doc__)
        return 0
    print(f"run.py: there is no case {word}; `bench/run.py list` lists them", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
