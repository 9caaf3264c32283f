#!/usr/bin/env python3
"""Vellum and rsync over ssh, in turns: sync_remote.py [--delay MS] [--rounds N] [--rows ...] [--json FILE].

The other host is this one, through a real ssh and sshd, with half of the delay put on each way (delay.py, since
not every kernel has netem). Bytes are those of the encrypted connection, both ways. rsync runs as it is, and with -z,
since Vellum compresses what it sends unless told not to. "ssh alone" is a command that does nothing on the other host:
what no tool can do without.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import contest
import record
import report

HERE = Path(__file__).resolve().parent
ROWS = ["small", "changed", "same"]
SSHD = next((p for p in ("/usr/sbin/sshd", "/usr/bin/sshd") if os.path.exists(p)), None)


class Line:
    """A way to this host."""

    def __init__(self, root: Path, delay: float):
        self.counts = root / "counts"
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / key], check=True)
        shutil.copy(root / "user.pub", root / "authorized")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        (root / "config").write_text(
            f"HostKey {root}/host\nAuthorizedKeysFile {root}/authorized\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nPidFile none\n"
        )
        proxy = f"{sys.executable} {HERE}/delay.py {delay / 2} {self.counts} {SSHD} -i -f {root}/config -E {root}/log"
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
        start = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - start
        end = time.monotonic() + 10
        while not self.counts.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return seconds, int(self.counts.read_text()) if self.counts.exists() else None


def fill(source: Path, row: str):
    """What is at the source."""
    rng = random.Random(4)
    source.mkdir()
    if row == "changed":
        (source / "file").write_bytes(rng.randbytes(100 << 20))
        return
    for number in range(10_000):
        folder = source / f"d{number % 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_bytes(rng.randbytes(rng.randint(1000, 10_000)))


def change(source: Path):
    """1 MB in the middle of the file is another."""
    with open(source / "file", "r+b") as file:
        file.seek(50 << 20)
        file.write(random.Random(5).randbytes(1 << 20))


def main():
    """Runs both in turns, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay", type=float, default=50, help="there and back, milliseconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    vellum = os.environ.get("VELLUM") or shutil.which("vellum")
    if not vellum or not SSHD:
        sys.exit("vellum and sshd are needed: set VELLUM, install openssh-server")
    whole = record.Record(
        "sync_remote",
        f"Over ssh, {arguments.delay:g} ms there and back",
        columns=["vellum", "rsync", "rsync -z", "ssh alone"],
        floors=["ssh alone"],
        setting={"versions": f"{record.version(vellum)}, {record.version('rsync')}"},
    )
    with tempfile.TemporaryDirectory() as temp:
        root = Path(temp)
        line = Line(root, arguments.delay / 1000)
        tools = {
            "vellum": [vellum, "sync", "-a", "-e", str(line.rsh), "--remote-program", vellum],
            "rsync": ["rsync", "-a", "-e", str(line.rsh)],
            "rsync -z": ["rsync", "-az", "-e", str(line.rsh)],
            "ssh alone": [str(line.rsh), "here", "true"],
        }
        for row in arguments.rows.split(","):
            source, old = root / "source", root / "old"
            fill(source, row)
            if row == "changed":
                subprocess.run(["cp", "-a", source, old], check=True)
                # rsync does not see an edit of the same second and size.
                os.utime(old / "file", (1_700_000_000, 1_700_000_000))
                change(source)
            for number in range(arguments.rounds):
                for way in ("to the host", "from the host"):
                    for tool in contest.order(list(tools), number):
                        there = root / "there"
                        if row == "same":
                            subprocess.run(["cp", "-a", source, there], check=True)
                        elif row == "changed":
                            subprocess.run(["cp", "-a", old, there], check=True)
                        ends = [f"{source}/", f"here:{there}/"] if way == "to the host" else [f"here:{source}/", f"{there}/"]
                        alone = tool == "ssh alone"
                        seconds, sent = line.run(tools[tool] if alone else [*tools[tool], *ends])
                        if not alone:
                            subprocess.run(["diff", "-r", source, there], check=True)
                        whole.add(row, tool, seconds, group=way, number=number)
                        if sent is not None:
                            whole.add(row, tool, sent, group=way, quantity="on the line", unit="bytes", number=number)
                        shutil.rmtree(there, ignore_errors=alone)
            shutil.rmtree(source)
            shutil.rmtree(old, ignore_errors=True)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
