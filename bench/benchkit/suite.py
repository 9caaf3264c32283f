"""Many cases, one after another, unattended: each in a process of its own, whose failure stops nothing but itself.

Each writes its record when it is done; one that fails takes no record away. What they print is kept beneath
target/bench. Deliberately absent: what a case is, see `runner.py`.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchkit import host, record

LOGS = host.ROOT / "target" / "bench"
# Longest that one case may take, seconds: a mount that hangs does not keep the others from being measured.
PATIENCE = 8 * 3600
# Part of the processors' time that others may take.
BUSY = 0.10
# For so long it is looked whether they do, and so long one that has just worked may take to come to rest, seconds.
LOOK, REST = 3, 120
# Rivals, and how one comes by each.
RIVALS = {
    "restic": "apt-get install restic",
    "borg": "apt-get install borgbackup",
    "rustic": "cargo install rustic-rs --locked",
    "rsync": "apt-get install rsync",
    "rclone": "apt-get install rclone",
    "unison": "apt-get install unison",
    "aws": "pip install awscli",
    "kopia": "go install github.com/kopia/kopia@latest",
    "s5cmd": "go install github.com/peak/s5cmd/v2@latest",
    "sy": "cargo install sy --locked",
    "xcp": "cargo install xcp --locked",
    "cpz": "cargo install cpz --locked",
    "juicefs": "its releases; JUICEFS names the binary",
}
# What measuring itself needs.
NEEDED = ("cc", "fio", "findmnt", "git", "go", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "nfs-cat", "ssh", "sshd", "tar")


def run(words, log) -> str:
    """Runs a command to its end; what went wrong, or nothing."""
    print(f"$ {shlex.join(map(str, words))}", file=log, flush=True)
    started = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "start_new_session": True}
    try:
        child = subprocess.Popen(words, cwd=host.ROOT, **started)
        code = child.wait(timeout=PATIENCE)
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        end(child)
        return f"not done after {duration(PATIENCE)}"
    except BaseException:
        end(child)
        raise
    return f"exit code {code}" if code else ""


def end(child):
    """Ends a command and what it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, number)
            child.wait(timeout=30)


def measure(name, words, out: Path, logs: Path = LOGS) -> str:
    """Runs the command that makes a record; what went wrong, or nothing."""
    with tempfile.TemporaryDirectory(dir=out) as folder, open(logs / f"{name}.log", "w") as log:
        scratch, place = Path(folder, f"{name}.json"), out / f"{name}.json"
        wrong = run([*words, "--json", str(scratch)], log)
        if scratch.is_file():
            # One that is not whole takes the place of those rows alone that it has.
            if wrong and place.is_file():
                kept = record.merged(record.load(place), record.load(scratch))
                scratch.write_text(json.dumps(kept, indent=1) + "\n")
            shutil.move(scratch, place)
    return f"{wrong}, see {log.name}" if wrong else ""


def used(seconds=LOOK) -> float:
    """The part of the processors' time that somebody uses now."""

    def look():
        fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        # Idle, and waiting for a disk, which is somebody's work, too, but leaves the processors alone.
        return sum(fields), fields[3] + fields[4]

    all_before, idle_before = look()
    time.sleep(seconds)
    all_now, idle_now = look()
    return 1 - (idle_now - idle_before) / max(all_now - all_before, 1)


def rests() -> bool:
    """Whether the machine has come to rest within a while."""
    end_of_patience = time.monotonic() + REST
    while used() > BUSY:
        if time.monotonic() > end_of_patience:
            return False
    return True


def missing() -> list:
    """What is not on this machine, and what that means."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    told = [f"{name} is missing, and left out ({how})" for name, how in RIVALS.items() if not host.program(name)]
    return told + [f"{name} is missing: what needs it will fail" for name in NEEDED if not shutil.which(name, path=path)]


def duration(seconds) -> str:
    """A time as people say it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def measure_all(commands: dict, out: Path, *, short: bool, logs: Path = LOGS) -> list:
    """Runs a command for each record, by name; the names of those that failed."""
    failed = []
    for name, words in commands.items():
        if not short and not rests():
            print(f"{name}: the machine is busy; its figures may be noisy", file=sys.stderr, flush=True)
        start = time.monotonic()
        wrong = measure(name, words, out, logs)
        took = duration(time.monotonic() - start)
        print(f"{name}: {f'FAILED after {took}: {wrong}' if wrong else f'done in {took}'}", flush=True)
        if wrong:
            failed.append(name)
    return failed


def refuse_busy():
    """Fails on a machine that does something else."""
    if (part := used()) > BUSY:
        raise host.CommandFailed(
            f"the machine is busy: {part:.0%} of its processors' time is used (load {os.getloadavg()[0]:.1f}). Figures "
            "would say little; try again later, or give --anyway"
        )
