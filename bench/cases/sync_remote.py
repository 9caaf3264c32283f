"""Vellum and rsync over ssh, in turns.

The other host is this one, through a real ssh and sshd, with half of the delay put on each way by a line of the bench's
own. Bytes are those of the encrypted connection, both ways. rsync runs as it is, and with
-z, since Vellum compresses what it sends unless told not to. "ssh alone" is a command that does nothing on the other
host: what no tool can do without.
"""

import contextlib
import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchkit import host, record, service
from benchkit.runner import Case, Option, Run

ROWS = ["small", "changed", "same"]
WAYS = ["to the host", "from the host"]
ALONE = "ssh alone"
SSHD = next((path for path in ("/usr/sbin/sshd", "/usr/bin/sshd") if os.path.exists(path)), None)


class Line:
    """A way to this host."""

    def __init__(self, root: Path, port: int, counts):
        self.counts, self.rsh = counts, root / "rsh"
        self.rsh.write_text(
            f"#!/bin/sh\nexec ssh -F none -i {root}/user -o IdentitiesOnly=yes -o BatchMode=yes "
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
            f"-o HostName=127.0.0.1 -p {port} \"$@\"\n"
        )
        self.rsh.chmod(0o755)

    @classmethod
    @contextlib.contextmanager
    def made(cls, root: Path, delay: float):
        """A line to an sshd that is ended with it."""
        for key in ("host", "user"):
            host.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / key)
        shutil.copy(root / "user.pub", root / "authorized")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        (root / "config").write_text(
            f"HostKey {root}/host\nAuthorizedKeysFile {root}/authorized\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nPidFile none\nListenAddress 127.0.0.1\n"
        )
        (port,) = service.free_ports(1)
        server = subprocess.Popen([SSHD, "-D", "-f", root / "config", "-E", root / "log", "-p", str(port)])
        try:
            host.wait_until(lambda: service.is_open(port), "sshd is there", 20)
            with service.line(port, delay) as ends:
                yield cls(root, *ends)
        finally:
            server.terminate()
            server.wait()

    def run(self, argv) -> tuple:
        """Seconds, and bytes on the line."""
        before, seconds = self.counts[0], host.timed(*argv)
        host.wait_until(lambda: not self.counts[1], "the bytes on the line are counted", 10)
        return seconds, self.counts[0] - before


@dataclass
class Trees:
    """What is copied, what the destination has before, and where it goes."""

    source: Path
    old: Path
    there: Path


def fill(trees: Trees, row: str):
    """What is at the source; where a file changed, the older one beside it."""
    rng = random.Random(4)
    trees.source.mkdir()
    if row != "changed":
        for number in range(10_000):
            folder = trees.source / f"d{number % 100}"
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}").write_bytes(rng.randbytes(rng.randint(1000, 10_000)))
        return
    (trees.source / "file").write_bytes(rng.randbytes(100 << 20))
    host.run("cp", "-a", trees.source, trees.old)
    # rsync does not see an edit of the same second and size.
    os.utime(trees.old / "file", (1_700_000_000, 1_700_000_000))
    with open(trees.source / "file", "r+b") as file:
        file.seek(50 << 20)
        file.write(random.Random(5).randbytes(1 << 20))


def measure_copy(run: Run, line: Line, trees: Trees, kind: tuple):
    """One row, one way, by one tool: `kind` has these and the tool's command."""
    row, way, tool, argv = kind
    if row != "small":
        host.run("cp", "-a", trees.source if row == "same" else trees.old, trees.there)
    ends = [f"{trees.source}/", f"here:{trees.there}/"]
    if way == WAYS[1]:
        ends = [f"here:{trees.source}/", f"{trees.there}/"]
    seconds, sent = line.run(argv if tool == ALONE else [*argv, *ends])
    if tool != ALONE and not host.is_same(trees.source, trees.there):
        raise host.CommandFailed(f"{tool}, {row}: the copy differs from the source")
    run.add(row, tool, seconds, group=way)
    run.add(row, tool, sent, group=way, quantity="on the line", unit="bytes")
    host.remove(trees.there)


def measure(run: Run):
    """Both in turns."""
    if not SSHD:
        raise host.CommandFailed("sshd is needed: install openssh-server")
    with Line.made(run.folder("line"), run.options.delay / 1000) as line:
        measure_rows(run, line)


def measure_rows(run: Run, line: Line):
    """All rows, both ways, by all tools."""
    vellum, delay = host.vellum(), run.options.delay
    tools = {
        "vellum": [vellum, "sync", "-a", "-e", str(line.rsh), "--remote-program", vellum],
        "rsync": ["rsync", "-a", "-e", str(line.rsh)],
        "rsync -z": ["rsync", "-az", "-e", str(line.rsh)],
        ALONE: [str(line.rsh), "here", "true"],
    }
    versions = record.versions([vellum, "rsync"])
    run.start(list(tools), floors=[ALONE], title=f"Over ssh, {delay:g} ms there and back", versions=versions)
    trees = Trees(run.work / "source", run.work / "old", run.work / "there")
    for row in run.list_option("rows"):
        fill(trees, row)
        for _ in run.rounds():
            for way in WAYS:
                for tool in run.turns(tools):
                    measure_copy(run, line, trees, (row, way, tool, tools[tool]))
        host.remove(trees.source)
        host.remove(trees.old)


CASE = Case(
    "sync_remote",
    "Over ssh",
    measure,
    help=__doc__,
    rounds=3,
    options=(
        Option("delay", 50.0, "there and back, milliseconds"),
        Option("rows", ",".join(ROWS), "what is copied"),
    ),
    short=("--rounds 1 --rows changed",),
)
