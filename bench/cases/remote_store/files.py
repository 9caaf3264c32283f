"""Single files to the service and back."""

import random
from pathlib import Path

from benchkit import host
from benchkit.service import BUCKET
from cases.remote_store.line import RCLONE, RemoteBench

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "100 MiB": 100 << 20, "1 GiB": 1 << 30}
PIECE = 16 << 20
# Files over this size are sent in the first round alone, without delay.
HUGE = 512 << 20


def sizes(bench: RemoteBench) -> list:
    """The sizes that are sent in this round."""
    asked = [size for size in bench.options.sizes.split(",") if size]
    return [size for size in asked if SIZES[size] <= HUGE or (bench.number == 0 and not bench.delay)]


def make_file(bench: RemoteBench, name: str, size: str) -> Path:
    """A directory with a file of bytes that do not compress."""
    folder, rng = bench.new_path(name), random.Random(f"{bench.number} {size}")
    folder.mkdir()
    with open(folder / "file", "wb") as file:
        for start in range(0, SIZES[size], PIECE):
            file.write(rng.randbytes(min(PIECE, SIZES[size] - start)))
    return folder


def check(one: Path, other: Path):
    """What came back is what was sent."""
    host.run("cmp", one, other)


def vellum(bench: RemoteBench):
    """A push of a snapshot with the file, and a clone."""
    for size in sizes(bench):
        work, hub = make_file(bench, "file-tree", size), bench.store(bench.new_folder())
        bench.call(bench.vellum, "init", work, *bench.unlocked())
        bench.call(bench.vellum, "snapshot", cwd=work)
        bench.call(bench.vellum, "remote", "add", "origin", hub, cwd=work)
        yield bench.run(f"{size}, up", bench.vellum, "push", cwd=work)
        # Another machine.
        bench.drop_caches()
        back = bench.new_path("file-back")
        yield bench.run(f"{size}, down", bench.vellum, "clone", hub, back, *bench.unlocked())
        check(work / "file", back / "file")
        host.remove(work)
        host.remove(back)


def copies(bench: RemoteBench, there: str, copy):
    """A program that copies a file as it is: `copy` makes its command from source and destination."""
    back = bench.work / "file-back"
    for size in sizes(bench):
        file = make_file(bench, "file-copied", size) / "file"
        yield bench.run(f"{size}, up", *copy(file, f"{there}/{SIZES[size]}"))
        host.drop_caches()
        yield bench.run(f"{size}, down", *copy(f"{there}/{SIZES[size]}", back))
        check(file, back)
        back.unlink()
        host.remove(file.parent)


def rclone(bench: RemoteBench):
    """rclone."""
    there = bench.rclone(bench.new_folder())
    yield from copies(bench, there, lambda source, to: [*RCLONE, "copyto", source, to])


def aws(bench: RemoteBench):
    """The aws command line."""
    there = f"s3://{BUCKET}/{bench.new_folder()}"
    yield from copies(bench, there, bench.aws)


def s5cmd(bench: RemoteBench):
    """s5cmd."""
    there = f"s3://{BUCKET}/{bench.new_folder()}"
    yield from copies(bench, there, lambda source, to: [*bench.s5cmd(), "cp", source, to])


SIDES = {"vellum": vellum, "rclone": rclone, "aws": aws, "s5cmd": s5cmd}
