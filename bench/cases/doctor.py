"""`vellum doctor` on healthy volumes: its work must not grow with the files. Times are of the whole process."""

import os

from benchkit import host, measure as measuring, trees
from benchkit.runner import Case, Option, Run


def measure(run: Run):
    """A checked-out worktree of each number of files, with one snapshot."""
    run.start(["vellum"], cache="warm", started_by=measuring.STARTED_BY, versions=[host.vellum()])
    program = host.vellum()
    for count in map(int, run.list_option("files")):
        work = run.folder(str(count))
        tree, env = work / "tree", dict(os.environ, HOME=str(work / "home"), XDG_STATE_HOME=str(work / "state"))
        tree.mkdir()
        trees.numbered(tree, count)
        for words in (["init", "."], ["snapshot", "-q"]):
            measuring.run([program, *words], cwd=tree, env=env, ok=(0,), log=work / "log")
        for _ in range(run.options.rounds):
            # 1: a disk that is nearly full is a finding, too.
            cost = measuring.run([program, "doctor"], cwd=tree, env=env, ok=(0, 1), log=work / "log")
            run.add("doctor", "vellum", cost.wall, group=f"{count:,} files")
            run.add("doctor", "vellum", cost.peak, group=f"{count:,} files", quantity="peak memory", unit="bytes")
        host.remove(work)


CASE = Case(
    "doctor",
    "Examining a healthy volume",
    measure,
    options=(Option("files", "1000,1000000", "numbers of files"),),
    rounds=11,
    short=("--rounds 1 --files 100,1000",),
)
