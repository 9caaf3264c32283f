"""What Criterion leaves behind, as rows of a record.

Criterion keeps a folder for each bench, with the times of all samples (`new/sample.json`) and the id (`new/
benchmark.json`). Figures that are not times stand in `figures`, where `vellum-benchkit` puts them. Deliberately absent:
Criterion's own estimates, since what may be said of samples is decided in `contest.py` alone.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

NANO = 1e-9


@dataclass
class Bench:
    """One row: times or rates of its samples, or one figure."""

    group: str
    name: str
    quantity: str
    unit: str
    better: str
    samples: list = field(default_factory=list)

    def add_to(self, whole, tool, values=None, number=None):
        """Notes samples in a record; without `values` all of them."""
        kind = {"group": self.group, "quantity": self.quantity, "unit": self.unit, "better": self.better}
        for value in self.samples if values is None else values:
            whole.add(self.name, tool, value, number=number, **kind)


def benches(home, since=0.0) -> list:
    """Every bench that was measured after a moment (of the files' clock), by id."""
    home = Path(home)
    found = [bench(path.parent) for path in home.glob("**/new/benchmark.json") if path.stat().st_mtime >= since]
    found += [figure(path) for path in home.glob("figures/*.json") if path.stat().st_mtime >= since]
    return sorted(found, key=lambda each: (each.group, each.name, each.quantity))


def bench(folder: Path) -> Bench:
    """The samples of one bench: seconds for an iteration, or bytes or elements in a second."""
    head = json.loads((folder / "benchmark.json").read_text())
    sample = json.loads((folder / "sample.json").read_text())
    seconds = [time * NANO / iters for time, iters in zip(sample["times"], sample["iters"])]
    group, name = split(head["full_id"])
    amount, unit = throughput(head.get("throughput"))
    if amount is None:
        return Bench(group, name, "time", "s", "less", seconds)
    return Bench(group, name, "rate", unit, "more", [amount / each for each in seconds])


def throughput(stated) -> tuple:
    """How much an iteration handles, and the unit of its rate; None if only its time counts."""
    for kind, unit in (("Bytes", "bytes per second"), ("BytesDecimal", "bytes per second"), ("Elements", "per second")):
        if stated and kind in stated:
            return stated[kind], unit
    return None, "s"


def figure(path: Path) -> Bench:
    """A figure that is not a time: less is better of all of them, or they are only told."""
    told = json.loads(path.read_text())
    group, name = split(told["id"])
    return Bench(group, name, told["quantity"], told["unit"], "less", [told["value"]])


def split(full_id: str) -> tuple:
    """The part before the first slash, and the rest."""
    group, _, name = full_id.partition("/")
    return (group, name) if name else ("", group)
