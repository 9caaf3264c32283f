"""The filesystems of a contest: each gives an empty directory to work in."""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from benchkit import host, record


class Side:
    """A directory to work in, and how to bring it to rest."""

    name = ""

    def __init__(self, work: Path):
        self.work = work / self.name.replace(" ", "-")
        self.root = self.work / "root"
        self.root.mkdir(parents=True)

    def settle(self):
        """Does now what the side would do later."""

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
        return host.memory(self.pid(), "VmHWM") if self.pid() else None

    def processor_time(self) -> float:
        """Seconds of processor time that this process has had."""
        return host.processor_time(self.pid()) if self.pid() else 0.0

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

    def __init__(self, work: Path, program="", name="vellum"):
        self.name, self.program = name, program or host.vellum()
        super().__init__(work)
        volume = self.work / "volume"
        volume.mkdir()
        self.run("-C", volume, "init", "-q")
        self.run("-C", volume, "fork", "-q", "bench", "--mount", self.root)

    def run(self, *arguments) -> str:
        """A command of this binary."""
        return host.run(self.program, *arguments)

    def settle(self):
        self.run("-C", self.root, "flush")

    def end(self):
        self.run("umount", "-q", self.root)

    def version(self):
        return record.version(self.program)

    def pid(self):
        return json.loads((self.root / ".vellum/mount.json").read_text())["pid"]


class JuiceFs(Side):
    """JuiceFS with metadata in SQLite and objects in a directory: what a single machine uses."""

    name = "juicefs"

    def __init__(self, work: Path):
        super().__init__(work)
        self.program = os.environ["JUICEFS"]
        meta = f"sqlite3://{self.work}/meta.db"
        host.run(self.program, "format", "--storage", "file", "--bucket", f"{self.work}/objects/", meta, "bench")
        host.run(self.program, "mount", "-d", "--cache-dir", f"{self.work}/cache", meta, self.root)

    def end(self):
        host.run(self.program, "umount", self.root)

    def version(self):
        return record.version(self.program)


class Null(Side):
    """The null filesystem, served by one thread, or by the threads of a Vellum mount."""

    def __init__(self, work, program, name, options=()):
        self.name = name
        super().__init__(work)
        self.child = subprocess.Popen([program, *options, self.root])
        host.wait_until(self.is_mounted, f"{program} mounts {self.root}", 20)

    def is_mounted(self) -> bool:
        """Whether it is there; fails if it never will be."""
        if self.child.poll() is not None:
            raise host.CommandFailed(f"the null filesystem does not mount {self.root}")
        return os.path.ismount(self.root)

    def end(self):
        host.run("umount", self.root)
        self.child.wait(timeout=20)

    def pid(self):
        return self.child.pid


@contextlib.contextmanager
def present(makers):
    """The sides that some functions make; they are given up at the end, whatever happened."""
    with contextlib.ExitStack() as stack:
        found = []
        for make in makers:
            side = make()
            stack.callback(side.end)
            found.append(side)
        yield found
