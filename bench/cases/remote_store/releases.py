"""The releases of a project, one after another in one directory: what a push of all but the first sends."""

import shutil
from pathlib import Path

from benchkit import measure as measuring, trees
from cases.remote_store.line import RemoteBench, Sample

ROW = "push of nine more releases"


def replace(work: Path, release: Path):
    """The directory has the files of a release."""
    for entry in work.iterdir():
        if entry.name != ".vellum":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(release, work, dirs_exist_ok=True)


def push(bench: RemoteBench, name: str, snapshot, send, packs):
    """Snapshots of all releases here; the first is sent, then the others. `packs`: where the local store has its data."""
    first, *others = sorted(entry for entry in trees.ensure(bench.options.releases).iterdir() if entry.is_dir())
    work = bench.work / name
    replace(work, first)
    bench.call(*snapshot, cwd=work)
    bench.call(*send, cwd=work)
    before = measuring.disk_use(packs)
    for release in others:
        replace(work, release)
        bench.call(*snapshot, cwd=work)
    sample = bench.run(ROW, *send, cwd=work)
    yield sample
    grown = measuring.disk_use(packs) - before
    yield Sample(ROW, others={"sent, to what was missing": (sample.traffic.sent / grown, "count")})


def vellum(bench: RemoteBench):
    """Vellum: a local store, and a remote."""
    program, work = bench.vellum, bench.new_path("vellum-releases")
    work.mkdir()
    bench.call(program, "init", work)
    bench.call(program, "remote", "add", "origin", bench.store(bench.new_folder()), cwd=work)
    yield from push(bench, work.name, [program, "snapshot"], [program, "push"], work / ".vellum/store")


def restic(bench: RemoteBench):
    """restic: a local repository, and one on the service."""
    work, there = bench.new_path("restic-releases"), bench.restic(bench.new_folder())
    work.mkdir()
    here = bench.new_path("restic-local")
    for command in (["restic", "-r", here], there):
        bench.call(*command, "init")
    snapshot = ["restic", "-r", here, "backup", "."]
    yield from push(bench, work.name, snapshot, [*there, "copy", "--from-repo", here], here)


SIDES = {"vellum": vellum, "restic": restic}
