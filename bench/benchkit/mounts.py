"""The filesystems of a contest: each gives an empty directory to work in, until its `with` block ends."""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from benchkit import host, record


class Beneath:
    """The filesystem on which all others stand; and what they have in common."""

    name = "beneath"
    program = ""
    # The process that serves it, if there is one.
    pid = None

    def __init__(self, work: Path):
        self.work = work / self.name.replace(" ", "-")
        self.root = self.work / "root"
        self.root.mkdir(parents=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def settle(self):
        """Does now what the side would do later."""

    def end(self):
        """Gives up the directory."""

    def version(self) -> str:
        """What serves it."""
        return record.version(self.program) if self.program else ""

    def peak(self) -> int | None:
        """The most memory that its process has had, in bytes."""
        return host.memory(self.pid, "VmHWM") if self.pid else None

    def processor_time(self) -> float:
        """Seconds of processor time that its process has had."""
        return host.processor_time(self.pid) if self.pid else 0.0

    def empty(self):
        """Removes everything that the steps left."""
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)


class Vellum(Beneath):
    """A fork of an empty volume, mounted."""

    def __init__(self, work: Path, program="", name="vellum"):
        self.name, self.program = name, program or host.vellum()
        super().__init__(work)
        volume = self.work / "volume"
        volume.mkdir()
        self.run("-C", volume, "init", "-q")
        self.run("-C", volume, "fork", "-q", "bench", "--mount", self.root)
        self.pid = json.loads((self.root / ".vellum/mount.json").read_text())["pid"]

    def run(self, *arguments) -> str:
        """A command of this binary."""
        return host.run(self.program, *arguments)

    def settle(self):
        self.run("-C", self.root, "flush")

    def end(self):
        self.run("umount", "-q", self.root)


class JuiceFs(Beneath):
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


class Null(Beneath):
    """The null filesystem, served by one thread, or by the threads of a Vellum mount."""

    def __init__(self, work, program, name, options=()):
        self.name = name
        super().__init__(work)
        self.child = subprocess.Popen([program, *options, self.root])
        self.pid = self.child.pid
        host.wait_until(self.is_mounted, f"{program} mounts {self.root}", 20)

    def is_mounted(self) -> bool:
        """Whether it is there; fails if it never will be."""
        if self.child.poll() is not None:
            raise host.CommandFailed(f"the null filesystem does not mount {self.root}")
        return os.path.ismount(self.root)

    def end(self):
        host.run("umount", self.root)
        self.child.wait(timeout=20)


@contextlib.contextmanager
def ground(kind: str, space: str):
    """The root of a filesystem in memory: ext4, xfs or btrfs. Needs root."""
    root, script = Path(f"/tmp/vellum-bench-{kind}-{os.getpid()}"), host.BENCH / "ramdisk.sh"
    host.run(script, "make", root, space, kind)
    try:
        yield root
    finally:
        host.run(script, "remove", root)


@contextlib.contextmanager
def present(makers):
    """The sides that some functions make; they are given up at the end, whatever happened."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(make()) for make in makers]
