"""Gateways: what programs get that read a snapshot over S3, WebDAV or NFS, beside a mount of the same snapshot.

A tree with one large file, files of 4 KiB, and a directory of very many small ones; one snapshot of it; a view of that
snapshot and a gateway for each protocol. In turns: the large file is read (`curl`, and `dd` in the view), the directory is
listed with all pages (S3: ListObjectsV2 signed; WebDAV: PROPFIND of depth 1; NFS: READDIRPLUS; the view: `find -printf` with sizes
and times), and files of 4 KiB are got by 64 clients at once (S3 and WebDAV: http.c, each client has one connection). At last 1,000
clients ask at once: everything but an answer and 503 is an error. The clients of NFS are `nfs-cat`, which has one request of 1 MiB
under way, and `nfs-ls`, which asks for 8 KiB of a listing at once (libnfs). The caches of the processes are warm: everything was asked for
once before; what the kernel keeps of the view is passed by (O_DIRECT), so that the view has to answer, too. A request to S3 is
signed once and sent again and again, which its server allows for 15 minutes.
"""

import base64
import contextlib
import datetime
import hashlib
import hmac
import http.client
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from benchkit import host
from benchkit.runner import Case, Option, Run, progress

VIEW = "view"
LARGE, SMALL = "large", "small/0"
# Bytes of a file that many clients ask for, and how many clients do.
SMALL_SIZE, CLIENTS, CROWD = 4096, 64, 1000
# Longest that a gateway may take to be ready, and to end, seconds.
PATIENCE = 60


