"""Vellum and rsync over ssh, in turns.

The other host is this one, through a real ssh and sshd, with half of the delay put on each way (`benchkit/delay.py`,
since not every kernel has netem). Bytes are those of the encrypted connection, both ways. rsync runs as it is, and with
-z, since Vellum compresses what it sends unless told not to. "ssh alone" is a command that does nothing on the other
host: what no tool can do without.
"""

import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchkit import host, record
from benchkit.runner import Case, Option, Run

ROWS = ["small", "changed", "same"]
WAYS = ["to the host", "from the host"]
ALONE = "ssh alone"
SSHD = next((path for path in ("/usr/sbin/sshd", "/usr/bin/sshd") if os.path.exists(path)), None)
DELAY = host.BENCH / "benchkit/delay.py"


class Line:
    """A way to this host."""

    def __init__(self, root: Path, delay: float):
        self.counts = root / "counts"
        for key in ("host", "user"):
            host.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / key)
        shutil.copy(root / "user.pub", root / "authorized")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        (root / "config").write_text(
            f"HostKey {root}/host\nAuthorizedKeysFile {root}/authorized\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nPidFile none\n"
        )
        proxy = f"{sys.executable} {DELAY} {delay / 2} {self.counts} {SSHD} -i -f {root}/config -E {root}/log"
        self.rsh = root / "rsh"
        self.rsh.write_text(
            f"#!/bin/sh\nexec ssh -F none -i {root}/user -o IdentitiesOnly=yes -o BatchMode=yes "
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
            f"-o 'ProxyCommand={proxy}' \"$@\"\n"
        )
        self.rsh.chmod(0o755)

    def run(self, argv) -> tuple:
        """Seconds, and bytes on the line."""
        self.counts.unlink(missing_ok=True)
        seconds = host.timed(*argv)
        host.wait_until(self.counts.exists, "the bytes on the line are counted", 10)
        return seconds, int(self.counts.read_text())


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
    vellum, delay = host.vellum(), run.options.delay
    if not SSHD:
        raise host.CommandFailed("sshd is needed: install openssh-server")
    line = Line(run.folder("line"), delay / 1000)
    tools = {
        "vellum": [vellum, "sync", "-a", "-e", str(line.rsh), "--remote-program", vellum],
        "rsync": ["rsync", "-a", "-e", str(line.rsh)],
        "rsync -z": ["rsync", "-az", "-e", str(line.rsh)],
        ALONE: [str(line.rsh), "here", "true"],
    }
    versions = f"{record.version(vellum)}, {record.version('rsync')}"
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
