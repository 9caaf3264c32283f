"""This machine: where programs are, how they are run, and what the kernel is asked.

Deliberately absent: what a run cost beside its time, see `measure.py`.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
CACHE = Path(os.environ.get("VELLUM_BENCH_CACHE", os.path.expanduser("~/.cache/vellum-bench")))
# Lines of a failed command's output that are shown; a progress bar can fill megabytes.
SHOWN_LINES = 15


class CommandFailed(Exception):
    """A command could not be started, or ended with an exit code that its caller did not allow."""


def program(name) -> str | None:
    """Where a tool is: what the environment variable of its name says, or what PATH says; ours has to be there."""
    return vellum() if name == "vellum" else os.environ.get(name.upper()) or shutil.which(name)


def vellum() -> str:
    """The Vellum binary: VELLUM, or what `make measure` builds."""
    path = Path(os.environ.get("VELLUM") or ROOT / "target/dist/vellum").resolve()
    if not path.is_file():
        raise CommandFailed(f"{path} does not exist: `make bench-build` builds it, or set VELLUM to another binary")
    return str(path)


def run(*argv, cwd=None, env=None, ok=(0,)) -> str:
    """Runs a command and returns what it printed."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise CommandFailed(f"{' '.join(words)}\n  {error}") from None
    if done.returncode not in ok:
        raise CommandFailed(f"{' '.join(words)}\n  exit code {done.returncode}\n{last_lines(done.stderr or done.stdout)}")
    return done.stdout.decode(errors="replace").strip()


def vellum_in(folder, *words, **how) -> str:
    """Runs Vellum in a directory and returns what it printed."""
    return run(vellum(), "-C", folder, *words, **how)


def last_lines(output: bytes) -> str:
    """The last lines of an output, indented."""
    lines = output.decode(errors="replace").splitlines()[-SHOWN_LINES:]
    return "\n".join("  | " + line for line in lines)


def timed(*argv, **how) -> float:
    """Seconds that a command took from start to exit."""
    start = time.perf_counter()
    run(*argv, **how)
    return time.perf_counter() - start


def wait_until(condition, what, seconds=60.0):
    """Waits for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise CommandFailed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.01)


def drop_caches():
    """Makes the kernel forget names, attributes and pages. Needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def settle(path):
    """Writes back what is dirty on a filesystem, so that one tool's debt is not charged to the next."""
    run("sync", "-f", path)


def processor_time(pid) -> float:
    """Seconds of processor time that a process has had, in all its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread that ends meanwhile had next to nothing.
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def memory(pid, field) -> int:
    """A figure of a process's memory, in bytes: VmHWM is its peak, VmRSS what it has now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def compile_program(source, folder) -> Path:
    """Compiles one of the C programs of this directory."""
    target = Path(folder) / Path(source).stem
    run(os.environ.get("CC", "cc"), "-O2", "-Wall", "-o", target, BENCH / source)
    return target


def fio(folder, *options) -> dict:
    """What fio found in a directory, of its reads or its writes; each option may be several words."""
    words = [word for option in options for word in option.split()]
    told = run("fio", "--name=work", f"--directory={folder}", "--output-format=json", *words)
    job = json.loads(told[told.index("{") :])["jobs"][0]
    return job["write" if "write" in words[0] else "read"] | {"runtime": job["job_runtime"] / 1000}


def remove(path):
    """Removes a directory, if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def is_same(one, other) -> bool:
    """Whether names and contents of two trees are equal; `.vellum` does not count."""
    command = ["diff", "-rq", "--no-dereference", "--exclude=.vellum", str(one), str(other)]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
