#!/usr/bin/env python3
"""Vellum and its rivals on an object service, in turns: remote_store.py [--delays MS,MS] [--rounds N] [--json FILE].

The service is SeaweedFS on this machine ('make tools' installs it), which counts the requests; a delay is put on each way
of every connection by a proxy of this script. Each program starts with an empty cache of its own for what reads.

| row | Vellum | restic | rclone |
|---|---|---|---|
| set up | init --store s3:// | init | – |
| first snapshot | snapshot | backup | copy --transfers 16 |
| one file changed | snapshot | backup | – |
| names | init (attach), ls -R | ls, empty cache | lsf -R |
| restore | clone | restore, empty cache | copy --transfers 16 |
| push | push to a second store on the service | copy to a second repository | – |
| push of one more snapshot | push | copy | – |
| N, up; down | push of a snapshot with a file of that size; clone | – | copyto |
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import contest
import record
import report
import trees

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("VELLUM_BENCH_CACHE", os.path.expanduser("~/.cache/vellum-bench")))
BUCKET = "vellum-bench"
USER, SECRET = "vellum", "vellum-secret"
PASSWORD = "correct horse battery staple"
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "100 MiB": 100 << 20, "1 GiB": 1 << 30}


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
    """A SeaweedFS server that counts requests."""

    def __init__(self, root: Path):
        self.weed = os.environ.get("VELLUM_WEED") or str(HERE.parent.parent / "target/tools/seaweedfs/bin/weed")
        if not Path(self.weed).exists():
            sys.exit(f"{self.weed} does not exist: run 'make tools'")
        root.mkdir(parents=True)
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": USER, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (root / "s3.json").write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, self.port, self.metrics = free_ports(5)
        command = [self.weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-dir={root}"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-volume.max=100"]
        command += ["-master.volumeSizeLimitMB=512", f"-s3.config={root}/s3.json", f"-metricsPort={self.metrics}"]
        for name, port in (("master", master), ("volume", volume), ("filer", filer), ("s3", self.port)):
            command += [f"-{name}.port={port}", f"-{name}.port.grpc={port + 4}"]
        with open(root / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        shell = [self.weed, "shell", f"-master=127.0.0.1:{master}.{master + 4}", f"-filer=127.0.0.1:{filer}.{filer + 4}"]
        end = time.monotonic() + 60
        while True:
            said = subprocess.run(shell, input=f"s3.bucket.create -name {BUCKET}\n", capture_output=True, text=True)
            if "created bucket" in said.stdout:
                return
            if time.monotonic() > end:
                sys.exit(f"the server does not start: {said.stdout}{said.stderr}")
            time.sleep(0.3)

    def requests(self) -> int:
        """Requests until now."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics").read().decode()
        found = re.findall(r"^SeaweedFS_s3_request_total\{[^}]*\} (\S+)", text, re.M)
        return round(sum(map(float, found)))

    def stop(self):
        """Ends it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def pump(reader, writer, delay):
    """Passes on, each piece after the delay, without holding up the next."""
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
    try:
        while piece := await reader.read(1 << 18):
            pieces.put_nowait((time.monotonic() + delay, piece))
    except ConnectionError:
        pass
    pieces.put_nowait((time.monotonic() + delay, b""))
    try:
        await task
    except ConnectionError:
        pass
    writer.close()


def serve_line(port: int, target: int, delay: float):
    """A line to the target with the delay on each way."""

    async def connect(reader, writer):
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, there_writer, delay), pump(there_reader, writer, delay))

    async def main():
        server = await asyncio.start_server(connect, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(main())


class Bench:
    """The programs, a service, and a line to it."""

    def __init__(self, root: Path, vellum: str, service: Service, port: int):
        self.root, self.vellum, self.service, self.port = root, vellum, service, port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.env = dict(
            os.environ,
            HOME=str(root / "home"),
            XDG_CACHE_HOME=str(root / "cache"),
            XDG_CONFIG_HOME=str(root / "config"),
            XDG_STATE_HOME=str(root / "state"),
            AWS_ACCESS_KEY_ID=USER,
            AWS_SECRET_ACCESS_KEY=SECRET,
            AWS_REGION="us-east-1",
            RESTIC_PASSWORD=PASSWORD,
            RESTIC_FROM_PASSWORD=PASSWORD,
        )
        # rclone's own transport takes no file of certificates.
        self.env.pop("AWS_CA_BUNDLE", None)
        for folder in ("home", "cache", "config", "state"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "secret").write_text(PASSWORD + "\n")
        self.folder = 0

    def run(self, *argv, cwd=None) -> tuple:
        """Seconds and requests."""
        before = self.service.requests()
        start = time.perf_counter()
        done = subprocess.run(list(map(str, argv)), cwd=cwd, env=self.env, capture_output=True)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr.decode()[-2000:]}")
        return seconds, self.service.requests() - before

    def several(self, *commands) -> tuple:
        """Several commands as one."""
        costs = [self.run(*argv, cwd=cwd) for argv, cwd in commands]
        return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)

    def new_folder(self) -> str:
        """A folder of the bucket that nothing is in."""
        self.folder += 1
        return f"f{self.port}-{self.folder}"

    def drop_caches(self):
        """Whatever a program kept for itself."""
        shutil.rmtree(self.root / "cache", ignore_errors=True)
        (self.root / "cache").mkdir()

    def store(self, folder: str) -> str:
        """The address of a folder for Vellum."""
        return f"s3://{BUCKET}/{folder}?endpoint={self.endpoint}"

    def rclone(self, folder: str) -> str:
        """The same for rclone."""
        return f':s3,provider=Other,env_auth=true,region=us-east-1,endpoint="{self.endpoint}":{BUCKET}/{folder}'


def copied(tree: Path, to: Path) -> Path:
    """A copy of a tree that may be changed."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", tree, to], check=True)
    return to


