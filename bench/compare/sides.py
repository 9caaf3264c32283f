"""The filesystems of a contest: each gives an empty directory to work in."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import record

VELLUM = os.environ.get("VELLUM") or shutil.which("vellum") or "target/dist/vellum"
JUICEFS = os.environ.get("JUICEFS")


def run(*argv, cwd=None):
    """A command that must succeed; its output is shown if it does not."""
    output(*argv, cwd=cwd)


def output(*argv, cwd=None) -> str:
    """What such a command prints."""
    done = subprocess.run([str(each) for each in argv], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout.strip()


class Side:
    """A directory to work in, and how to bring it to rest."""

    name = ""

    def __init__(self, work: Path):
        self.work = work / self.name.replace(" ", "-")
        self.root = str(self.work / "root")
        os.makedirs(self.root)

    def settle(self):
        """Does what the side would do later, now."""

    def end(self):
        """Gives up the directory."""

    def version(self) -> str:
        """What serves it."""
        return ""

    def pid(self) -> int | None:
        """The process that serves it."""
        return None

    def peak(self) -> int | None:
        """The most memory that this process has had, in bytes."""
        return self.memory("VmHWM")

    def resident(self) -> int | None:
        """The memory that it has now."""
        return self.memory("VmRSS")

    def memory(self, field) -> int | None:
        if self.pid() is None:
            return None
        status = Path(f"/proc/{self.pid()}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field))

    def empty(self):
        """Removes everything that the steps left."""
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)


class Beneath(Side):
    """The filesystem on which all others stand."""

    name = "beneath"


class Vellum(Side):
    """A fork of an empty volume, mounted."""

    name = "vellum"

    def __init__(self, work: Path):
        super().__init__(work)
        volume = self.work / "volume"
        volume.mkdir()
        run(VELLUM, "-C", volume, "init", "-q")
        run(VELLUM, "-C", volume, "fork", "-q", "bench", "--mount", self.root)

    def settle(self):
        run(VELLUM, "-C", self.root, "flush")

    def end(self):
        run(VELLUM, "umount", self.root)

    def version(self):
        return record.version(VELLUM)

    def pid(self):
        return json.loads(Path(self.root, ".vellum/mount.json").read_text())["pid"]


class JuiceFs(Side):
    """JuiceFS with metadata in SQLite and objects in a directory: what a single machine uses."""

    name = "juicefs"

    def __init__(self, work: Path):
        super().__init__(work)
        self.meta = f"sqlite3://{self.work}/meta.db"
        run(JUICEFS, "format", "--storage", "file", "--bucket", f"{self.work}/objects/", self.meta, "bench")
        run(JUICEFS, "mount", "-d", "--cache-dir", f"{self.work}/cache", self.meta, self.root)

    def end(self):
        run(JUICEFS, "umount", self.root)

    def version(self):
        return record.version(JUICEFS)


@contextlib.contextmanager
def present(work: Path):
    """All sides that this machine can serve; they are given up at the end, whatever happened."""
    with contextlib.ExitStack() as stack:
        found = []
        for kind in (Beneath, Vellum, *([JuiceFs] if JUICEFS else [])):
            side = kind(work)
            stack.callback(side.end)
            found.append(side)
        yield found
