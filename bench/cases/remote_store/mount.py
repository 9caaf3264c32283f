"""A tree through a mount that has fetched nothing yet: names, first bytes, everything; and again without the service."""

import contextlib
import os
import time
from pathlib import Path

from benchkit import host
from cases.remote_store.line import RemoteBench, Sample


@contextlib.contextmanager
def mounted(bench: RemoteBench, attached: Path, snapshot: str):
    """The snapshot of a worktree, mounted."""
    place = bench.new_path("mount")
    place.mkdir()
    bench.call(bench.vellum, "-C", attached, "mount", "-q", "--snapshot", snapshot, place)
    try:
        yield place
    finally:
        bench.call(bench.vellum, "-C", bench.work, "umount", "-q", place)


def first_byte(path):
    """Opens a file, and reads one byte."""
    with open(path, "rb", buffering=0) as file:
        file.read(1)


def some_files(tree: Path) -> list:
    """Two files of the tree, far from each other, as paths in it."""
    found = sorted(str(Path(folder, name).relative_to(tree)) for folder, _, names in os.walk(tree) for name in names)
    found = [path for path in found if not path.startswith(".vellum") and (tree / path).stat().st_size > 0]
    return [found[len(found) // 3], found[2 * len(found) // 3]]


def grep(bench: RemoteBench, row, place: Path) -> Sample:
    """Reads everything."""
    return bench.run(row, "grep", "-rc", "no such words in here", place, ok=(1,))


def vellum(bench: RemoteBench):
    """Vellum with a store on the service."""
    work, store = bench.tree("mount-tree"), bench.store(bench.new_folder())
    bench.call(bench.vellum, "init", work, "--store", store, *bench.unlocked())
    bench.call(bench.vellum, "snapshot", cwd=work)
    one, other = some_files(work)
    attached = bench.attach("attached", store)
    with bench.measured("mount and ls") as sample, contextlib.ExitStack() as stack:
        place = stack.enter_context(mounted(bench, attached, work.name))
        os.listdir(place)
        # Ending the mount is not part of it.
        ending = stack.pop_all()
    with ending:
        yield sample
        with bench.measured("first byte of a file, from nothing") as sample:
            first_byte(place / one)
        yield sample
    attached = bench.attach("attached", store)
    with mounted(bench, attached, work.name) as place:
        yield bench.run("find, cold", "find", place, "-printf", "%s ")
        with bench.measured("first byte of a file, names known") as sample:
            first_byte(place / other)
        yield sample
    attached = bench.attach("attached", store)
    yield from grep_twice(bench, attached, work.name)


def grep_twice(bench: RemoteBench, attached: Path, snapshot: str):
    """Cold, and again in another mount, for which the kernel remembers nothing."""
    with mounted(bench, attached, snapshot) as place:
        yield grep(bench, "grep -r, cold", place)
    host.drop_caches()
    with mounted(bench, attached, snapshot) as place:
        yield grep(bench, "grep -r, from the disk cache", place)


def local(bench: RemoteBench):
    """Vellum with a store in a directory."""
    work = bench.tree("local-tree")
    bench.call(bench.vellum, "init", work, "--name", "local")
    bench.call(bench.vellum, "snapshot", cwd=work)
    host.drop_caches()
    with mounted(bench, work, "local") as place:
        yield bench.run("find, cold", "find", place, "-printf", "%s ")
    host.drop_caches()
    yield from grep_twice(bench, work, "local")


def idle(bench: RemoteBench):
    """Requests of a mounted worktree that nobody uses: of one that is alone, and of one that follows other machines."""
    for row, words in {"idle mount, an hour": [], "idle mount that follows, an hour": ["--follow"]}.items():
        work, store = bench.new_path("idle-tree"), bench.store(bench.new_folder())
        place = bench.new_path("idle")
        place.mkdir()
        bench.call(bench.vellum, "init", work, "--store", store, *bench.unlocked())
        bench.call(bench.vellum, "-C", work, "mount", "-q", *words, place)
        try:
            (place / "file").write_text("something\n")
            bench.call(bench.vellum, "-C", place, "flush")
            yield watch_idle(bench, row)
        finally:
            bench.call(bench.vellum, "-C", bench.work, "umount", "-q", place)


def watch_idle(bench: RemoteBench, row: str) -> Sample:
    """Requests of some minutes, as many as they were in an hour."""
    with bench.measured(row) as sample:
        time.sleep(bench.options.idle)
    an_hour = 3600 / sample.seconds
    kinds = {f"{kind} requests": (count * an_hour, "count") for kind, count in sample.traffic.requests.items()}
    return Sample(row, others={"requests": (sample.traffic.total() * an_hour, "count")} | kinds)


SIDES = {"vellum": vellum, "local store": local}
IDLE = {"vellum": idle}