def change(tree: Path, number: int):
    """One file is another."""
    (tree / "changed-by-the-bench").write_bytes(random.Random(number).randbytes(5000))


class VellumSide:
    """The rows for Vellum."""

    name = "vellum"

    def __init__(self, bench: Bench, tree: Path):
        self.bench, self.vellum = bench, bench.vellum
        self.work = copied(tree, bench.root / "vellum-tree")
        self.folder, self.other = bench.new_folder(), bench.new_folder()
        self.secret = ["--passphrase-file", bench.root / "secret"]

    def rows(self):
        """What each row costs, in their order."""
        bench, vellum, work = self.bench, self.vellum, self.work
        store = bench.store(self.folder)
        yield "set up", bench.run(vellum, "init", work, "--store", store, *self.secret)
        yield "first snapshot", bench.run(vellum, "snapshot", cwd=work)
        change(work, 1)
        yield "one file changed", bench.run(vellum, "snapshot", cwd=work)
        bench.drop_caches()
        new = bench.root / "vellum-names"
        shutil.rmtree(new, ignore_errors=True)
        yield "names", bench.several(
            ((vellum, "init", new, "--store", store, *self.secret), None),
            ((vellum, "ls", work.name, "-R"), new),
        )
        bench.drop_caches()
        new = bench.root / "vellum-restored"
        shutil.rmtree(new, ignore_errors=True)
        yield "restore", bench.run(vellum, "clone", store, new, "--from", work.name, *self.secret)
        subprocess.run(["diff", "-r", "--exclude=.vellum", work, new], check=True)
        shutil.rmtree(new)
        bench.run(vellum, "remote", "add", "origin", bench.store(self.other), cwd=work)
        yield "push", bench.run(vellum, "push", cwd=work)
        change(work, 2)
        bench.run(vellum, "snapshot", cwd=work)
        yield "push of one more snapshot", bench.run(vellum, "push", cwd=work)


class ResticSide:
    """The rows for restic."""

    name = "restic"

    def __init__(self, bench: Bench, tree: Path):
        self.bench = bench
        self.work = copied(tree, bench.root / "restic-tree")
        self.repo = f"s3:{bench.endpoint}/{BUCKET}/{bench.new_folder()}"
        self.other = f"s3:{bench.endpoint}/{BUCKET}/{bench.new_folder()}"

    def rows(self):
        """What each row costs, in their order."""
        bench = self.bench
        restic = ["restic", "-r", self.repo]
        yield "set up", bench.run(*restic, "init")
        yield "first snapshot", bench.run(*restic, "backup", ".", cwd=self.work)
        change(self.work, 1)
        yield "one file changed", bench.run(*restic, "backup", ".", cwd=self.work)
        bench.drop_caches()
        yield "names", bench.run(*restic, "ls", "-l", "latest")
        bench.drop_caches()
        out = bench.root / "restic-restored"
        shutil.rmtree(out, ignore_errors=True)
        yield "restore", bench.run(*restic, "restore", "latest", "--target", out)
        shutil.rmtree(out)
        bench.run("restic", "-r", self.other, "init")
        copy = ["restic", "-r", self.other, "copy", "--from-repo", self.repo]
        yield "push", bench.run(*copy)
        change(self.work, 2)
        bench.run(*restic, "backup", ".", cwd=self.work)
        yield "push of one more snapshot", bench.run(*copy)


