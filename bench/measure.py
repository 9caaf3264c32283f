"""Runs one command and says what it cost: wall time, processor time, peak memory.

Peak memory is the kernel's own figure for that one process (`ru_maxrss`), so it has a floor of about 15 MB: a child
starts out with the size of the interpreter that made it. Page cache is not counted. All tools measured here are single
processes, so the figure is the whole tool.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

# Lines of a failed command's output worth showing; a progress bar can fill megabytes.
SHOWN_LINES = 15


class CommandFailed(Exception):
    """A measured command ended with an exit code that its caller did not allow."""


@dataclass
class Cost:
    """What one run cost: seconds and bytes."""

    wall: float
    cpu: float
    peak: int
    # Bytes of pages that it made dirty, as the kernel accounts them: of files on filesystems that have a disk.
    dirtied: int = 0


def run(argv, *, cwd=None, env=None, ok=(0,), log=None) -> Cost:
    """Runs `argv` to its end. Output goes to the file `log`, where a failure is looked up."""
    out = Path(log) if log else Path(os.devnull)
    with open(out, "wb") as sink, open(os.devnull, "rb") as nothing:
        start = time.perf_counter()
        child = subprocess.Popen(
            [str(a) for a in argv], cwd=cwd, env=env, stdin=nothing, stdout=sink, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code
    if code not in ok:
        raise CommandFailed(f"{' '.join(str(a) for a in argv)}\n  exit code {code}\n{tail(out)}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, usage.ru_oublock * 512)


def tail(path: Path) -> str:
    """The last lines of a log, indented."""
    if not path.is_file():
        return ""
    lines = path.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    return "\n".join("  | " + line for line in lines)


def settle(path):
    """Writes back what is dirty on `path`'s filesystem, so that one tool's debt is not charged to the next."""
    subprocess.run(["sync", "-f", str(path)], check=True)


def warm(path):
    """Reads every file under `path` once, so that each tool finds it in the page cache."""
    subprocess.run(
        f"find {quote(path)} -type f -print0 | xargs -0 -r cat > /dev/null", shell=True, check=True
    )


def quote(path) -> str:
    """A path as one word of a shell command."""
    return "'" + str(path).replace("'", "'\\''") + "'"


def disk_use(path) -> int:
    """Bytes of all files under `path`, as their sizes say: what an object store would charge for."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_size
    return total
