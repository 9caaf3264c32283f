"""Runs one command and says what it cost: wall time, processor time, peak memory.

A small program starts it (launch.c, compiled when it is first needed): peak memory is the kernel's own figure for that
one process (`ru_maxrss`), which begins with the size of what made it. Page cache is not counted. All tools measured here
are single processes, so the figure is the whole tool.
"""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchkit.host import CommandFailed, compile_program, last_lines

# What a record says of its peak memory (see report.py).
STARTED_BY = "launch.c"


@dataclass
class Cost:
    """What one run cost: seconds and bytes."""

    wall: float
    cpu: float
    peak: int
    # Bytes of pages that it made dirty, as the kernel accounts them: of files on filesystems that have a disk.
    dirtied: int = 0


@functools.cache
def launcher() -> Path:
    """The program that starts others, in a directory that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="vellum-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return compile_program("launch.c", folder)


def run(argv, *, cwd=None, env=None, ok=(0,), log=None) -> Cost:
    """Runs `argv` to its end. Output goes to the file `log`, where a failure is looked up."""
    out, words = Path(log) if log else Path(os.devnull), [str(a) for a in argv]
    result = launcher().with_name("result")
    result.unlink(missing_ok=True)
    with open(out, "wb") as sink:
        started = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
        subprocess.run([launcher(), result, *words], cwd=cwd, env=env, **started)
    if not result.is_file():
        raise CommandFailed(f"{' '.join(words)}\n  it cannot be started\n{last_lines(out.read_bytes())}")
    wall, user, system, peak, dirtied, status = result.read_text().split()
    code = os.waitstatus_to_exitcode(int(status))
    if code not in ok:
        raise CommandFailed(f"{' '.join(words)}\n  exit code {code}\n{last_lines(out.read_bytes())}")
    return Cost(float(wall), float(user) + float(system), int(peak) * 1024, int(dirtied) * 512)


def warm(path):
    """Reads every file under `path` once, so that each tool finds it in the page cache."""
    script = 'find "$0" -type f -print0 | xargs -0 -r cat > /dev/null'
    subprocess.run(["sh", "-c", script, path], check=True)


def disk_use(path) -> int:
    """Bytes of all files under `path`, as their sizes say: what an object store would charge for."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_size
    return total
