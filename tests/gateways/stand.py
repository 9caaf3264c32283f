"""A volume with a snapshot and a live worktree, and gateways to them."""

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

VELLUM = os.environ["VELLUM"]
NAMES = ["<script>alert(1)<", '"onload="x', "line\nfeed", "tab\tand \x01 control", "a b&c=d#e?f%41", "ü ‮ rtl", "back\\slash", "n" * 255]


class Answer:
    """An answer of HTTP."""

    def __init__(self, data):
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if self.headers.get("transfer-encoding") == "chunked":
            self.body, self.is_whole = join_chunks(self.body)
        else:
            self.is_whole = len(self.body) == int(self.headers.get("content-length", 0))


def join_chunks(data):
    """The content of a chunked body, and whether its end was there."""
    content = b""
    while True:
        line, found, rest = data.partition(b"\r\n")
        size = int(line, 16) if found else 0
        if size == 0:
            return content, bool(found)
        content += rest[:size]
        data = rest[size + 2 :]


class Gateway:
    """A gateway that runs until it is stopped."""

    def __init__(self, volume, words):
        self.process = subprocess.Popen(
            [VELLUM, "--json", "serve", *words],
            cwd=volume.data, env=volume.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.communicate()[1])
        self.ready = json.loads(line)
        self.port = int(re.search(r":(\d+)/$", self.ready["address"]).group(1))
        self.user = f"{self.ready.get('name')}:{self.ready.get('password')}"

    def stop(self):
        """Ends it as a person does, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode

    def peak_memory(self):
        """The most memory that it has had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) << 10

    def basic(self, user=None):
        return "Basic " + base64.b64encode((user or self.user).encode()).decode()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def head(self, method, path, headers, user=None):
        """The bytes of a request's head."""
        lines = [f"{method} {path} HTTP/1.1"]
        all_headers = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", "Authorization": self.basic(user), **headers}
        lines += [f"{name}: {value}" for name, value in all_headers.items() if value is not None]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def ask(self, method, path, headers=None, body=b"", user=None):
        """Sends one request as it is, and reads until the server closes."""
        headers = dict(headers or {})
        if body:
            headers.setdefault("Content-Length", str(len(body)))
        with self.connect() as connection:
            connection.sendall(self.head(method, path, headers, user) + body)
            data = b""
            try:
                while piece := connection.recv(1 << 16):
                    data += piece
            except ConnectionResetError:
                pass
        return Answer(data)


class Volume:
    """A directory with the snapshot v1, a snapshot after it, and a live worktree 'live' that begins with v1."""

    def __init__(self, base):
        self.data = base / "data"
        self.home = base / "home"
        self.home.mkdir(parents=True)
        self.data.mkdir()
        self.run("init", "--plain", "--quiet")
        self.write("notes.txt", b"one\ntwo\n")
        self.write("dir/inner/deep.bin", bytes(range(256)) * 4000)
        self.write("dir/empty", b"")
        for number, name in enumerate(NAMES):
            self.write("names/" + name, str(number).encode())
        (Path(os.fsencode(self.data / "names").decode()) / os.fsdecode(b"not \xff utf-8")).write_bytes(b"raw")
        self.write("old", b"old")
        os.utime(self.data / "old", (-300_000_000, -300_000_000))
        os.symlink("/etc/passwd", self.data / "out")
        os.symlink("../../../../etc/passwd", self.data / "up")
        os.symlink("notes.txt", self.data / "in")
        os.symlink("loop", self.data / "loop")
        os.mkfifo(self.data / "fifo")
        self.run("snapshot", "--quiet", "-m", "first", "--tag", "v1")
        self.run("worktree", "create", "live")
        self.write("notes.txt", b"one\n2\n")
        self.run("snapshot", "--quiet", "-m", "second")

    @property
    def environment(self):
        home = str(self.home)
        own = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home, "XDG_STATE_HOME": home}
        # rclone fails if it is told of certificates in this way, which no test here needs.
        outer = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
        return {**outer, **own, "RCLONE_CONFIG": "/dev/null"}

    def run(self, *words, check=True):
        done = subprocess.run([VELLUM, *words], cwd=self.data, env=self.environment, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout.strip() if check else done

    def write(self, path, content):
        target = self.data / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


class GatewayTest(unittest.TestCase):
    """A test with a volume of its own."""

    def setUp(self):
        self.base = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.base, ignore_errors=True)
        self.volume = Volume(self.base)

    def serve(self, *words):
        gateway = Gateway(self.volume, words)
        self.addCleanup(gateway.stop)
        return gateway

    def command(self, *words, check=True, environment=None):
        done = subprocess.run(words, env=environment or self.volume.environment, capture_output=True)
        if check:
            self.assertEqual(done.returncode, 0, (words, done.stdout[-2000:], done.stderr[-2000:]))
        return done
