"""Start-up time and size of each tool's binary. The floor is `true`: what the system itself takes to start a program."""

import os
import shutil
from pathlib import Path

from benchkit import backup_tools, host, record
from benchkit.runner import Case, Run

VERSION = {"restic": "version"}


def commands() -> dict:
    """What each tool is called with."""
    found = {"true": [shutil.which("true")], "vellum": [host.vellum(), "--version"]}
    for name in backup_tools.RIVALS:
        if program := host.program(name):
            found[name] = [program, VERSION.get(name, "--version")]
    return found


def measure(run: Run):
    """The tools in turns."""
    called = commands()
    versions = record.versions(argv[0] for name, argv in called.items() if name != "true")
    run.start(list(called), floors=["true"], cache="warm", versions=versions)
    for _ in run.rounds():
        for name in run.turns(called):
            run.add("start-up", name, host.timed(*called[name]))
    for name, argv in called.items():
        program = Path(os.path.realpath(argv[0]))
        # A script is not the program; what interprets it is part of it, too.
        if program.read_bytes()[:2] != b"#!":
            run.add("binary", name, program.stat().st_size, quantity="space", unit="bytes")


CASE = Case("startup", "Start-up and size", measure, help=__doc__, rounds=101, short=("--rounds 3",))
