"""A tree: first snapshot, one file changed, names, restore; then pushes to a second store, and what maintenance takes."""

import json
import random

from benchkit import host
from cases.remote_store.line import RCLONE, RemoteBench, Sample


def change(tree, number: int):
    """One file is another."""
    (tree / "changed-by-the-bench").write_bytes(random.Random(number).randbytes(5000))


def together(row, *samples) -> Sample:
    """Several commands as one."""
    whole = Sample(row)
    for sample in samples:
        whole.seconds += sample.seconds
        whole.traffic.requests += sample.traffic.requests
        whole.traffic.sent += sample.traffic.sent
        whole.traffic.received += sample.traffic.received
    return whole


def vellum(bench: RemoteBench):
    """Vellum with a store on the service."""
    program, work, store = bench.vellum, bench.tree("vellum-tree"), bench.store(bench.new_folder())
    yield bench.run("set up", program, "init", work, "--store", store, *bench.unlocked())
    yield bench.run("first snapshot", program, "snapshot", cwd=work)
    change(work, 1)
    yield bench.run("one file changed", program, "snapshot", cwd=work)
    for row, flags in (("names of the top", []), ("all names", ["-R"])):
        bench.drop_caches()
        new = bench.new_path("vellum-names")
        attached = bench.run("", program, "init", new, "--store", store, *bench.unlocked())
        yield together(row, attached, bench.run("", program, "ls", work.name, *flags, cwd=new))
    bench.drop_caches()
    new = bench.new_path("vellum-restored")
    yield bench.run("restore", program, "clone", store, new, "--from", work.name, *bench.unlocked())
    if not host.is_same(work, new):
        raise host.CommandFailed(f"{new} is not what {work} is")
    host.remove(new)


def vellum_copies(bench: RemoteBench):
    """Pushes to other stores: all, one that is killed, and one more snapshot; then a look at everything."""
    program, work = bench.vellum, bench.tree("vellum-tree")
    bench.call(program, "init", work, "--store", bench.store(bench.new_folder()), *bench.unlocked())
    bench.call(program, "snapshot", cwd=work)
    for name in ("origin", "killed"):
        bench.call(program, "remote", "add", name, bench.store(bench.new_folder()), cwd=work)
    first = bench.run("push", program, "push", "origin", cwd=work)
    yield first
    yield bench.kill_and_repeat("push, killed and repeated", first, program, "push", "killed", cwd=work)
    change(work, 2)
    bench.call(program, "snapshot", cwd=work)
    yield bench.run("push of one more snapshot", program, "push", "origin", cwd=work)
    bench.drop_caches()
    yield bench.run("plan of a collection", program, "gc", "plan", cwd=work, ok=(0, 1))
    bench.drop_caches()
    yield bench.run("check of all data", program, "verify", "--all", cwd=work)


def restic(bench: RemoteBench):
    """restic with a repository on the service."""
    work, restic_here = bench.tree("restic-tree"), bench.restic(bench.new_folder())
    yield bench.run("set up", *restic_here, "init")
    yield bench.run("first snapshot", *restic_here, "backup", ".", cwd=work)
    change(work, 1)
    yield bench.run("one file changed", *restic_here, "backup", ".", cwd=work)
    bench.drop_caches()
    yield bench.run("names of the top", *restic_here, "ls", "latest", "/")
    bench.drop_caches()
    yield bench.run("all names", *restic_here, "ls", "-l", "latest")
    bench.drop_caches()
    out = bench.new_path("restic-restored")
    yield bench.run("restore", *restic_here, "restore", "latest", "--target", out)
    host.remove(out)


def restic_copies(bench: RemoteBench):
    """The same with restic's copies between repositories."""
    work, restic_here = bench.tree("restic-tree"), bench.restic(bench.new_folder())
    bench.call(*restic_here, "init")
    bench.call(*restic_here, "backup", ".", cwd=work)
    others = [bench.restic(bench.new_folder()) for _ in range(2)]
    copies = [[*other, "copy", "--from-repo", restic_here[2]] for other in others]
    for other in others:
        bench.call(*other, "init")
    first = bench.run("push", *copies[0])
    yield first
    yield bench.kill_and_repeat("push, killed and repeated", first, *copies[1])
    change(work, 2)
    bench.call(*restic_here, "backup", ".", cwd=work)
    yield bench.run("push of one more snapshot", *copies[0])
    bench.drop_caches()
    yield bench.run("plan of a collection", *restic_here, "prune", "--dry-run")
    bench.drop_caches()
    yield bench.run("check of all data", *restic_here, "check", "--read-data")