class Gateway:
    """A gateway that runs until its `with` block ends."""

    name = ""
    # Whether http.c is a client of it.
    speaks_http = True

    def __init__(self, volume: Path):
        words = [host.vellum(), "-C", volume, "--json", "serve", self.name, "@HEAD"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen([str(word) for word in words], text=True, **pipes)
        line = self.process.stdout.readline()
        if not line:
            raise host.CommandFailed(f"serve {self.name}: {self.process.communicate()[1]}")
        self.ready = json.loads(line)
        self.pid, self.port = self.ready["pid"], int(re.search(r":(\d+)/$", self.ready["address"]).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=PATIENCE)
        self.process.kill()
        self.process.communicate()

    def headers(self, method: str, path: str, query="") -> dict:
        """Those with which a request is let in."""
        raise NotImplementedError

    def address(self, path: str) -> str:
        """The path of a file of the tree, in its own words."""
        return "/" + quote(path)

    def fetch(self, path: str):
        """Reads a file, and throws it away."""
        address = self.address(path)
        headers = [word for each in self.headers("GET", address).items() for word in ("-H", "%s: %s" % each)]
        host.run("curl", "-sSf", "-o", "/dev/null", *headers, f"http://127.0.0.1:{self.port}{address}")

    def ask_by_many(self, run: Run, clients: int) -> dict:
        """What clients were answered who ask for one file at once, again and again."""
        address, head = self.address(SMALL), run.work / f"head-{self.name}"
        lines = [f"GET {address} HTTP/1.1", *("%s: %s" % each for each in self.headers("GET", address).items())]
        head.write_text("\r\n".join(lines) + "\r\n\r\n")
        return json.loads(host.run(run.work / "http", self.port, clients, run.options.seconds, head))

    def connect(self) -> http.client.HTTPConnection:
        """A connection for requests one after another."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE * 10)


class Webdav(Gateway):
    """WebDAV, with a name and a password in each request."""

    name = "webdav"

    def headers(self, method, path, query=""):
        user = f"{self.ready['name']}:{self.ready['password']}"
        return {"Host": f"127.0.0.1:{self.port}", "Authorization": "Basic " + base64.b64encode(user.encode()).decode()}

    def list(self, directory: str) -> int:
        """How many entries a directory has."""
        connection = self.connect()
        connection.request("PROPFIND", self.address(directory) + "/", headers=self.headers("PROPFIND", "") | {"Depth": "1"})
        answer, count, rest = connection.getresponse(), 0, b""
        if answer.status != 207:
            raise host.CommandFailed(f"PROPFIND: {answer.status}")
        while piece := answer.read(1 << 20):
            # A tag may be cut in two by the end of a piece.
            whole = rest + piece
            count += whole.count(b"<D:response>")
            rest = whole[-11:]
        # The directory itself is the first one.
        return count - 1


class S3(Gateway):
    """S3, signed by version 4."""

    name = "s3"

    def address(self, path):
        return f"/{self.ready['bucket']}/{quote(path)}"

    def headers(self, method, path, query=""):
        now = datetime.datetime.now(datetime.timezone.utc)
        day, moment, nothing = f"{now:%Y%m%d}", f"{now:%Y%m%dT%H%M%SZ}", hashlib.sha256(b"").hexdigest()
        own = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": nothing, "x-amz-date": moment}
        signed = ";".join(own)
        asked = "\n".join([method, path, query, *("%s:%s" % each for each in own.items()), "", signed, nothing])
        scope = f"{day}/us-east-1/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(asked.encode()).hexdigest()])
        key = f"AWS4{self.ready['password']}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        who = f"AWS4-HMAC-SHA256 Credential={self.ready['name']}/{scope}, SignedHeaders={signed}, Signature={signature}"
        return own | {"Authorization": who}

    def list(self, directory: str) -> int:
        """How many keys a directory has, page by page."""
        connection, count, token = self.connect(), 0, ""
        path = f"/{self.ready['bucket']}"
        while True:
            # In the order of their names, as they are signed.
            fields = {"continuation-token": token, "list-type": "2", "prefix": f"{directory}/"}
            query = "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items() if value)
            connection.request("GET", f"{path}?{query}", headers=self.headers("GET", path, query))
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise host.CommandFailed(f"ListObjectsV2: {answer.status} {text[:500]!r}")
            count += text.count(b"<Key>")
            found = re.search(rb"<NextContinuationToken>(.*?)<", text)
            if not found:
                return count
            token = found.group(1).decode()


class Nfs(Gateway):
    """NFS, by the programs of libnfs."""

    name = "nfs"
    speaks_http = False

    def read(self, program: str, path: str, output):
        """Runs a program that reads a path."""
        # libnfs mounts nothing for a file of the root unless a second slash stands for it.
        address = f"nfs://127.0.0.1//{quote(path)}?version=3&nfsport={self.port}&mountport={self.port}"
        done = subprocess.run([program, address], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE)
        if done.returncode:
            raise host.CommandFailed(f"{program}: {done.stderr.decode(errors='replace')}")
        return done.stdout

    def fetch(self, path):
        self.read("nfs-cat", path, subprocess.DEVNULL)

    def list(self, directory: str) -> int:
        """How many entries a directory has."""
        return self.read("nfs-ls", directory, subprocess.PIPE).count(b"\n")


GATEWAYS = {"s3": S3, "webdav": Webdav, "nfs": Nfs}


def make_volume(run: Run) -> Path:
    """A volume with one snapshot of the tree."""
    volume, block = run.folder("volume"), 1 << 20
    host.vellum_in(volume, "init", "-q")
    with open(volume / LARGE, "wb") as file:
        for _ in range(run.options.mib):
            file.write(os.urandom(block))
    for folder, count, size in [("small", 1, SMALL_SIZE), ("many", run.options.entries, 1)]:
        (volume / folder).mkdir()
        for number in range(count):
            (volume / folder / f"{number}").write_bytes(b"x" * size)
    host.vellum_in(volume, "snapshot", "-q")
    return volume


def seconds_of(action) -> float:
    """How long something takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def check_count(found: int, expected: int, what: str):
    """A listing that is not whole is no figure."""
    if found != expected:
        raise host.CommandFailed(f"{what}: {found} of {expected} entries")


def measure_side(run: Run, name: str, gateway: Gateway | None, view: Path):
    """One side: a gateway, or the view."""
    large, many = f"read {run.options.mib} MiB", f"list {run.options.entries:,} entries"
    if gateway is None:
        run.add(large, name, seconds_of(lambda: host.run("dd", f"if={view / LARGE}", "of=/dev/null", "bs=1M", "iflag=direct")))
        run.add(many, name, seconds_of(lambda: host.run("find", view / "many", "-printf", "%s %T@\n")))
        return
    with run.guard(large, name):
        run.add(large, name, seconds_of(lambda: gateway.fetch(LARGE)))
    with run.guard(many, name):
        listing = lambda: check_count(gateway.list("many"), run.options.entries, name)  # noqa: E731
        run.add(many, name, seconds_of(listing))


def measure_many(run: Run, gateway: Gateway, clients: int):
    """Many clients at once."""
    row = f"4 KiB, {clients:,} clients at once"
    with run.guard(row, gateway.name):
        found = gateway.ask_by_many(run, clients)
        errors = {status: count for status, count in found["statuses"].items() if status not in ("200", "503")}
        if errors or found["broken"]:
            raise host.CommandFailed(f"{gateway.name}: {errors or found['broken']} errors")
        answered = found["statuses"].get("200", 0) / found["seconds"]
        run.add(row, gateway.name, answered, quantity="rate", unit="per second", better="more")
        run.add(row, gateway.name, found["p99"], quantity="time, 99 in 100")
        run.add(row, gateway.name, found["statuses"].get("503", 0), quantity="answered by 503", unit="count")


def measure(run: Run):
    """All of it in turns."""
    wanted = run.list_option("protocols")
    run.start([VIEW, *wanted], ours=wanted[0], floors=[VIEW], cache="ours is warm, the kernel's is passed by", versions=[host.vellum()])
    host.compile_program("http.c", run.work)
    volume, view = make_volume(run), run.folder("mount")
    host.vellum_in(volume, "view", "-q", "HEAD", view)
    try:
        with contextlib.ExitStack() as stack:
            sides = {name: stack.enter_context(GATEWAYS[name](volume)) for name in wanted}
            http = {name: gateway for name, gateway in sides.items() if gateway.speaks_http}
            for name, gateway in sides.items():
                progress(f"{name} is ready")
                run.add("ready", name, host.memory(gateway.pid, "VmRSS"), quantity="memory", unit="bytes")
                gateway.fetch(LARGE)
            host.run("cat", view / LARGE)
            for _ in run.rounds():
                for name in run.turns([VIEW, *sides]):
                    measure_side(run, name, sides.get(name), view)
                for name in run.turns(http):
                    measure_many(run, http[name], CLIENTS)
                run.keep()
            for name, gateway in sides.items():
                run.add("listings and reads", name, host.memory(gateway.pid, "VmHWM"), quantity="peak memory", unit="bytes")
            for _ in run.rounds():
                for name in run.turns(http):
                    measure_many(run, http[name], CROWD)
            for name, gateway in http.items():
                run.add("1,000 clients at once", name, host.memory(gateway.pid, "VmHWM"), quantity="peak memory", unit="bytes")
    finally:
        host.run(host.vellum(), "umount", "-q", view)


CASE = Case(
    "gateways",
    "Gateways beside a mount",
    measure,
    options=(
        Option("protocols", "s3,webdav,nfs", "which of them"),
        Option("mib", 1024, "size of the large file, MiB"),
        Option("entries", 100_000, "of the directory that is listed"),
        Option("seconds", 5, "that many clients ask for"),
    ),
    rounds=5,
    short=("--rounds 1 --mib 64 --entries 2500 --seconds 1",),
)
