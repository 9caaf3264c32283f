"""A merge and a check of a mounted worktree with very many files, and the verification of a sample.

The merge is of a fork: both sides have changed files of their own, and published them: either in all directories, so that
each changes another part of the tree, or next to each other. It is timed as a whole process, until the mounted worktree
stands on the result; so is `doctor`, on the same volume. The sample is of a store with as much content as `--content` says,
all of which is verified beside it.
"""

from pathlib import Path

from benchkit import host, trees
from benchkit.runner import Case, Option, Run

MIB = trees.MIB
# What a sample is compared with.
WHOLE = "all of it"


class MountedVolume:
    """A mounted worktree of files of a few bytes, a thousand in each directory."""

    def __init__(self, run: Run):
        self.run, self.files = run, run.options.files
        self.tree, self.mount = run.folder("tree"), run.folder("mount")
        self.group = f"{self.files:,} files, mounted"
        host.vellum_in(self.tree, "init", "-q")
        trees.numbered(self.tree, self.files)
        host.vellum_in(self.tree, "snapshot", "-q")

    def __enter__(self):
        host.vellum_in(self.tree, "mount", "-q", self.mount)
        return self

    def __exit__(self, *_):
        host.vellum_in(self.run.work, "umount", "-q", self.mount)

    def spread(self, side: int) -> list[int]:
        """Files of a side that stand in all directories, as far from each other as possible."""
        distance = self.files // self.run.options.changed
        return [index * distance + (2 * self.run.number + side) % distance for index in range(self.run.options.changed)]

    def neighbours(self, side: int) -> list[int]:
        """Files of a side that stand next to each other."""
        first = (2 * self.run.number + side) * self.run.options.changed % self.files
        return [(first + index) % self.files for index in range(self.run.options.changed)]

    def change(self, root: Path, numbers: list[int], text: str):
        """Gives files another content, and records that."""
        for number in numbers:
            (root / f"d{number // trees.FILES_PER_DIR:04}" / f"f{number:07}").write_text(text)
        host.vellum_in(root, "snapshot", "-q", "--wait")

    def measure_merge(self, row: str, choose):
        """A fork and the worktree change, and are merged."""
        number = self.run.number
        fork = self.run.folder(f"fork{number}")
        host.vellum_in(self.mount, "fork", "-q", fork.name, "--mount", fork)
        try:
            self.change(fork, choose(1), f"there {row} {number}\n")
            self.change(self.mount, choose(0), f"here {row} {number}\n")
            took = host.timed(host.vellum(), "-C", self.mount, "merge", fork.name)
            self.run.add(row, "vellum", took, group=self.group)
        finally:
            host.vellum_in(self.run.work, "umount", "-q", fork)
            host.vellum_in(self.mount, "worktree", "remove", "--delete", "-q", fork.name)
            host.remove(fork)

    def measure_doctor(self):
        """A check of the whole. It ends with 1 if it has something to say of the machine."""
        with self.run.guard("doctor", "vellum"):
            took = host.timed(host.vellum(), "-C", self.mount, "doctor", ok=(0, 1))
            self.run.add("doctor", "vellum", took, group=self.group)


def measure_sample(run: Run, files: int):
    """A sample of a store with so many files, and all of it."""
    tree = run.folder("content")
    trees.files(files, [MIB], lambda number: f"d{number % 10}/f{number:05}", seed=5)(tree)
    host.vellum_in(tree, "init", "-q")
    host.vellum_in(tree, "snapshot", "-q")
    for _ in run.rounds():
        for column, words in {"vellum": ["--sample", "5%"], WHOLE: ["--all"]}.items():
            took = host.timed(host.vellum(), "-C", tree, "verify", *words)
            run.add("verify a sample of 5 %", column, took, group=f"{files:,} MiB of content")
    host.remove(tree)


def measure(run: Run):
    """All of it."""
    run.start(["vellum", WHOLE], floors=(WHOLE,), cache="warm", versions=[host.vellum()])
    for files in run.list_option("content"):
        measure_sample(run, int(files))
        run.keep()
    with MountedVolume(run) as volume:
        for _ in run.rounds():
            volume.measure_merge("merge, changes in all directories", volume.spread)
            volume.measure_merge("merge, changes of neighbours", volume.neighbours)
        for _ in run.rounds():
            if not run.is_out("doctor", "vellum"):
                volume.measure_doctor()


CASE = Case(
    "workspaces",
    "Merge, check and sample of large volumes",
    measure,
    options=(
        Option("files", 1_000_000, "files of the mounted worktree"),
        Option("changed", 1000, "files that each side of the merge changes"),
        Option("content", "2048,8192", "files of 1 MiB in the stores that are verified"),
    ),
    rounds=5,
    short=("--rounds 1 --files 3000 --changed 30 --content 40",),
)
