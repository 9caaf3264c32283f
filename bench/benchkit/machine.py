"""How fast this machine is, and how busy: by two yardsticks that `vellum bench` measures, and the load.

Deliberately absent: what a machine is made of, which records say (`record.machine`).
"""

import json
import os
import tempfile
from dataclasses import dataclass

from benchkit import host

# Part of the reference's yardsticks that a machine has to reach, and processes that may wait for each processor.
SLOWEST, BUSIEST = 0.5, 2.0
# The smallest bench, since its yardsticks alone are wanted.
SMALLEST = "bench --runs 1 --big-file-size 0 --small-file-count 1 --small-file-size 1 --json".split()


@dataclass
class State:
    """A machine at one moment: memory copied, MiB a second; system calls a second; load for each processor."""

    copy: float
    calls: float
    load: float

    @classmethod
    def now(cls):
        """Of this machine. The load is that before the yardsticks are measured."""
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        with tempfile.TemporaryDirectory() as folder:
            told = json.loads(host.run(host.vellum(), *SMALLEST, folder))
        return cls(**told["machine"]["yardsticks"], load=load)

    def __str__(self):
        return f"load {self.load:.1f} for each processor, {self.copy:,.0f} MiB/s copied, {self.calls:,.0f} system calls/s"


def doubts(states: list, reference: dict) -> list:
    """Why figures of a machine cannot be judged; nothing if they can."""
    found = []
    for name, what in (("copy", "memory is copied"), ("calls", "system calls are made")):
        slowest = min(getattr(state, name) for state in states)
        if slowest < SLOWEST * reference[name]:
            found.append(f"{what} at {slowest / reference[name]:.0%} of the speed of the reference")
    busiest = max(state.load for state in states)
    if busiest > BUSIEST:
        found.append(f"the load is {busiest:.1f} for each processor")
    return found
