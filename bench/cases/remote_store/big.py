"""Files of three sizes through a mount that has fetched nothing: first bytes, all of one, a large one in order and not."""

import concurrent.futures
import os
import random
import urllib.request
from pathlib import Path

from benchkit import host
from benchkit.service import BUCKET
from cases.remote_store.line import RCLONE, RemoteBench, Sample
from cases.remote_store.mount import first_byte, mounted

MIB = 1 << 20
RANGE, AT_ONCE = 8 * MIB, 8
# Random reads of 4 KiB.
READS, READ = 64, 4096
SEQUENTIAL = "large file, in order"


def make_files(bench: RemoteBench, name: str) -> Path:
    """A directory with a small file, two of 1 MiB and a large one, of bytes that do not compress."""
    folder, rng = bench.new_path(name), random.Random(bench.number)
    folder.mkdir()
    (folder / "small").write_bytes(rng.randbytes(1024))
    (folder / "one").write_bytes(rng.randbytes(MIB))
    with open(folder / "large", "wb") as file:
        for _ in range(bench.options.big):
            file.write(rng.randbytes(MIB))
    return folder


def read_all(path: Path) -> int:
    """Reads a file in order; how much it was."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(MIB):
            total += len(piece)
    return total


def vellum(bench: RemoteBench):
    """Vellum with a store on the service; each file is read by a mount that knows nothing of it."""
    work, store = make_files(bench, "big-tree"), bench.store(bench.new_folder())
    bench.call(bench.vellum, "init", work, "--store", store, *bench.unlocked())
    bench.call(bench.vellum, "snapshot", cwd=work)
    rows = {
        "metadata of a file": lambda place: os.stat(place / "large"),
        "first byte, 1 KiB": lambda place: first_byte(place / "small"),
        "first byte, large file": lambda place: first_byte(place / "large"),
        "1 MiB, whole": lambda place: read_all(place / "one"),
        "1 MiB, again": lambda place: read_all(place / "one"),
    }
    with mounted(bench, bench.attach("attached", store), work.name) as place:
        for row, step in rows.items():
            with bench.measured(row) as sample:
                step(place)
            yield sample
    with mounted(bench, bench.attach("attached", store), work.name) as place:
        with bench.measured(SEQUENTIAL) as sample:
            sample.amount = read_all(place / "large")
        yield sample
    with mounted(bench, bench.attach("attached", store), work.name) as place:
        yield from read_randomly(bench, place / "large")


def read_randomly(bench: RemoteBench, path: Path):
    """Some pieces of the large file, one after the other, none near another."""
    size, rng = path.stat().st_size, random.Random(7)
    reads = min(READS, size // MIB)
    offsets = rng.sample(range(0, size, size // reads)[:reads], reads)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        with bench.measured("4 KiB of the large file") as sample:
            for offset in offsets:
                os.pread(descriptor, READ, offset // READ * READ)
    finally:
        os.close(descriptor)
    sample.seconds /= reads
    yield Sample(
        sample.row,
        others={
            "time": (sample.seconds, "s"),
            "requests": (sample.traffic.total() / reads, "count"),
            "received": (sample.traffic.received / reads, "bytes"),
        },
    )


def download(bench: RemoteBench, name: str, get):
    """A program that downloads the file as it is. `get`: its command for an object, and the path to write to."""
    file, folder = make_files(bench, f"{name}-tree") / "large", bench.new_folder()
    bench.call(*bench.aws(file, f"s3://{BUCKET}/{folder}/large"))
    host.drop_caches()
    back = bench.new_path(f"{name}-back")
    sample = bench.run(SEQUENTIAL, *get(folder, back))
    sample.amount = file.stat().st_size
    if back.stat().st_size != sample.amount:
        raise host.CommandFailed(f"{name} got {back.stat().st_size} bytes of {sample.amount}")
    back.unlink()
    yield sample


def aws(bench: RemoteBench):
    """The aws command line."""
    yield from download(bench, "aws", lambda folder, back: bench.aws(f"s3://{BUCKET}/{folder}/large", back))


def rclone(bench: RemoteBench):
    """rclone, in ranges as large as those of others."""
    ranges = ["--multi-thread-cutoff", "8M", "--multi-thread-streams", AT_ONCE]
    get = lambda folder, back: [*RCLONE, *ranges, "copyto", f"{bench.rclone(folder)}/large", back]
    yield from download(bench, "rclone", get)


def s5cmd(bench: RemoteBench):
    """s5cmd, in ranges of the same size, as many at once."""
    words = [*bench.s5cmd(), "cp", "--concurrency", AT_ONCE, "--part-size", RANGE // MIB]
    yield from download(bench, "s5cmd", lambda folder, back: [*words, f"s3://{BUCKET}/{folder}/large", back])


def raw(bench: RemoteBench):
    """The object in ranges, several at once: what the service and the line give."""
    file, folder = make_files(bench, "raw-tree") / "large", bench.new_folder()
    bench.call(*bench.aws(file, f"s3://{BUCKET}/{folder}/large"))
    size = file.stat().st_size

    def fetch(start):
        wanted = {"Range": f"bytes={start}-{min(start + RANGE, size) - 1}"}
        request = urllib.request.Request(f"{bench.endpoint}/{BUCKET}/{folder}/large", headers=wanted)
        with urllib.request.urlopen(request) as answer:
            return len(answer.read())

    with bench.measured(SEQUENTIAL) as sample, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        sample.amount = sum(pool.map(fetch, range(0, size, RANGE)))
    if sample.amount != size:
        raise host.CommandFailed(f"{sample.amount} bytes came of {size}")
    yield sample


SIDES = {"vellum": vellum, "rclone": rclone, "aws": aws, "s5cmd": s5cmd, "raw ranges": raw}