class RcloneSide:
    """The rows for rclone: files as objects."""

    name = "rclone"

    def __init__(self, bench: Bench, tree: Path):
        self.bench, self.tree = bench, tree
        self.there = bench.rclone(bench.new_folder())

    def rows(self):
        """What each row costs, in their order."""
        bench = self.bench
        rclone = ["rclone", "--config", "/dev/null", "--transfers", "16"]
        yield "first snapshot", bench.run(*rclone, "copy", self.tree, self.there)
        yield "names", bench.run(*rclone, "lsf", "-R", self.there)
        out = bench.root / "rclone-restored"
        shutil.rmtree(out, ignore_errors=True)
        yield "restore", bench.run(*rclone, "copy", self.there, out)
        shutil.rmtree(out)


def measure_files(bench: Bench, whole, group: str, number: int, sizes: list):
    """Single files to the service and back."""
    for size in sizes:
        content = bench.root / "content"
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        with open(content / "file", "wb") as file:
            left, rng = SIZES[size], random.Random(number)
            while left:
                piece = min(left, 16 << 20)
                file.write(rng.randbytes(piece))
                left -= piece
        for tool in contest.order(["vellum", "rclone"], number):
            if tool == "vellum":
                work, back = bench.root / "file-tree", bench.root / "file-back"
                for folder in (work, back):
                    shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(content, work)
                bench.run(bench.vellum, "init", work, "--passphrase-file", bench.root / "secret")
                bench.run(bench.vellum, "snapshot", cwd=work)
                hub = bench.store(bench.new_folder())
                bench.run(bench.vellum, "remote", "add", "origin", hub, cwd=work)
                up = bench.run(bench.vellum, "push", cwd=work)
                # Another machine: the same volume, without these snapshots.
                bench.drop_caches()
                down = bench.run(bench.vellum, "clone", hub, back, "--passphrase-file", bench.root / "secret")
                subprocess.run(["cmp", work / "file", back / "file"], check=True)
                shutil.rmtree(work)
                shutil.rmtree(back)
            else:
                there, back = bench.rclone(bench.new_folder()), bench.root / "file-back"
                rclone = ["rclone", "--config", "/dev/null"]
                up = bench.run(*rclone, "copyto", content / "file", f"{there}/file")
                down = bench.run(*rclone, "copyto", f"{there}/file", back)
                back.unlink()
            for name, (seconds, requests) in (("up", up), ("down", down)):
                row = f"{size}, {name}"
                whole.add(row, tool, seconds, group=group, number=number)
                whole.add(row, tool, requests, group=group, quantity="requests", unit="count", number=number)
        shutil.rmtree(content)


def main():
    """Runs all in turns, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delays", default="0,30", help="there and back, milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tree", default="goroot", help=f"of {', '.join(trees.TREES)}")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of single files")
    parser.add_argument("--work", type=Path, help="on the disk to be measured")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    vellum = os.environ.get("VELLUM") or shutil.which("vellum")
    if not vellum:
        sys.exit("vellum is needed: set VELLUM")
    vellum = str(Path(vellum).resolve())
    sides = [side for side in (VellumSide, ResticSide, RcloneSide) if side is VellumSide or shutil.which(side.name)]
    tree = trees.ensure(arguments.tree, CACHE / "trees")
    whole = record.Record(
        "remote_store",
        "Stores on an object service",
        columns=[side.name for side in sides],
        setting={
            "service": "SeaweedFS on the same machine",
            "versions": ", ".join(filter(None, (record.version(p) for p in (vellum, "restic", "rclone")))),
            "tree": arguments.tree,
        },
    )
    with tempfile.TemporaryDirectory(dir=arguments.work) as temp:
        root = Path(temp)
        for delay in map(float, arguments.delays.split(",")):
            group = f"{delay:g} ms for each request" if delay else "no delay"
            for number in range(arguments.rounds):
                service = Service(root / "service")
                (port,) = free_ports(1)
                line = multiprocessing.Process(target=serve_line, args=(port, service.port, delay / 2000), daemon=True)
                line.start()
                try:
                    bench = Bench(root / "bench", vellum, service, port if delay else service.port)
                    time.sleep(0.5)
                    for side in contest.order(sides, number):
                        try:
                            for row, (seconds, requests) in side(bench, tree).rows():
                                print(f"{group}, {row}: {side.name} {seconds:.2f} s, {requests} requests", flush=True)
                                whole.add(row, side.name, seconds, group=group, number=number)
                                whole.add(
                                    row, side.name, requests, group=group, quantity="requests", unit="count", number=number
                                )
                        except RuntimeError as error:
                            whole.leave_out(group, side.name, error)
                    measure_files(bench, whole, group, number, [size for size in arguments.sizes.split(",") if size])
                finally:
                    line.terminate()
                    service.stop()
                    shutil.rmtree(root / "bench", ignore_errors=True)
                    shutil.rmtree(root / "service", ignore_errors=True)
    whole.keep(arguments.json)
    print(report.printed(whole.whole()))


if __name__ == "__main__":
    main()
