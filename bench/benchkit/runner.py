"""The runner of all cases: arguments, rounds in turns, records.

A `Case` says what is measured: its options, how it is run for the page of figures and how to try it out, and the
function that measures. The function gets a `Run`, which has the parsed options, an empty directory, and the record that
samples go to. Deliberately absent: tables (`report.py`), and running many cases unattended (`suite.py`).
"""

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from benchkit import contest, host, record


@dataclass(frozen=True)
class Option:
    """An option of a case. Its type is that of its default; one whose default is False takes no value."""

    name: str
    default: object
    help: str


@dataclass(frozen=True)
class Case:
    """What is measured, as one record."""

    name: str
    title: str
    measure: Callable
    options: tuple = ()
    rounds: int = 5
    # Shown by `run.py CASE --help`; if it is empty, what the module of `measure` says of itself.
    help: str = ""
    # Options of each part of the record as it is made for the page, and of a try with small numbers.
    whole: tuple = ("",)
    short: tuple = ("--rounds 1",)
    # For the page alone.
    environment: dict = field(default_factory=dict)
    # What is printed below the tables, made from the record.
    conclusions: Callable = lambda whole: ""

    def parser(self, parents=()) -> argparse.ArgumentParser:
        """The options of this case, and those of all."""
        about = self.help or sys.modules[self.measure.__module__].__doc__
        looks = {"description": about, "formatter_class": argparse.RawDescriptionHelpFormatter}
        parser = argparse.ArgumentParser(prog=f"run.py {self.name}", parents=parents, **looks)
        for option in self.options:
            is_flag = option.default is False
            how = {"action": "store_true"} if is_flag else {"default": option.default, "type": type(option.default)}
            parser.add_argument(f"--{option.name}", help=f"{option.help} (default: {option.default})", **how)
        work = host.CACHE / "work"
        parser.add_argument("--rounds", type=int, default=self.rounds, help=f"(default: {self.rounds})")
        parser.add_argument("--work", type=Path, default=work, help=f"on the disk to be measured (default: {work})")
        return parser

    def parts(self, words: list, short: bool) -> list:
        """The options of each part: those that were given, or those that the case has."""
        parts = self.short if short else self.whole if self.is_for_page(words) else ("",)
        return [self.parser().parse_args(shlex.split(part) + words) for part in parts]

    @staticmethod
    def is_for_page(words: list) -> bool:
        """Whether no option was given that decides what is measured."""
        return all(not word.startswith("--") or word.split("=")[0] == "--work" for word in words)


class Run:
    """One part of a case: its options, its directory, its samples."""

    def __init__(self, case: Case, options: argparse.Namespace, work: Path, json: Path | None):
        self.case, self.options, self.work, self.json = case, options, work, json
        self.record = None
        # The round that samples belong to; None outside of rounds, where each sample is the next one.
        self.number = None
        self.dropped = set()

    def start(self, columns, *, ours="vellum", floors=(), title="", versions="", **setting):
        """Begins the record. `versions`: of these programs, or what is said of them; `setting`: what else a reader has
        to know, with underscores for spaces."""
        setting = {"filesystem": record.filesystem(self.work)} | setting
        setting["versions"] = versions if isinstance(versions, str) else record.versions(versions)
        setting = {key.replace("_", " "): value for key, value in setting.items() if value}
        title = title or self.case.title
        self.record = record.Record(self.case.name, title, columns=columns, ours=ours, floors=floors, setting=setting)

    def keep(self):
        """Writes the record as far as it is, so that a long run that ends early was not for nothing."""
        self.record.keep(self.json)

    def rounds(self, limit=None):
        """The numbers of the rounds; samples that are added meanwhile belong to them."""
        for self.number in range(min(self.options.rounds, limit or self.options.rounds)):
            yield self.number
        self.number = None

    def turns(self, sides) -> list:
        """The sides as they run in this round: each round begins with another one."""
        return contest.order(list(sides), self.number or 0)

    def add(self, row, tool, value, **kind):
        """Notes a sample of this round."""
        self.record.add(row, tool, value, number=self.number, **kind)

    def add_all(self, found: dict, tool, **kind):
        """Notes samples of several rows."""
        for row, value in found.items():
            self.add(row, tool, value, **kind)

    def add_cost(self, row, tool, cost, group=""):
        """Notes what a command cost."""
        self.add(row, tool, cost.wall, group=group)
        self.add(row, tool, cost.cpu, group=group, quantity="processor time")
        self.add(row, tool, cost.peak, group=group, quantity="peak memory", unit="bytes")

    @contextlib.contextmanager
    def guard(self, row, tool):
        """A tool that fails is named, and the others go on."""
        try:
            yield
        except host.CommandFailed as failure:
            self.record.leave_out(row, tool, failure)
            self.dropped.add((row, tool))

    def is_out(self, row, tool) -> bool:
        """Whether a tool failed at a row before."""
        return (row, tool) in self.dropped

    def list_option(self, name) -> list:
        """An option of several words with commas between them."""
        return [word for word in getattr(self.options, name).split(",") if word]

    def is_wanted(self, row) -> bool:
        """Whether --steps asks for a row."""
        words = self.list_option("steps")
        return not words or any(word in row for word in words)

    def folder(self, name) -> Path:
        """A new directory in that of this run."""
        path = self.work / name
        path.mkdir(parents=True)
        return path


def run_case(case: Case, words: list, *, json: Path | None, short=False) -> dict:
    """Runs all parts of a case, keeps the record, and returns it."""
    if not short and case.is_for_page(words):
        os.environ.update(case.environment)
    whole = None
    for options in case.parts(words, short):
        options.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.work, prefix=f"bench-{case.name}-") as work:
            run = Run(case, options, Path(work), json)
            case.measure(run)
        run.keep()
        whole = record.merged(whole, run.record.whole()) if whole else run.record.whole()
    return whole


def progress(text):
    """A line for whoever waits."""
    print(text, file=sys.stderr, flush=True)
