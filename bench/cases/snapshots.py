"""A volume with very many snapshots: gc, the first page of `history`, the history of one path, a search by tag.

A hundred, a thousand, ten thousand snapshots of a tree of a thousand files, each with one file changed; one in a hundred
has a tag; one in a hundred is forgotten before the collection, so that there is something to collect. Times are of the
whole process.
"""

import json
import os
import random
import statistics
from pathlib import Path

from benchkit import host, measure as measuring, record
from benchkit.runner import Case, Option, Run, progress

FILES = 1000
# Every so many snapshots one has a tag, and another one is forgotten.
STRIDE = 100


def path(tree: Path, number: int) -> Path:
    """The place of one file."""
    return tree / f"d{number % 10}" / f"f{number:04}"


def make_tree(tree: Path):
    """A thousand small files in ten directories."""
    rng = random.Random(1000)
    for number in range(FILES):
        path(tree, number).parent.mkdir(parents=True, exist_ok=True)
        path(tree, number).write_bytes(rng.randbytes(1024))


class Volume:
    """A worktree, the binary that works on it, and where its figures go."""

    def __init__(self, run: Run, work: Path, count: int):
        self.run, self.count, self.group = run, count, f"{count:,} snapshots"
        self.tree, self.log, self.program = work / "tree", work / "log", host.vellum()
        self.env = dict(os.environ, HOME=str(work / "home"), XDG_CACHE_HOME=str(work / "cache"))

    def call(self, *args, ok=(0,)):
        """One command in the worktree; what it cost."""
        return measuring.run([self.program, *args], cwd=self.tree, env=self.env, ok=ok, log=self.log)

    def note_time(self, row, seconds):
        """What one run took."""
        self.run.add(row, "vellum", seconds, group=self.group)

    def measure(self, row, *args, ok=(0,), rounds=1):
        """Several runs of one command, with their figures."""
        for _ in range(rounds):
            cost = self.call(*args, ok=ok)
            self.note_time(row, cost.wall)
            self.run.add(row, "vellum", cost.peak, group=self.group, quantity="peak memory", unit="bytes")

    def fill(self) -> list:
        """Takes the snapshots. Returns what each took."""
        took = []
        for number in range(self.count):
            path(self.tree, number % FILES).write_text(f"change {number}\n")
            tag = ["--tag", f"t{number}"] if number % STRIDE == 0 else []
            took.append(self.call("snapshot", *tag).wall)
            if number % 1000 == 999:
                progress(f"{number + 1} snapshots, the last hundred {statistics.median(took[-100:]):.4f} s each")
        return took

    def forget(self):
        """Forgets one snapshot in a hundred: those in the middle between two that have a tag."""
        told = host.run(self.program, "history", "-n", self.count, "--json", cwd=self.tree, env=self.env)
        # The newest is what the worktree stands on.
        between = json.loads(told)["snapshots"][min(STRIDE // 2, self.count - 1) :: STRIDE]
        unnamed = [each["id"] for each in between if not (each["tags"] or each["heads"])]
        if unnamed:
            self.call("forget", *unnamed)

    def measure_worktrees(self, rounds: int):
        """A second worktree: made, listed, taken off the list."""
        for number in range(rounds):
            to = self.tree.parent / f"fork{number}"
            self.measure("fork, checked out", "fork", f"fork{number}", "--to", to)
            self.measure("worktree list", "worktree", "list")
            self.measure("worktree remove", "worktree", "remove", f"fork{number}")
            host.remove(to)


def measure_count(volume: Volume, rounds: int):
    """All figures of one number of snapshots."""
    volume.call("init", ".")
    took = volume.fill()
    for row, part in (("snapshot, early", took[:STRIDE]), ("snapshot, late", took[-STRIDE:])):
        for wall in part:
            volume.note_time(row, wall)
    # The tagged snapshot in the middle.
    tag = f"t{volume.count // 2 // STRIDE * STRIDE}"
    volume.measure("history, first page", "history", "-n", "50", rounds=rounds)
    volume.measure("history, all", "history", "-n", volume.count, rounds=3)
    # The file was changed by one snapshot in a thousand, something in the directory by one in ten.
    volume.measure("history of a file, all", "history", "-n", "0", "--path", path(Path(), 7), rounds=3)
    volume.measure("history of a directory, all", "history", "-n", "0", "--path", "d7", rounds=3)
    volume.measure("history of a directory, first page", "history", "-n", "20", "--path", "d7", rounds=rounds)
    volume.measure("find by tag", "history", "--tag", tag, rounds=rounds)
    volume.measure("show by tag", "show", tag, rounds=rounds)
    volume.measure_worktrees(min(rounds, 5))
    volume.forget()
    volume.measure("gc plan", "gc", "plan", ok=(0, 1), rounds=3)
    volume.measure("gc run", "gc", "run", ok=(0, 1))
    volume.measure("verify after gc", "verify", "--all")


def measure(run: Run):
    """A volume for each number of snapshots."""
    setting = {"filesystem": record.filesystem(run.work), "cache": "warm", "started_by": measuring.STARTED_BY}
    title = f"Many snapshots of {FILES:,} files, whole processes"
    run.start(["vellum"], title=title, **setting, versions=record.version(host.vellum()))
    for count in map(int, run.list_option("snapshots")):
        work = run.folder(str(count))
        make_tree(work / "tree")
        measure_count(Volume(run, work, count), run.options.rounds)
        host.remove(work)


CASE = Case(
    "snapshots",
    "Many snapshots",
    measure,
    help=__doc__,
    rounds=11,
    options=(Option("snapshots", "100,1000,10000", "how many, one after another"),),
    short=("--rounds 1 --snapshots 30,120",),
)
