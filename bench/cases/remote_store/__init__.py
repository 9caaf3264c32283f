"""Stores on an object service, in turns with restic, rustic, kopia, rclone, s5cmd and the aws command line.

The service is SeaweedFS on this machine (`make tools` installs it), which counts requests and the bytes of objects. A
delay is put on each way of every connection by a line of the bench's own. Each program has an empty cache of its own for
whatever is to be cold. Needs root (the kernel's caches are dropped, worktrees mounted). Columns that are no programs:
`raw ranges` reads the object of a file in ranges of 8 MiB, eight at once; `local store` is Vellum with a store in a
directory.

Parts (--parts): `tree` snapshots, lists and restores a tree; `mount` reads it through a mount; `big` reads large and
small files through a mount; `files` sends single files to the service and back; `copies` pushes a tree to other stores
and checks it; `releases` pushes the releases of a project, all but the first at once; `idle` counts what a mount asks for
while nobody uses it.
"""

import contextlib
import shutil

from benchkit import host, record, service, trees
from benchkit.runner import Case, Option, Run, progress
from cases.remote_store import big, files, mount, releases, tree
from cases.remote_store.line import RemoteBench

PARTS = {
    "tree": tree.SIDES,
    "mount": mount.SIDES,
    "big": big.SIDES,
    "files": files.SIDES,
    "copies": tree.COPIES,
    "releases": releases.SIDES,
    "idle": mount.IDLE,
}
PROGRAMS = ("vellum", "restic", "rustic", "kopia", "rclone", "aws", "s5cmd")
FLOORS = ("raw ranges", "local store")
# What takes long, or does not depend on delays, is done once, without delay.
ONCE = {("tree", "rclone"), ("releases", "vellum"), ("releases", "restic"), ("idle", "vellum")}


def group_name(delay: float) -> str:
    """What a delay in milliseconds is called."""
    return f"{delay:g} ms for each request" if delay else "no delay"


def measure_part(run: Run, bench: RemoteBench, part: str):
    """One part, by all programs in turns."""
    sides = [name for name in PARTS[part] if name not in PROGRAMS[1:] or host.program(name)]
    for name in run.turns(sides):
        if (part, name) in ONCE and (run.number > 0 or bench.delay):
            continue
        with run.guard(f"{part}, {bench.group}", name):
            for sample in PARTS[part][name](bench):
                progress(f"{run.number} {bench.group}, {sample.row}: {name} {sample.describe()}")
                sample.add_to(run, name, bench.group)
    bench.clean()


def measure(run: Run):
    """All parts, behind each delay, in rounds."""
    programs = [name for name in PROGRAMS if host.program(name)]
    options = run.options
    run.start(
        [*programs, *FLOORS],
        floors=FLOORS,
        service="SeaweedFS on the same machine",
        filesystem=record.filesystem(run.work),
        tree=f"{options.tree}, {trees.describe(trees.ensure(options.tree))['files']:,} files",
        releases=options.releases,
        versions=record.versions(map(host.program, programs)),
    )
    for _ in run.rounds():
        server = service.Service(run.work / "service")
        try:
            for delay in map(float, run.list_option("delays")):
                # Without a delay, no line is the best one.
                line = service.line(server.port, delay / 1000) if delay else contextlib.nullcontext((server.port, None))
                with line as (port, _):
                    bench = RemoteBench(run, server, port, group_name(delay))
                    for part in run.list_option("parts"):
                        measure_part(run, bench, part)
                    bench.remove()
        finally:
            server.stop()
            shutil.rmtree(run.work / "service", ignore_errors=True)
        run.keep()


CASE = Case(
    "remote_store",
    "Stores on an object service",
    measure,
    help=__doc__,
    rounds=3,
    options=(
        Option("delays", "0,30", "there and back, milliseconds"),
        Option("parts", ",".join(PARTS), "what is measured"),
        Option("tree", "golib", f"of {', '.join(trees.TREES)}"),
        Option("releases", "networkx", "the tree of releases, one in each directory"),
        Option("sizes", ",".join(files.SIZES), "of single files"),
        Option("big", 256, "MiB of the large file"),
        Option("idle", 600, "seconds of an idle mount"),
    ),
    whole=("--rounds 2 --parts tree,mount,big,files", "--rounds 1 --parts copies,releases,idle"),
    short=("--rounds 1 --tree small100 --sizes '1 KiB,1 MiB' --big 16 --idle 5",),
)
