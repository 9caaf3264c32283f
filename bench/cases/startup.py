"""Start-up time and size of each tool's binary. The floor is `true`: what the system itself takes to start a program."""

import os
from pathlib import Path

from benchkit import backup_tools, host
from benchkit.runner import Case, Run

VERSION = {"true": "", "restic": "version"}


def measure(run: Run):
    """The tools in turns."""
    programs = {name: host.program(name) for name in ("true", "vellum", *backup_tools.RIVALS)}
    programs = {name: program for name, program in programs.items() if program}
    versions = [program for name, program in programs.items() if name != "true"]
    run.start(list(programs), floors=["true"], filesystem="", cache="warm", versions=versions)
    for _ in run.rounds():
        for name in run.turns(programs):
            run.add("start-up", name, host.timed(programs[name], VERSION.get(name, "--version")))
    for name, program in programs.items():
        path = Path(os.path.realpath(program))
        # A script is not the program; what interprets it is part of it, too.
        if path.read_bytes()[:2] != b"#!":
            run.add("binary", name, path.stat().st_size, quantity="space", unit="bytes")


CASE = Case("startup", "Start-up and size", measure, rounds=101, short=("--rounds 3",))