def rustic(bench: RemoteBench):
    """rustic with a repository on the service."""
    work, folder = bench.tree("rustic-tree"), bench.new_folder()
    rustic_here = bench.rustic(folder)
    yield bench.run("set up", *rustic_here, "init")
    yield bench.run("first snapshot", *rustic_here, "backup", ".", cwd=work)
    change(work, 1)
    yield bench.run("one file changed", *rustic_here, "backup", ".", cwd=work)
    for row, flags in (("names of the top", []), ("all names", ["--recursive", "--long"])):
        bench.drop_caches()
        yield bench.run(row, *rustic_here, "ls", *flags, "latest")
    bench.drop_caches()
    out = bench.new_path("rustic-restored")
    yield bench.run("restore", *rustic_here, "restore", "latest", out)
    if not host.is_same(work, out):
        raise host.CommandFailed(f"{out} is not what {work} is")
    host.remove(out)


def rustic_copies(bench: RemoteBench):
    """The same with rustic's copies between repositories."""
    work, rustic_here = bench.tree("rustic-tree"), bench.rustic(bench.new_folder())
    bench.call(*rustic_here, "init")
    others = [bench.new_folder() for _ in range(2)]
    there = [bench.rustic(other) for other in others]
    copies = [[*rustic_here, "copy", "--target", other] for other in others]
    for copy in copies:
        # While there is nothing to copy: it takes the parameters of the chunker, without which nothing is copied later.
        bench.call(*copy, "--init")
    bench.call(*rustic_here, "backup", ".", cwd=work)
    first = bench.run("push", *copies[0])
    # It reports no failure of a copy by its exit code.
    if not json.loads(bench.call(*there[0], "snapshots", "--json")):
        raise host.CommandFailed(f"{others[0]} got no snapshot")
    yield first
    yield bench.kill_and_repeat("push, killed and repeated", first, *copies[1])
    change(work, 2)
    bench.call(*rustic_here, "backup", ".", cwd=work)
    yield bench.run("push of one more snapshot", *copies[0])
    bench.drop_caches()
    yield bench.run("plan of a collection", *rustic_here, "prune", "--dry-run")
    bench.drop_caches()
    yield bench.run("check of all data", *rustic_here, "check", "--read-data")


def kopia_repository(bench: RemoteBench):
    """A repository of kopia's on the service, compressed as the others are: its words, and what making it cost."""
    folder = bench.new_folder()
    words = bench.kopia(folder)
    created = bench.run("", *words, "repository", "create", *bench.kopia_place(folder))
    settings = bench.run("", *words, "policy", "set", "--global", "--compression", "zstd")
    return words, together("set up", created, settings)


def kopia_root(bench: RemoteBench, words) -> str:
    """The root of the newest snapshot."""
    return json.loads(bench.call(*words, "snapshot", "list", "--json"))[-1]["rootEntry"]["obj"]


def kopia(bench: RemoteBench):
    """kopia with a repository on the service."""
    work = bench.tree("kopia-tree")
    words, made = kopia_repository(bench)
    yield made
    yield bench.run("first snapshot", *words, "snapshot", "create", work)
    change(work, 1)
    yield bench.run("one file changed", *words, "snapshot", "create", work)
    root = kopia_root(bench, words)
    for row, flags in (("names of the top", []), ("all names", ["-r"])):
        bench.drop_caches()
        yield bench.run(row, *words, "list", *flags, root)
    bench.drop_caches()
    out = bench.new_path("kopia-restored")
    yield bench.run("restore", *words, "snapshot", "restore", root, out)
    if not host.is_same(work, out):
        raise host.CommandFailed(f"{out} is not what {work} is")
    host.remove(out)


def kopia_copies(bench: RemoteBench):
    """The same with copies of kopia's whole repository, which knows no plan of a collection."""
    work = bench.tree("kopia-tree")
    words, _ = kopia_repository(bench)
    bench.call(*words, "snapshot", "create", work)
    copies = [[*words, "repository", "sync-to", *bench.kopia_place(bench.new_folder())] for _ in range(2)]
    first = bench.run("push", *copies[0])
    yield first
    yield bench.kill_and_repeat("push, killed and repeated", first, *copies[1])
    change(work, 2)
    bench.call(*words, "snapshot", "create", work)
    yield bench.run("push of one more snapshot", *copies[0])
    bench.drop_caches()
    yield bench.run("check of all data", *words, "snapshot", "verify", "--verify-files-percent", "100")


def rclone(bench: RemoteBench):
    """rclone: files as objects."""
    work, there = bench.tree("rclone-tree"), bench.rclone(bench.new_folder())
    yield bench.run("first snapshot", *RCLONE, "copy", work, there)
    yield bench.run("all names", *RCLONE, "lsf", "-R", there)
    yield bench.run("restore", *RCLONE, "copy", there, bench.new_path("rclone-restored"))


SIDES = {"vellum": vellum, "restic": restic, "rustic": rustic, "kopia": kopia, "rclone": rclone}
COPIES = {"vellum": vellum_copies, "restic": restic_copies, "rustic": rustic_copies, "kopia": kopia_copies}
