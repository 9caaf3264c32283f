"""A worktree that three hosts share: one serves it, two are its clients, with a log in Redis or in the store.

Hosts are namespaces of this machine. `vellum bench cluster` has all of them work at the same moment; what a single client
does is timed beside it. The column "local mount" is the same work of as many threads on a mount of one host, which shares
nothing. The line to Redis can be made longer. Large files of a single client are written in turns with and without
--store-writes: through the host that serves, and into the store by the client itself.
"""

import contextlib
import fcntl
import json
import os
import signal
import tarfile
import threading
import time

from benchkit import cluster, host
from benchkit.runner import Case, Option, Run

CLIENTS = ["h1", "h2", "h3"]
LOCAL = "local mount"
# What is measured of what 'vellum bench cluster' knows: first what is quick and has no content, with many files, so that nothing
# is published meanwhile.
NAME_ROWS = "create-empty,create-empty-one-dir,stat"
CONTENT_ROWS = "create,read-cold,read,mix,big-write,append,lock"
# Threads of a single client that write a large file each.
STREAMS = 4
# From which size on a write is put into the store by a client: all that 'vellum bench' writes to large files are larger.
STORE_WRITES = "256K"
ONE_CLIENT, STORING_CLIENT = "one client", "one client with --store-writes"


def measure_together(run: Run, words, group, tool):
    """What 'vellum bench cluster' finds, with the percentiles of all hosts' operations."""
    options = run.options
    sizes = ["--operations", options.operations, "--big-file-size", options.big]
    found_rows = []
    for rows, files in ((NAME_ROWS, options.empty), (CONTENT_ROWS, options.files)):
        command = [host.vellum(), "bench", "cluster", "--json", "--workloads", rows, "--small-file-count", files, *sizes]
        found_rows += json.loads(host.run(*command, *words))["workloads"]
    for found in found_rows:
        whole, row = found["whole"], found["row"]
        if whole["errors"]:
            raise host.CommandFailed(f"{row}: {whole['errors']} operations failed: {whole['first_error']}")
        kind = {"group": group, "better": "more"}
        if whole["bytes"] and row.startswith("big"):
            run.add(row, tool, whole["bytes"] / whole["seconds"], unit="bytes per second", quantity="rate", **kind)
        else:
            run.add(row, tool, whole["operations_per_second"], unit="per second", quantity="rate", **kind)
        for part in ("p50", "p99"):
            run.add(row, tool, whole["latency_ms"][part] / 1000, group=group, quantity=part)


def measure_streams(run: Run, words, row, tool):
    """The large files of a single host."""
    command = [host.vellum(), "bench", "cluster", "--json", "--workloads", "big-write", "-p", STREAMS]
    for found in json.loads(host.run(*command, "--big-file-size", run.options.large, *words))["workloads"]:
        whole = found["whole"]
        if whole["errors"]:
            raise host.CommandFailed(f"{row}: {whole['errors']} operations failed: {whole['first_error']}")
        rate = {"unit": "bytes per second", "quantity": "rate", "better": "more", "group": group_of(0)}
        run.add(f"{row}: {found['row']}", tool, whole["bytes"] / whole["seconds"], **rate)


def pack(run: Run):
    """An archive of small files, a hundred in each directory."""
    source, archive = run.folder("source"), run.work / "tree.tar"
    for number in range(run.options.tree):
        folder = source / f"d{number // 100:04}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number:06}").write_bytes(os.urandom(4096))
    with tarfile.open(archive, "w") as made:
        made.add(source, "tree")
    return archive


def measure_tree(run: Run, root, group, tool):
    """Unpacks a tree on a client, looks at it twice, and removes it."""
    archive = run.work / "tree.tar"
    run.add("untar", tool, host.timed("tar", "-xf", archive, "-C", root), group=group)
    for row in ("find, first", "find, again"):
        run.add(row, tool, host.timed("find", root / "tree", "-size", "+1M"), group=group)
    run.add("rm -rf", tool, host.timed("rm", "-rf", root / "tree"), group=group)


def measure_listing(run: Run, root, group, tool):
    """Lists a directory of many names."""
    folder = root / "names"
    folder.mkdir()
    for number in range(run.options.names):
        os.close(os.open(folder / f"name-{number:08}", os.O_CREAT | os.O_WRONLY))
    run.add("list the names of a directory", tool, host.timed("ls", "-U", folder), group=group)
    host.run("rm", "-rf", folder)


def measure_messages(run: Run, shared, group):
    """Requests of a client for the attributes of a tree that it has just seen, beside an idle host."""
    root = shared.path("h2") / "asked"
    root.mkdir()
    for number in range(run.options.files):
        (root / f"f{number}").touch()
    for row in ("stat of files, first", "stat of files, again"):
        before = shared.requests("h2")
        for number in range(run.options.files):
            os.stat(root / f"f{number}")
        asked = shared.requests("h2") - before
        run.add(row, "vellum", asked / run.options.files, group=group, quantity="requests of each", unit="count")
    measure_kernel_answers(run, shared, group, root)
    host.run("rm", "-rf", root)


