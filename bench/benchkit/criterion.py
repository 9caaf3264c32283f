"""What Criterion leaves behind, as rows of a record.

Criterion keeps a folder for each bench, with the times of all samples (`new/sample.json`) and the id (`new/
benchmark.json`). Figures that are not times stand in `figures`, where `vellum-benchkit` puts them. Deliberately absent:
Criterion's own estimates, since what may be said of samples is decided in `contest.py` alone.
"""

import json
from dataclasses import dataclass
from pathlib import Path

NANO = 1e-9
# What an iteration may handle, and the unit of its rate.
THROUGHPUTS = {"Bytes": "bytes per second", "BytesDecimal": "bytes per second", "Elements": "per second"}
# What benches count beside times: as vellum-benchkit calls it, which is a folder in Criterion's, and as rows are called.
COUNTED = {"allocations": ("allocations", "count"), "bytes": ("memory allocated", "bytes")}


@dataclass
class Bench:
    """One row: times or rates of its samples, or one figure. Less is better of all of them but rates."""

    full_id: str
    quantity: str
    unit: str
    samples: list
    better: str = "less"

    def __post_init__(self):
        """The group is the part of the id before the first slash, if there is one."""
        first, _, rest = self.full_id.partition("/")
        self.group, self.name = (first, rest) if rest else ("", first)

    def add_to(self, whole, tool, values=None, number=None):
        """Notes samples in a record; without `values` all of them."""
        kind = {"group": self.group, "quantity": self.quantity, "unit": self.unit, "better": self.better}
        for value in self.samples if values is None else values:
            whole.add(self.name, tool, value, number=number, **kind)


def benches(home, since=0.0) -> list:
    """Every bench that was measured after a moment (of the files' clock), by id."""
    readers = {"**/new/benchmark.json": bench, "figures/*.json": figure}
    places = [(path, read) for pattern, read in readers.items() for path in Path(home).glob(pattern)]
    found = [read(path) for path, read in places if path.stat().st_mtime >= since and is_own(path, Path(home))]
    return sorted(found, key=lambda each: (each.group, each.name, each.quantity))


def is_own(path: Path, home: Path) -> bool:
    """Whether a file is of the folder itself, and not of one in it where benches counted something else."""
    return path.relative_to(home).parts[0] not in COUNTED


def counts(home, quantity: str, unit: str, since=0.0) -> list:
    """What one operation of each bench counted, where a nanosecond stands for one, by id."""
    places = [path for path in Path(home).glob("**/new/benchmark.json") if path.stat().st_mtime >= since]
    return sorted((count(path, quantity, unit) for path in places), key=lambda each: (each.group, each.name))


def count(path: Path, quantity: str, unit: str) -> Bench:
    """What one operation of a bench counted in its longest sample. Its clock shows one at least, which many iterations make
    nothing of."""
    head, sample = (json.loads(path.with_name(name).read_text()) for name in ("benchmark.json", "sample.json"))
    elements = (head.get("throughput") or {}).get("Elements", 1)
    counted, iterations = max(zip(sample["times"], sample["iters"]), key=lambda each: each[1])
    return Bench(head["full_id"], quantity, unit, [round(counted / iterations / elements, 2)])


def bench(path: Path) -> Bench:
    """The samples of one bench: seconds for an iteration, or bytes or elements in a second."""
    head, sample = (json.loads(path.with_name(name).read_text()) for name in ("benchmark.json", "sample.json"))
    seconds = [time * NANO / iters for time, iters in zip(sample["times"], sample["iters"])]
    for kind, amount in (head.get("throughput") or {}).items():
        return Bench(head["full_id"], "rate", THROUGHPUTS[kind], [amount / each for each in seconds], "more")
    return Bench(head["full_id"], "time", "s", seconds)


def figure(path: Path) -> Bench:
    """A figure that is not a time."""
    told = json.loads(path.read_text())
    return Bench(told["id"], told["quantity"], told["unit"], [told["value"]])
