#!/usr/bin/env python3
"""What it costs to look at a mount at work: its access log, and `vellum stats`.

    bench/measuring.py [--rounds 11] [--count 20000] [--seconds 10] [--work DIR] [--json FILE]

VELLUM names the binary. Needs root, or fusermount3, and a C compiler. In turns, with nobody who looks and with somebody:
COUNT requests each, stats and reads of 4 KiB that no cache of the kernel answers, with nobody at the access log, with
`cat` and with `vellum profile`; and the processor time of an idle mount over SECONDS, with and without `vellum stats`.
No build is without the counters and without the check whether the log is read: what these cost is a bench of its own
(`cargo bench -p vellum-fuse`), to be set beside the read here.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import contest
import record
import report

VELLUM = os.path.abspath(os.environ.get("VELLUM", "target/dist/vellum"))
HERE = Path(__file__).parent
WITHOUT, WITH = "nobody looks", "looked at"
SIZE = 1 << 20
# Longest that anything here waits for something to begin or to end, seconds.
PATIENCE = 60.0
LOG, STATS = "access log", "vellum stats, each second"


def run(*command):
    """What a command that has to succeed printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"measuring: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def until(is_so, what):
    """Waits for a condition."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"measuring: {what}: not within {PATIENCE:.0f} s")
        time.sleep(0.01)


class Mount:
    """A file in a mounted worktree, and the process that serves it."""

    def __init__(self, work: Path):
        self.root, self.ask, self.marker = work / "mount", work / "ask", work / "marker"
        run("cc", "-O2", "-Wall", "-o", self.ask, HERE / "ask.c")
        volume = work / "volume"
        volume.mkdir()
        self.root.mkdir()
        run(VELLUM, "-C", volume, "init", "-q")
        run(VELLUM, "-C", volume, "fork", "-q", "bench", "--mount", self.root)
        self.file = self.root / "file"
        self.file.write_bytes(os.urandom(SIZE))
        os.sync()
        run(VELLUM, "-C", self.root, "flush")
        self.pid = json.loads((self.root / ".vellum/mount.json").read_text())["pid"]

    def asked(self, what, count):
        """Seconds of one request."""
        return float(run(self.ask, what, self.file, count))

    def busy(self):
        """Seconds of processor time that the process has had, in all its threads."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            # One that ends meanwhile had next to nothing.
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    @contextlib.contextmanager
    def followed(self, reader):
        """The access log is read until the end, and no line was made for nobody before or after."""
        self.marker.write_bytes(b"")
        log = self.root / ".vellum/accesslog"
        # Lines flow once the first byte is here.
        script = 'exec 3<"$0"; head -c 1 <&3 > "$1"; exec "${@:2}"'
        command = ["bash", "-c", script, str(log), str(self.marker), *reader]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as following:
            try:
                def flows():
                    self.asked("stat", 100)
                    return self.marker.stat().st_size > 0

                until(flows, "the access log is read")
                yield
            finally:
                following.kill()
        # The mount sees that nobody reads when it writes the next line, or after a second.
        self.asked("stat", 100)
        time.sleep(1.2)


# Who reads the log, from descriptor 3: `vellum profile` reads it as a file that it can wait for.
READERS = {"cat": ["cat", "/dev/fd/3"], "vellum profile": [VELLUM, "profile", "/dev/fd/3"]}


def access_log(mount, number, count, whole):
    """Requests with nobody at the log, and with each reader."""
    for what, row in (("stat", "stat"), ("read", "4 KiB read")):
        for reader, command in READERS.items():
            for side in contest.order([WITHOUT, WITH], number):
                with mount.followed(command) if side == WITH else contextlib.nullcontext():
                    took = mount.asked(what, count)
                whole.add(f"{row}, the log read by {reader}", side, took, group=LOG, number=number)


def looking(mount, number, seconds, whole):
    """Processor time a second of the mount, and of `vellum stats`."""
    for side in contest.order([WITHOUT, WITH], number):
        before, start = mount.busy(), time.monotonic()
        if side == WITH:
            command = [VELLUM, "stats", str(mount.root), "--interval", "1", "--count", str(seconds)]
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode != 0:
                sys.exit(f"measuring: {' '.join(command)}: exit code {child.returncode}")
            own = (usage.ru_utime + usage.ru_stime) / seconds
            whole.add("the command", side, own, group=STATS, quantity="processor time", number=number)
        else:
            time.sleep(seconds)
        busy = (mount.busy() - before) / (time.monotonic() - start)
        whole.add("the mount", side, busy, group=STATS, quantity="processor time", number=number)


def main():
    """Makes a mount, measures in turns, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        whole = record.Record(
            "measuring",
            "What measuring costs",
            columns=[WITHOUT, WITH],
            ours=WITH,
            floors=[WITHOUT],
            setting={
                "filesystem": record.filesystem(work),
                "cache": "the kernel's is passed by, ours is warm",
                "requests": record.requests(),
                "versions": record.version(VELLUM),
            },
        )
        try:
            mount = Mount(Path(work))
            mount.asked("read", 1000)
            for number in range(arguments.rounds):
                access_log(mount, number, arguments.count, whole)
                if number < max(3, arguments.rounds // 2):
                    looking(mount, number, arguments.seconds, whole)
        finally:
            subprocess.run([VELLUM, "umount", "-q", str(Path(work, "mount"))], capture_output=True)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