def measure_kernel_answers(run: Run, shared, group, root):
    """How long a client takes for the attributes of files that it has just seen, and what its kernel asks for that."""
    program = host.compile_program("names.c", run.work)
    host.run(program, "create", root, run.options.files)
    host.run(program, "stat", root, run.options.files)
    before = shared.kernel_requests("h2")
    took = float(host.run(program, "stat", root, run.options.files))
    # The requests for the number itself, too: the description of the mount is read for it.
    asked = shared.kernel_requests("h2") - before
    row = "stat of a file, again"
    run.add(row, "vellum", took, group=group)
    run.add(row, "vellum", asked / run.options.files, group=group, quantity="requests of the kernel", unit="count")


def measure_visibility(run: Run, shared, group):
    """Until a client reads what another one has written and closed; each must be the new content."""
    one, other = shared.path("h2") / "seen", shared.path("h3") / "seen"
    took = []
    for number in range(run.options.operations):
        start = time.perf_counter()
        one.write_text(str(number))
        if other.read_text() != str(number):
            raise host.CommandFailed(f"a client read something else than {number}, which was written and closed before")
        took.append(time.perf_counter() - start)
    run.add("write and close here, open and read there", "vellum", sorted(took)[len(took) // 2], group=group)
    one.unlink()


def measure_snapshot(run: Run, shared, group):
    """A snapshot while two clients create files, and the longest that one of these creations took."""
    is_over, longest = threading.Event(), []

    def create(name):
        folder, worst = shared.path(name) / f"written-{name}", 0.0
        folder.mkdir()
        while not is_over.is_set():
            start = time.perf_counter()
            (folder / f"{start}").touch()
            worst = max(worst, time.perf_counter() - start)
        longest.append(worst)

    writers = [threading.Thread(target=create, args=(name,)) for name in ("h2", "h3")]
    for writer in writers:
        writer.start()
    start = time.perf_counter()
    try:
        shared.vellum_in_mount("h1", "snapshot", "-q")
        run.add("snapshot beside writers", "vellum", time.perf_counter() - start, group=group)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    run.add("longest create beside a snapshot", "vellum", max(longest), group=group)
    for name in ("h2", "h3"):
        host.run("rm", "-rf", shared.path(name) / f"written-{name}")


def measure_eviction(run: Run, shared, group):
    """A client that is stopped while it has a lock: until another one has it."""
    with open(shared.path("h3") / "held", "w") as held, open(shared.path("h2") / "held") as wanted:
        fcntl.flock(held, fcntl.LOCK_EX)
        shared.signal_mount("h3", signal.SIGSTOP)
        try:
            start = time.perf_counter()
            fcntl.flock(wanted, fcntl.LOCK_EX)
            run.add("client stopped, until its lock is free", "vellum", time.perf_counter() - start, group=group)
        finally:
            shared.signal_mount("h3", signal.SIGCONT)


def start_log(run: Run, hosts, folder, stack, delay):
    """The words that name the log; what counts the bytes on the line to Redis, and Redis, if that has it."""
    if run.options.log != "redis":
        return ["--meta", "store:"] if run.options.log == "store" else [], None, None
    (folder / "redis").mkdir()
    redis = cluster.Redis(hosts["meta"], folder / "redis")
    stack.callback(redis.end)
    counts = stack.enter_context(hosts.line(hosts["meta"], 7379, ("127.0.0.1", redis.PORT), delay / 1000))
    return ["--meta", f"redis://{hosts['meta'].address}:7379"], counts, redis


def measure_large_writes(run: Run):
    """Large files of a single client, which sends them to the host that serves, or puts them into the store."""
    folder = run.folder(f"large-{run.number}")
    with cluster.Hosts([*CLIENTS, "meta"]) as hosts, contextlib.ExitStack() as stack:
        words, _, _ = start_log(run, hosts, folder, stack, 0)
        sends, stores = CLIENTS[1:3]
        storing = {stores: ["--store-writes", STORE_WRITES]}
        shared = cluster.SharedWorktree(hosts, CLIENTS, folder, words, client_words=storing)
        stack.callback(shared.end)
        rows = {sends: ONE_CLIENT, stores: STORING_CLIENT}
        for name in run.turns(rows):
            enter = ["-e", hosts.shell(folder), "--remote-program", host.vellum(), "--host", name, shared.mountpoint]
            measure_streams(run, enter, rows[name], "vellum")
            # What was written is published now, and not beside what the other one writes.
            shared.vellum_in_mount(CLIENTS[0], "flush")


def measure_shared(run: Run, delay: float):
    """All rows with one line to Redis."""
    group = group_of(delay)
    folder = run.folder(f"shared-{delay:g}-{run.number}")
    with cluster.Hosts([*CLIENTS, "h4", "meta"]) as hosts, contextlib.ExitStack() as stack:
        words, counts, redis = start_log(run, hosts, folder, stack, delay)
        shared = cluster.SharedWorktree(hosts, CLIENTS, folder, words, spare="h4" if words else "")
        stack.callback(shared.end)
        members = [word for name in CLIENTS for word in ("--host", name)]
        enter = ["-e", hosts.shell(folder), "--remote-program", host.vellum(), "-p", run.options.threads]
        # First: when others have changed what a kernel had cached, it caches no names for a while.
        measure_messages(run, shared, group)
        measure_together(run, [*enter, *members, shared.mountpoint], group, "vellum")
        measure_tree(run, shared.path("h2"), group, "vellum")
        measure_listing(run, shared.path("h2"), group, "vellum")
        measure_visibility(run, shared, group)
        measure_snapshot(run, shared, group)
        measure_eviction(run, shared, group)
        if redis:
            measure_log(run, shared, group, counts, redis)
        if words:
            run.add("server killed, until a client goes on", "vellum", shared.lose_server(), group=group)


def measure_local(run: Run):
    """What has a counterpart without other hosts, on a mount that only this machine has."""
    folder = run.folder(f"local-{run.number}")
    (folder / "volume").mkdir()
    (folder / "root").mkdir()
    host.vellum_in(folder / "volume", "init", "-q")
    host.vellum_in(folder / "volume", "mount", folder / "root")
    try:
        for delay in delays(run):
            group = group_of(delay)
            threads = run.options.threads * len(CLIENTS)
            measure_together(run, ["--host", "localhost", "-p", threads, folder / "root"], group, LOCAL)
            measure_tree(run, folder / "root", group, LOCAL)
            measure_listing(run, folder / "root", group, LOCAL)
        for row in (ONE_CLIENT, STORING_CLIENT):
            measure_streams(run, ["--host", "localhost", folder / "root"], row, LOCAL)
    finally:
        host.run(host.vellum(), "umount", "-q", folder / "root")


def delays(run: Run) -> list:
    """The lines to Redis, there and back, milliseconds."""
    return [float(word) for word in run.list_option("delays")]


def group_of(delay: float) -> str:
    """The rows with one line to Redis."""
    return f"{delay:g} ms to the log" if delay else "no delay"


def measure_log(run: Run, shared, group, counts, redis):
    """Bytes that empty files are on the line to Redis, and what Redis keeps."""
    root = shared.path("h2") / "logged"
    root.mkdir()
    # What was removed is kept while a kernel knows it.
    host.drop_caches()
    shared.vellum_in_mount("h1", "flush")
    # A log that is shortened meanwhile would be counted, too.
    redis.memory_at_rest()
    before = counts[0]
    for number in range(run.options.files):
        (root / f"f{number}").touch()
    synced = os.open(root, os.O_RDONLY)
    try:
        # The log has everything before this returns.
        os.fsync(synced)
    finally:
        os.close(synced)
    each = (counts[0] - before) / run.options.files
    run.add("create", "vellum", each, group=group, quantity="on the line to the log", unit="bytes")
    shared.vellum_in_mount("h1", "flush")
    run.add("at rest", "vellum", redis.memory_at_rest(), group=group, quantity="memory of Redis", unit="bytes")


def measure(run: Run):
    """All rounds: the shared worktree with each line, and the local mount."""
    threads = f"{len(CLIENTS)} hosts with {run.options.threads} threads each"
    run.start(["vellum", LOCAL], floors=[LOCAL], log=run.options.log, work=threads, versions=[host.vellum()])
    pack(run)
    for _ in run.rounds():
        for delay in delays(run):
            measure_shared(run, delay)
        measure_large_writes(run)
        measure_local(run)


CASE = Case(
    "cluster",
    "A worktree that three hosts share",
    measure,
    options=(
        Option("log", "redis", "redis, store, or none: where the log of the worktree is"),
        Option("delays", "0,0.5", "the line to Redis there and back, milliseconds"),
        Option("threads", 4, "of each host"),
        Option("files", 100, "small files of each thread, and files that a client asks for"),
        Option("empty", 2000, "empty files of each thread"),
        Option("operations", 500, "records, locks and files that are written here and read there"),
        Option("big", "64M", "bytes of the large file of each thread"),
        Option("large", "256M", f"bytes of the large file of each of the {STREAMS} threads of a single client"),
        Option("tree", 2000, "files of the archive that a client unpacks"),
        Option("names", 10_000, "of the directory that a client lists"),
    ),
    rounds=1,
    short=("--rounds 1 --delays 0 --threads 1 --files 10 --empty 20 --operations 20 --big 1M --large 1M --tree 50 --names 50",),
)
