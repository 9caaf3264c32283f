"""What it costs to look at a mount at work: its access log, and `vellum stats`.

In turns, with nobody who looks and with somebody: requests that no cache of the kernel answers (stats, and reads of
4 KiB), with nobody at the access log, with `cat` and with `vellum profile`; and the processor time of an idle mount,
with and without `vellum stats`. No build is without the counters and without the check whether the log is read: what
these cost is a bench of its own (`cargo bench -p vellum-fuse`), to be set beside the read here.
"""

import contextlib
import os
import subprocess
import time

from benchkit import host, measure as measuring, mounts, record
from benchkit.runner import Case, Option, Run

WITHOUT, WITH = "nobody looks", "looked at"
SIZE = 1 << 20
LOG, STATS = "access log", "vellum stats, each second"
REQUESTS = {"stat": "stat", "read": "4 KiB read"}
# Lines flow once the first byte is here. Whoever reads the log then has it as descriptor 3.
FOLLOW = 'exec 3<"$0"; head -c 1 <&3 > "$1"; exec "${@:2}"'


class ObservedMount:
    """A file in a mounted worktree, and who reads its access log."""

    def __init__(self, run: Run, side: mounts.Vellum):
        self.side, self.marker, self.file = side, run.work / "marker", side.root / "file"
        self.ask = host.compile_program("ask.c", run.work)
        self.file.write_bytes(os.urandom(SIZE))
        os.sync()
        side.settle()
        self.seconds("read", 1000)
        # `vellum profile` reads the log as a file that it can wait for.
        self.readers = {"cat": ["cat", "/dev/fd/3"], "vellum profile": [side.program, "profile", "/dev/fd/3"]}

    def seconds(self, request, count) -> float:
        """Seconds of one request, of so many."""
        return float(host.run(self.ask, request, self.file, count))

    def log_flows(self) -> bool:
        """Whether a reader of the log has got something."""
        self.seconds("stat", 100)
        return self.marker.stat().st_size > 0

    @contextlib.contextmanager
    def followed(self, reader):
        """The access log is read until the end, and no line was made for nobody before or after."""
        self.marker.write_bytes(b"")
        command = ["bash", "-c", FOLLOW, self.side.root / ".vellum/accesslog", self.marker, *reader]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as following:
            try:
                host.wait_until(self.log_flows, "the access log is read")
                yield
            finally:
                following.kill()
        # The mount sees that nobody reads when it writes the next line, or after a second.
        self.seconds("stat", 100)
        time.sleep(1.2)


def measure_log(run: Run, mount: ObservedMount):
    """Requests with nobody at the log, and with each reader."""
    for request, row in REQUESTS.items():
        for name, command in mount.readers.items():
            for side in run.turns([WITHOUT, WITH]):
                with mount.followed(command) if side == WITH else contextlib.nullcontext():
                    took = mount.seconds(request, run.options.count)
                run.add(f"{row}, the log read by {name}", side, took, group=LOG)


def measure_stats(run: Run, mount: ObservedMount):
    """Processor time a second of the mount, and of `vellum stats`."""
    side, seconds = mount.side, run.options.seconds
    for column in run.turns([WITHOUT, WITH]):
        before, start = side.processor_time(), time.monotonic()
        if column == WITH:
            cost = measuring.run([side.program, "stats", side.root, "--interval", "1", "--count", seconds])
            run.add("the command", column, cost.cpu / seconds, group=STATS, quantity="processor time")
        else:
            time.sleep(seconds)
        busy = (side.processor_time() - before) / (time.monotonic() - start)
        run.add("the mount", column, busy, group=STATS, quantity="processor time")


def measure(run: Run):
    """Makes a mount, measures in turns."""
    setting = {"cache": "the kernel's is passed by, ours is warm", "requests": record.requests()}
    run.start([WITHOUT, WITH], ours=WITH, floors=[WITHOUT], versions=[host.vellum()], **setting)
    with mounts.Vellum(run.work) as side:
        mount = ObservedMount(run, side)
        for number in run.rounds():
            measure_log(run, mount)
            if number < max(3, run.options.rounds // 2):
                measure_stats(run, mount)


CASE = Case(
    "measuring",
    "What measuring costs",
    measure,
    options=(Option("count", 20000, "requests"), Option("seconds", 10, "of an idle mount")),
    rounds=11,
    short=("--rounds 1 --count 500 --seconds 1",),
)
