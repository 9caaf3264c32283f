"""Two-way synchronisation: `vellum sync --two-way` and unison, in turns.

Both sides are directories of one filesystem. In each round each tool gets trees of its own: nothing is known of them at
first, then nothing has changed, then each side has changed other files, and at last one side has deleted some. UNISON names
the other tool's binary.
"""

import os
import shutil
from pathlib import Path

from benchkit import host, measure as measuring, trees
from benchkit.runner import Case, Option, Run

TOOLS = {
    "vellum": "sync --two-way -q {one}/ {other}/",
    "unison": "{one} {other} -batch -silent -times",
}


def change(root: Path, files: list, text: str):
    """Gives files another content."""
    for name in files:
        (root / name).write_text(text)


class Pair:
    """Two sides of one tool, with what it remembers of them."""

    def __init__(self, run: Run, tool: str, source: Path):
        self.run, self.tool, self.folder = run, tool, run.work / tool
        host.remove(self.folder)
        self.one, self.other = self.folder / "one", self.folder / "other"
        self.other.mkdir(parents=True)
        shutil.copytree(source, self.one)
        self.env = dict(os.environ, HOME=str(self.folder), UNISON=str(self.folder / "unison"))
        # HOME decides where both keep what they remember.
        self.env.pop("XDG_STATE_HOME", None)
        self.names = sorted(str(path.relative_to(source)) for path in source.rglob("f*"))

    def sync(self, row: str):
        """One run, whose result is looked at."""
        words = TOOLS[self.tool].format(one=self.one, other=self.other).split()
        host.settle(self.folder)
        with self.run.guard(row, self.tool):
            self.run.add_cost(row, self.tool, measuring.run([host.program(self.tool), *words], env=self.env))
            if not host.is_same(self.one, self.other):
                raise host.CommandFailed("the sides differ")

    def measure(self):
        """All rows."""
        few = len(self.names) // 100 or 1
        self.sync("first, one side empty")
        self.sync("nothing changed")
        change(self.one, self.names[:few], "changed on one side\n")
        change(self.other, self.names[few : 2 * few], "changed on the other side\n")
        self.sync("1 % changed on each side")
        for name in self.names[2 * few : 3 * few]:
            (self.one / name).unlink()
        self.sync("1 % deleted on one side")


def measure(run: Run):
    """The tools in turns."""
    tools = [tool for tool in TOOLS if host.program(tool)]
    run.start(tools, cache="warm", started_by=measuring.STARTED_BY, versions=map(host.program, tools))
    source = run.work / "source"
    trees.files(run.options.files, range(1024, 10 * 1024), lambda n: f"d{n // 100:03}/f{n:05}", seed=42)(source)
    for _ in run.rounds():
        for tool in run.turns(tools):
            Pair(run, tool, source).measure()


CASE = Case(
    "two_way",
    "vellum sync --two-way, and unison",
    measure,
    options=(Option("files", 10_000, "of 1 to 10 KB"),),
    short=("--rounds 1 --files 200",),
)
