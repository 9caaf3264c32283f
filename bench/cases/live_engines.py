"""The engine for live metadata beside redb and fjall, in turns.

Each run is a process of its own (`bench/engines`): files created, with a flush to the disk each second; files created
and flushed one by one; the engine opened again.
"""

import json
import tomllib

from benchkit import host
from benchkit.runner import Case, Option, Run

ENGINES = ["vellum", "redb", "fjall"]
ROWS = {
    "busy": ("create, flushed each second", "processor time"),
    "median": ("create, flushed each second", "median"),
    "durable": ("create, flushed by itself", "median"),
    "reopen": ("open again", "time"),
}
CRATE = host.BENCH / "engines"


def measure(run: Run):
    """All engines, round by round."""
    host.run("cargo", "build", "--release", "--locked", "--quiet", cwd=CRATE)
    program = CRATE / "target/release/vellum-engines-bench"
    packages = tomllib.loads((CRATE / "Cargo.lock").read_text())["package"]
    versions = ", ".join(f"{each['name']} {each['version']}" for each in packages if each["name"] in ENGINES)
    run.start(ENGINES, versions=versions)
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
    options=(
        Option("transactions", 200_000, "files that are created with a flush each second"),
        Option("durable", 1_000, "files that are flushed one by one"),
    ),
    short=("--rounds 1 --transactions 2000 --durable 20",),
)
