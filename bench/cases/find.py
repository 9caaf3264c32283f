"""A name in a volume with very many snapshots: `vellum find`, and `restic find` beside it.

A tree of files of a few bytes, a thousand in each directory; each snapshot changes one file in a hundred, those that stand
next to each other: of 100,000 files, all of one directory. Both tools take their snapshots of the same tree. What is looked
for is one file, which some of the snapshots changed, and a name that is nowhere. Times are of whole processes; the page cache
is warm.

restic takes a second or two for a snapshot, so that its repository is made for as many as `--restic` says, and no more.
"""

import os

from benchkit import backup_tools, host, measure as measuring, trees
from benchkit.runner import Case, Option, Run, progress

# One file in so many is changed by each snapshot.
SHARE = 100
# Rows: what is asked for, by each tool that can.
ROWS = {
    "find a name": {"vellum": ["find", "{name}"], "restic": ["find", "{name}"]},
    "find a name that is nowhere": {"vellum": ["find", "nowhere.txt"], "restic": ["find", "nowhere.txt"]},
    "find the contents of a name": {"vellum": ["find", "--content-changed", "{name}"]},
    "history of a file, all": {"vellum": ["history", "-n", "0", "{path}"]},
}


class SearchedVolume:
    """A tree with a store of each tool, and as many snapshots as it has been given."""

    def __init__(self, run: Run):
        self.run, self.files, self.count = run, run.options.files, 0
        self.tree, self.log = run.folder("tree"), run.work / "log"
        self.restic = backup_tools.Restic(run.work) if host.program("restic") and run.options.restic else None
        self.env = dict(os.environ, HOME=str(run.work / "home"), XDG_CACHE_HOME=str(run.work / "cache"))
        trees.numbered(self.tree, self.files)
        wanted = self.files // 2
        path = f"d{wanted // trees.FILES_PER_DIR:04}/f{wanted:07}"
        self.places = {"path": path, "name": path.split("/")[1]}
        self.call("vellum", "init", "-q", ".")
        if self.restic:
            self.restic.prepare(self.tree)

    def call(self, tool, *words):
        """One command in the tree; what it cost. `find` ends with 1 if it finds nothing."""
        program = host.program(tool)
        env = self.env if tool == "vellum" else self.restic.env
        return measuring.run([program, *words], cwd=self.tree, env=env, ok=(0, 1), log=self.log)

    def tools(self) -> list:
        """Those that have all snapshots."""
        return ["vellum"] + ["restic"] * bool(self.restic and self.count <= self.run.options.restic)

    def fill(self, count: int):
        """Takes snapshots until there are so many."""
        block = max(1, self.files // SHARE)
        while self.count < count:
            if self.count:
                for number in range(block):
                    self.change((self.count * block + number) % self.files)
            self.count += 1
            self.call("vellum", "snapshot", "-q")
            if "restic" in self.tools():
                self.call("restic", "backup", "--quiet", "--no-scan", "--exclude", ".vellum", ".")
            if self.count % 100 == 0:
                progress(f"{self.count} snapshots")

    def change(self, number: int):
        """Gives a file another content."""
        place = f"d{number // trees.FILES_PER_DIR:04}/f{number:07}"
        (self.tree / place).write_text(f"{number} in snapshot {self.count}\n")

    def measure(self):
        """All rows, the tools in turns."""
        group = f"{self.count:,} snapshots of {self.files:,} files"
        for _ in self.run.rounds():
            for row, commands in ROWS.items():
                for tool in self.run.turns(tool for tool in self.tools() if tool in commands):
                    with self.run.guard(row, tool):
                        words = (word.format(**self.places) for word in commands[tool])
                        self.run.add_cost(row, tool, self.call(tool, *words), group=group)


def measure(run: Run):
    """One volume, with more and more snapshots."""
    programs = [host.program(tool) for tool in ("vellum", "restic") if host.program(tool)]
    run.start(["vellum", "restic"], cache="warm", started_by=measuring.STARTED_BY, versions=programs)
    volume = SearchedVolume(run)
    for count in sorted(map(int, run.list_option("snapshots"))):
        volume.fill(count)
        volume.measure()
        run.keep()


CASE = Case(
    "find",
    "A name in many snapshots",
    measure,
    options=(
        Option("snapshots", "100,1000", "numbers of snapshots, one after another"),
        Option("files", 100_000, "files of the tree"),
        Option("restic", 1000, "the most snapshots that restic takes, 0 to leave it out"),
    ),
    rounds=5,
    short=("--rounds 1 --snapshots 4,12 --files 3000 --restic 4",),
)
