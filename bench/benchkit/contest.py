"""What may be said of samples that several tools gave in turns.

A ratio is the median of the rounds' own ratios, never the ratio of two medians: a slow minute then spoils both sides of
one round and no more. Where the rounds do not agree, no ratio is given: `Ratio.noisy` says so, and tables print the
span instead of a figure.
"""

import statistics
from dataclasses import dataclass

# Rounds agree if the middle half of their ratios lies within this part of the median. On the shared machines that
# this runs on, a quiet minute stays under 0.1 and a neighbour's build goes over 0.5.
NOISE = 0.25
# With fewer rounds there is no telling, and the figure is shown with their number.
ENOUGH_ROUNDS = 3


@dataclass
class Ratio:
    """How one tool's figure relates to another's, over all rounds that both were in."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def noisy(self) -> bool:
        """Whether the rounds disagree too much for a figure."""
        return self.rounds >= ENOUGH_ROUNDS and (self.high - self.low) > NOISE * self.value

    def __str__(self) -> str:
        if self.noisy:
            return f"too noisy ({self.low:.2f} to {self.high:.2f})"
        mark = "" if self.rounds >= ENOUGH_ROUNDS else f" ({self.rounds} round{'s' * (self.rounds > 1)})"
        return f"{self.value:.2f} ×{mark}"


def order(tools: list, number: int) -> list:
    """The tools as they run in a round: each round begins with another one."""
    turn = number % len(tools)
    return tools[turn:] + tools[:turn]


def pairs(row: dict, ours: str, theirs: str) -> list:
    """The figures of the rounds that both were in."""
    both = zip(row["samples"].get(ours, []), row["samples"].get(theirs, []))
    return [(a, b) for a, b in both if a and b]


def ratio(row: dict, ours: str, theirs: str) -> Ratio | None:
    """Time (or space) of ours by theirs; for rates theirs by ours: over 1 is always worse."""
    found = [a / b if row["better"] == "less" else b / a for a, b in pairs(row, ours, theirs)]
    if not found:
        return None
    low, high = min(found), max(found)
    if len(found) >= 4:
        low, _, high = statistics.quantiles(found, n=4)
    return Ratio(statistics.median(found), low, high, len(found))


def median(row: dict, tool: str):
    """The middle of a tool's samples, or nothing."""
    samples = [value for value in row["samples"].get(tool, []) if value is not None]
    return statistics.median(samples) if samples else None


def best(row: dict, among: list) -> str | None:
    """The tool with the best median."""
    present = [tool for tool in among if median(row, tool) is not None]
    pick = min if row["better"] == "less" else max
    return pick(present, key=lambda tool: median(row, tool), default=None)
