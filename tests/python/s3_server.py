"""A real server with the protocol of S3: SeaweedFS, which `make tools` installs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import List

ACCESS_KEY = "vellum-test"
SECRET_KEY = "vellum-test-secret"
BUCKET = "vellum-test"
# It consists of four servers, and the machine may be busy.
START_MAX = 120


def _find_program() -> str:
    program = os.environ.get("VELLUM_WEED") or f"{os.environ.get('TOOLS', '')}/seaweedfs/bin/weed"
    if not Path(program).exists():
        raise FileNotFoundError(f"{program} does not exist: run 'make tools'")
    return program


def _find_ports(count: int) -> List[int]:
    """Ports that are free, and so are those four above them, for gRPC. Below those of outgoing connections, which could take
    one before its server does."""
    found: List[int] = []
    candidate = 10_000 + os.getpid() * 611 % 2_000 * 8
    while len(found) < count:
        candidate += 8
        try:
            for port in (candidate, candidate + 4):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", port))
        except OSError:
            continue
        found.append(candidate)
    return found


class S3Server:
    """A server with one bucket."""

    def __init__(self, directory: Path):
        self.program = _find_program()
        self.log = directory / "log"
        (directory / "data").mkdir(parents=True)
        credentials = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = {"identities": [{"name": "test", "credentials": [credentials], "actions": actions}]}
        (directory / "s3.json").write_text(json.dumps(identities))
        ports = _find_ports(4)
        self.port = ports[3]
        command = [self.program, "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
        # Without further servers, which would take fixed ports.
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        command += ["-volume.max=50", "-master.volumeSizeLimitMB=128"]
        command += [f"-dir={directory}/data", f"-s3.config={directory}/s3.json"]
        for name, port in zip(("master", "volume", "filer", "s3"), ports):
            command += [f"-{name}.port={port}", f"-{name}.port.grpc={port + 4}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        try:
            self._wait()
            self._create_bucket(ports)
        except BaseException:
            self.stop()
            raise

    def store(self, folder: str, bucket: str = BUCKET) -> str:
        """The address of a store."""
        return f"s3://{bucket}/{folder}?endpoint=http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Ends it, with all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _check_time(self, begun: float) -> None:
        if self.process.poll() is not None or time.monotonic() - begun > START_MAX:
            raise RuntimeError(f"the server did not start: {self.log.read_text()[-4000:]}")
        time.sleep(0.1)

    def _wait(self) -> None:
        begun = time.monotonic()
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                self._check_time(begun)

    def _create_bucket(self, ports: List[int]) -> None:
        begun = time.monotonic()
        master, _, filer, _ = ports
        shell = [self.program, "shell", f"-master=127.0.0.1:{master}.{master + 4}"]
        shell.append(f"-filer=127.0.0.1:{filer}.{filer + 4}")
        while True:
            # Commands may fail until the four servers have found each other.
            made = subprocess.run(shell, input=f"s3.bucket.create -name {BUCKET}\n", capture_output=True, text=True)
            if "created bucket" in made.stdout:
                return
            self._check_time(begun)
