"""The engine for live metadata beside redb and fjall, in turns.

Each run is a process of its own (`bench/engines`): files created, with a flush to the disk each second; files created
and flushed one by one; the engine opened again.
"""

import json
from pathlib import Path

from benchkit import host, record
from benchkit.runner import Case, Option, Run

ENGINES = ["vellum", "redb", "fjall"]
ROWS = {
    "busy": ("create, flushed each second", "processor time"),
    "median": ("create, flushed each second", "median"),
    "durable": ("create, flushed by itself", "median"),
    "reopen": ("open again", "time"),
}
CRATE = host.BENCH / "engines"


def build() -> Path:
    """The program, built."""
    host.run("cargo", "build", "--release", "--locked", "--quiet", cwd=CRATE)
    return CRATE / "target/release/vellum-engines-bench"


def versions() -> str:
    """The rivals' versions, from the lock file."""
    words = [package.split('"') for package in (CRATE / "Cargo.lock").read_text().split("[[package]]")]
    return ", ".join(f"{each[1]} {each[3]}" for each in words if len(each) > 3 and each[1] in ENGINES)


def measure(run: Run):
    """All engines, round by round."""
    program = build()
    run.start(ENGINES, filesystem=record.filesystem(run.work), versions=versions())
    for _ in run.rounds():
        for engine in run.turns(ENGINES):
            folder = run.folder("engine")
            told = host.run(program, engine, folder, run.options.transactions, run.options.durable)
            host.remove(folder)
            for name, value in json.loads(told).items():
                row, quantity = ROWS[name]
                run.add(row, engine, value, quantity=quantity)


CASE = Case(
    "live_engines",
    "Engines for live metadata",
    measure,
    help=__doc__,
    options=(
        Option("transactions", 200_000, "files that are created with a flush each second"),
        Option("durable", 1_000, "files that are flushed one by one"),
    ),
    short=("--rounds 1 --transactions 2000 --durable 20",),
)
