"""An object service on this machine that counts, and a line to a port that delays.

The service is SeaweedFS (`make tools` installs it); not every kernel has netem, so the line is a program. Invariant:
whatever happens, both are ended with the process that started them.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchkit import host

BUCKET = "vellum-bench"
USER, SECRET = "vellum", "vellum-secret"
# What the service counts, and how it is called here.
COUNTED = re.compile(r'^SeaweedFS_s3_(request_total|bucket_traffic_(?:received|sent)_bytes_total)\{([^}]*)\} (\S+)', re.M)
# An identity without a name is that of requests without a signature: raw reads need none.
IDENTITIES = [
    {
        "name": "bench",
        "credentials": [{"accessKey": USER, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    },
    {"name": "anonymous", "actions": ["Read"]},
]


@dataclass
class Traffic:
    """Requests by kind, and bytes to and from the service."""

    requests: Counter = field(default_factory=Counter)
    sent: int = 0
    received: int = 0

    def since(self, before: "Traffic") -> "Traffic":
        """What came since then."""
        counts = Counter({kind: count - before.requests[kind] for kind, count in self.requests.items()})
        return Traffic(+counts, self.sent - before.sent, self.received - before.received)

    def total(self) -> int:
        """Requests of all kinds."""
        return sum(self.requests.values())


def free_ports(count: int) -> list:
    """Ports that nobody listens on, and whose second ports, 4 above, are free, too."""
    found = []
    while len(found) < count:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        if all(abs(port - other) > 8 for other in found):
            found.append(port)
    return found


class Service:
    """A SeaweedFS server with one bucket."""

    def __init__(self, root: Path):
        self.weed = os.environ.get("VELLUM_WEED") or str(host.ROOT / "target/tools/seaweedfs/bin/weed")
        if not Path(self.weed).exists():
            raise host.CommandFailed(f"{self.weed} does not exist: run 'make tools'")
        root.mkdir(parents=True)
        (root / "s3.json").write_text(json.dumps({"identities": IDENTITIES}))
        master, volume, filer, self.port, self.metrics = free_ports(5)
        command = [self.weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-dir={root}"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-volume.max=100"]
        command += ["-master.volumeSizeLimitMB=512", f"-s3.config={root}/s3.json", f"-metricsPort={self.metrics}"]
        for name, port in (("master", master), ("volume", volume), ("filer", filer), ("s3", self.port)):
            command += [f"-{name}.port={port}", f"-{name}.port.grpc={port + 4}"]
        with open(root / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        shell = [self.weed, "shell", f"-master=127.0.0.1:{master}.{master + 4}", f"-filer=127.0.0.1:{filer}.{filer + 4}"]
        try:
            host.wait_until(lambda: self.has_bucket(shell) and is_open(self.port), "the service starts")
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def has_bucket(shell) -> bool:
        """Creates the bucket, if the service is ready and has none."""
        commands = f"s3.bucket.create -name {BUCKET}\ns3.bucket.list\n"
        said = subprocess.run(shell, input=commands, capture_output=True, text=True)
        return f"  {BUCKET}\t" in said.stdout

    def traffic(self) -> Traffic:
        """Requests and bytes until now."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics").read().decode()
        found = Traffic()
        for name, labels, value in COUNTED.findall(text):
            if name == "request_total":
                found.requests[re.search(r'type="([^"]*)"', labels)[1]] += round(float(value))
            elif "received" in name:
                # The service received what the program sent.
                found.sent += round(float(value))
            else:
                found.received += round(float(value))
        return found

    def stop(self):
        """Ends it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def pump(reader, writer, delay, counts):
    """Passes on, each piece after the delay, without holding up the next, and counts its bytes."""
    pieces = asyncio.Queue()

    async def write():
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0, due - time.monotonic()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()

    task = asyncio.create_task(write())
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 18):
            counts[0] += len(piece)
            pieces.put_nowait((time.monotonic() + delay, piece))
    pieces.put_nowait((time.monotonic() + delay, b""))
    with contextlib.suppress(ConnectionError):
        await task
    writer.close()


def serve_line(port: int, target: int, delay: float, counts, listen="127.0.0.1", to="127.0.0.1"):
    """A line to the target with the delay on each way. `counts`: bytes of both ways, and open connections."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    async def connect(reader, writer):
        counts[1] += 1
        there_reader, there_writer = await asyncio.open_connection(to, target)
        await asyncio.gather(pump(reader, there_writer, delay, counts), pump(there_reader, writer, delay, counts))
        counts[1] -= 1

    async def main():
        server = await asyncio.start_server(connect, listen, port)
        await server.serve_forever()

    asyncio.run(main())


@contextlib.contextmanager
def line(target: int, delay: float):
    """A port that leads to another with a delay in seconds there and back, and what the line counts."""
    (port,), counts = free_ports(1), multiprocessing.RawArray("q", 2)
    process = multiprocessing.Process(target=serve_line, args=(port, target, delay / 2, counts), daemon=True)
    process.start()
    try:
        host.wait_until(lambda: is_open(port), "the line is there", 20)
        yield port, counts
    finally:
        process.terminate()
        process.join()


def is_open(port: int, address="127.0.0.1") -> bool:
    """Whether somebody listens."""
    with socket.socket() as one:
        return one.connect_ex((address, port)) == 0
