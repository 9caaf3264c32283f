"""Snapshots of unusual shapes: a deep tree, a part of a tree, a chain of ten, what compresses well.

Checked-out directories; times are of the whole process. Scenes are described as in `benchkit/scene.py`.
"""

from benchkit import host, measure as measuring
from benchkit.runner import Case, Run
from benchkit.scene import Scene

INIT = ["vellum -C {new} init -q"]
# Rows: the scene, what is done before each run and not measured, and the command.
SHAPES = {
    "first snapshot, 10 levels of 10 files": (
        {"files": 100, "bytes": 1024, "depth": 10},
        ["cp -r {tree} {new}", *INIT],
        "vellum -C {new} snapshot -q",
    ),
    "snapshot of a tenth of 1,000 files": (
        {"files": 1000, "bytes": 1024},
        ["cp -r {tree} {new}", *INIT, "vellum -C {new} snapshot -q", "sh -c 'for f in {new}/d000/*; do date +%N >> $f; done'"],
        "vellum -C {new} snapshot -q d000",
    ),
    "ten snapshots, one after another": (
        {"files": 100, "bytes": 1024},
        ["cp -r {tree} {new}", *INIT],
        "sh -c 'for n in 0 1 2 3 4 5 6 7 8 9; do echo $n > {new}/d000/f00000; {vellum} -C {new} snapshot -q; done'",
    ),
    "first snapshot, 1 MB that compresses": (
        {"then": ["sh -c 'yes 1234567 | head -c 1000000 > {tree}/text'"]},
        ["cp -r {tree} {new}", *INIT],
        "vellum -C {new} snapshot -q",
    ),
    "first snapshot, 1 MB that compresses, not compressed": (
        {"then": ["sh -c 'yes 1234567 | head -c 1000000 > {tree}/text'"]},
        ["cp -r {tree} {new}", *INIT, "vellum -C {new} config set --volume compression none"],
        "vellum -C {new} snapshot -q",
    ),
}


def measure(run: Run):
    """Each shape by itself."""
    run.start(["vellum"], started_by=measuring.STARTED_BY, cache="warm", versions=[host.vellum()])
    for number, (row, (told, before, command)) in enumerate(SHAPES.items()):
        with Scene(told, run.work / str(number)) as scene:
            for _ in run.rounds():
                scene.run_all(before)
                host.settle(scene.work)
                run.add_cost(row, "vellum", measuring.run(scene.words(command), env=scene.env))
                scene.next_round()


CASE = Case("shapes", "Snapshots of unusual shapes", measure, rounds=11)
