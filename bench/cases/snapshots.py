"""A volume with very many snapshots: usage, gc, the first page of `history`, the history of one path, a search by tag, and
what a policy forgets.

Ten, a hundred, a thousand, ten thousand snapshots of a tree of a thousand files, each with one file changed; one in a hundred
has a tag; one in a hundred is forgotten before the collection, so that there is something to collect. At the end a policy
forgets the older half of what has no tag, and that is collected. Times are of the whole process.
"""

import json
import os
import statistics
from pathlib import Path

from benchkit import host, measure as measuring, trees
from benchkit.runner import Case, Option, Run, progress

FILES = 1000
# Every so many snapshots one has a tag, and another one is forgotten.
STRIDE = 100
# Rows: a command, and how often it is run, if not as often as there are rounds. The file of the third was changed by one
# snapshot in a thousand, something in the directory by one in ten; the tag is in the middle.
READS = {
    "history, first page": (["history", "-n", "50"], None),
    "history, all": (["history", "-n", "{count}"], 3),
    "history of a file, all": (["history", "-n", "0", "--path", "d7/f0007"], 3),
    "history of a directory, all": (["history", "-n", "0", "--path", "d7"], 3),
    "history of a directory, first page": (["history", "-n", "20", "--path", "d7"], None),
    "find by tag": (["history", "--tag", "{tag}"], None),
    "show by tag": (["show", "{tag}"], None),
}
# A second worktree: made, listed, taken off the list.
WORKTREES = {
    "fork, checked out": (["fork", "fork", "--to", "{fork}"], 1),
    "worktree list": (["worktree", "list"], 1),
    "worktree remove": (["worktree", "remove", "fork"], 1),
}
COLLECTION = {
    "usage": (["usage"], 3),
    "gc plan": (["gc", "plan"], 3),
    "gc run": (["gc", "run"], 1),
    "verify after gc": (["verify", "--all"], 1),
    "verify a sample of 5 %": (["verify", "--sample", "5%"], 3),
}
# The policy that is set keeps half of the snapshots, so that the other half is collected.
RETENTION = {
    "forget --policy, plan": (["forget", "--policy", "-n"], 3),
    "forget --policy, half": (["forget", "--policy"], 1),
    "gc run of the half": (["gc", "run"], 1),
}


def place(number: int) -> str:
    """The place of one file."""
    return f"d{number % 10}/f{number:04}"


class Volume:
    """A worktree, and where its figures go."""

    def __init__(self, run: Run, count: int):
        self.run, self.count, self.group, self.work = run, count, f"{count:,} snapshots", run.folder(str(count))
        self.tree, self.log, self.program = self.work / "tree", self.work / "log", host.vellum()
        self.env = dict(os.environ, HOME=str(self.work / "home"), XDG_CACHE_HOME=str(self.work / "cache"))
        tag = f"t{count // 2 // STRIDE * STRIDE}"
        self.places = {"count": count, "tag": tag, "fork": self.work / "fork"}

    def call(self, *words):
        """One command in the worktree; what it cost. `gc` ends with 1 if there is something to collect."""
        ok = (0, 1) if words[0] == "gc" else (0,)
        return measuring.run([self.program, *words], cwd=self.tree, env=self.env, ok=ok, log=self.log)

    def measure(self, rows: dict):
        """Rows of commands, with their figures."""
        for row, (words, times) in rows.items():
            for _ in range(times or self.run.options.rounds):
                cost = self.call(*(word.format(**self.places) for word in words))
                self.run.add(row, "vellum", cost.wall, group=self.group)
                self.run.add(row, "vellum", cost.peak, group=self.group, quantity="peak memory", unit="bytes")

    def fill(self):
        """Takes the snapshots, and notes what the first and the last took."""
        took = []
        for number in range(self.count):
            (self.tree / place(number % FILES)).write_text(f"change {number}\n")
            tag = ["--tag", f"t{number}"] if number % STRIDE == 0 else []
            took.append(self.call("snapshot", *tag).wall)
            if number % 1000 == 999:
                progress(f"{number + 1} snapshots, the last hundred {statistics.median(took[-100:]):.4f} s each")
        for row, part in (("snapshot, early", took[:STRIDE]), ("snapshot, late", took[-STRIDE:])):
            for wall in part:
                self.run.add(row, "vellum", wall, group=self.group)

    def forget(self):
        """Forgets one snapshot in a hundred: those in the middle between two that have a tag."""
        told = host.run(self.program, "history", "-n", self.count, "--json", cwd=self.tree, env=self.env)
        # The newest is what the worktree stands on.
        between = json.loads(told)["snapshots"][min(STRIDE // 2, self.count - 1) :: STRIDE]
        unnamed = [each["id"] for each in between if not (each["tags"] or each["heads"])]
        if unnamed:
            self.call("forget", *unnamed)


def measure(run: Run):
    """A volume for each number of snapshots."""
    title = f"Many snapshots of {FILES:,} files, whole processes"
    setting = {"cache": "warm", "started_by": measuring.STARTED_BY, "versions": [host.vellum()]}
    run.start(["vellum"], title=title, **setting)
    for count in map(int, run.list_option("snapshots")):
        volume = Volume(run, count)
        trees.files(FILES, [1024], place, seed=1000)(volume.tree)
        volume.call("init", ".")
        volume.fill()
        volume.measure(READS)
        for _ in range(min(run.options.rounds, 5)):
            volume.measure(WORKTREES)
            host.remove(Path(volume.places["fork"]))
        volume.forget()
        volume.measure(COLLECTION)
        volume.call("config", "set", "--volume", "retention.keep-last", max(1, count // 2))
        volume.measure(RETENTION)
        host.remove(volume.work)


CASE = Case(
    "snapshots",
    "Many snapshots",
    measure,
    options=(Option("snapshots", "10,100,1000,10000", "how many, one after another"),),
    rounds=11,
    short=("--rounds 1 --snapshots 10,120",),
)
