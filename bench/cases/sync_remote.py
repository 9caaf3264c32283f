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
from pathlib import Path

from benchkit import host, service, trees
from benchkit.runner import Case, Option, Run

# What the destination has before each row: a folder of this run, or nothing.
ROWS = {"small": "", "changed": "old", "same": "source"}
# Source and destination of each way.
WAYS = {"to the host": ("{source}/", "here:{there}/"), "from the host": ("here:{source}/", "{there}/")}
ALONE = "ssh alone"
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
SERVER = """HostKey {root}/host
AuthorizedKeysFile {root}/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
PidFile none
ListenAddress 127.0.0.1
"""
CLIENT = """#!/bin/sh
exec ssh -F none -i {root}/user -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no \
-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o HostName=127.0.0.1 -p {port} "$@"
"""


@contextlib.contextmanager
def line_to_here(root: Path, delay: float):
    """A program like ssh that leads to this host, through an sshd that is ended with it; and what the line counts."""
    for key in ("host", "user"):
        host.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / key)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (root / "config").write_text(SERVER.format(root=root))
    (port,) = service.free_ports(1)
    server = subprocess.Popen([SSHD, "-D", "-f", root / "config", "-E", root / "log", "-p", str(port)])
    try:
        host.wait_until(lambda: service.is_open(port), "sshd is there", 20)
        with service.line(port, delay) as (port, counts):
            rsh = root / "rsh"
            rsh.write_text(CLIENT.format(root=root, port=port))
            rsh.chmod(0o755)
            yield str(rsh), counts
    finally:
        server.terminate()
        server.wait()


def fill(work: Path, row: str):
    """What is at the source; where a file changed, the older one beside it."""
    source, old = work / "source", work / "old"
    if row != "changed":
        trees.files(10_000, range(1000, 10_001), lambda n: f"d{n % 100}/f{n}", seed=4)(source)
        return
    trees.files(1, [100 << 20], lambda _: "file", seed=4)(source)
    host.run("cp", "-a", source, old)
    # rsync does not see an edit of the same second and size.
    os.utime(old / "file", (1_700_000_000, 1_700_000_000))
    with open(source / "file", "r+b") as file:
        file.seek(50 << 20)
        file.write(random.Random(5).randbytes(1 << 20))


def measure_round(run: Run, row: str, tools: dict, counts):
    """One row, both ways, by all tools in turns."""
    source, there = run.work / "source", run.work / "there"
    for way, ends in WAYS.items():
        for tool in run.turns(tools):
            if ROWS[row]:
                host.run("cp", "-a", run.work / ROWS[row], there)
            words = [] if tool == ALONE else [end.format(source=source, there=there) for end in ends]
            before, seconds = counts[0], host.timed(*tools[tool], *words)
            host.wait_until(lambda: not counts[1], "the bytes on the line are counted", 10)
            if tool != ALONE and not host.is_same(source, there):
                raise host.CommandFailed(f"{tool}, {row}: the copy differs from the source")
            run.add(row, tool, seconds, group=way)
            run.add(row, tool, counts[0] - before, group=way, quantity="on the line", unit="bytes")
            host.remove(there)


def measure(run: Run):
    """All rows."""
    if not SSHD:
        raise host.CommandFailed("sshd is needed: install openssh-server")
    vellum, delay = host.vellum(), run.options.delay
    with line_to_here(run.folder("line"), delay / 1000) as (rsh, counts):
        tools = {
            "vellum": [vellum, "sync", "-a", "-e", rsh, "--remote-program", vellum],
            "rsync": ["rsync", "-a", "-e", rsh],
            "rsync -z": ["rsync", "-az", "-e", rsh],
            ALONE: [rsh, "here", "true"],
        }
        title = f"Over ssh, {delay:g} ms there and back"
        run.start(list(tools), floors=[ALONE], title=title, filesystem="", versions=[vellum, "rsync"])
        for row in run.list_option("rows"):
            fill(run.work, row)
            for _ in run.rounds():
                measure_round(run, row, tools, counts)
            for folder in ("source", "old"):
                host.remove(run.work / folder)


CASE = Case(
    "sync_remote",
    "Over ssh",
    measure,
    options=(
        Option("delay", 50.0, "there and back, milliseconds"),
        Option("rows", ",".join(ROWS), "what is copied"),
    ),
    rounds=3,
    short=("--rounds 1 --rows changed",),
)
