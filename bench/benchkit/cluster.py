"""Hosts on this machine, each with a network, mounts and processes of its own, and the line between them and a service.

A host is a set of namespaces that its first process holds; it ends with the process that started it, and with it everything
that runs there. Its mounts are seen from here beneath /proc/PID/root, so that no process has to enter it to use them.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from benchkit import host, service

FIRST_PROCESS = 'hostname "$1" && ip link set lo up && echo ready && exec env --ignore-signal=CHLD cat'
NETWORK = "10.77.0"
CLONE_NEWNET = 0x40000000
ENTER = "exec nsenter --target $process --mount --uts --ipc --net --pid -- "


class Host:
    """One host. Its address ends with its number."""

    def __init__(self, name: str, number: int):
        self.name, self.address = name, f"{NETWORK}.{number}"
        words = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.holder = subprocess.Popen([*words, "sh", "-c", FIRST_PROCESS, "sh", name], **pipes)
        if self.holder.stdout.readline() != b"ready\n":
            raise host.CommandFailed(f"the host {name} does not start: root's rights are needed")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        self.pid = int(children.split()[0])

    def path(self, place) -> Path:
        """A path of the host, as it is seen from here."""
        return Path(f"/proc/{self.pid}/root{place}")

    def words(self, *command) -> list:
        """A command that runs there."""
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *map(str, command)]

    def run(self, *command, **how) -> str:
        """Runs a command there and returns what it printed."""
        return host.run(*self.words(*command), **how)

    def enter_network(self):
        """From now on, sockets that this thread makes are of the host."""
        with open(f"/proc/{self.pid}/ns/net") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def in_network(self, work):
        """Calls a function whose sockets are of the host."""
        found = []

        def enter():
            self.enter_network()
            found.append(work())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if not found:
            raise host.CommandFailed(f"nothing came from the network of {self.name}")
        return found[0]

    def end(self):
        """Ends it, and everything that runs there."""
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()


class Hosts:
    """Hosts on one network."""

    def __init__(self, names):
        self.stack = contextlib.ExitStack()
        try:
            self.switch = self.start("net", 0)
            host.run(*self.net("link", "add", "br0", "type", "bridge"))
            host.run(*self.net("link", "set", "br0", "up"))
            self.by_name = {name: self.start(name, number) for number, name in enumerate(names, 1)}
            for each in self.by_name.values():
                self.connect(each)
        except BaseException:
            self.stack.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def __getitem__(self, name) -> Host:
        return self.by_name[name]

    def start(self, name, number) -> Host:
        """Starts a host, which ends with this object."""
        started = Host(name, number)
        self.stack.callback(started.end)
        return started

    def net(self, *words) -> list:
        """A command of ip, where the switch is."""
        return ["nsenter", "--target", str(self.switch.pid), "--net", "--", "ip", *words]

    def connect(self, each: Host):
        """Connects a host to the switch."""
        port = f"v{each.name}"
        host.run(*self.net("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(each.pid)))
        host.run(*self.net("link", "set", port, "master", "br0"))
        host.run(*self.net("link", "set", port, "up"))
        host.run(*each.words("ip", "addr", "add", f"{each.address}/24", "dev", "eth0"))
        host.run(*each.words("ip", "link", "set", "eth0", "up"))

    def shell(self, folder: Path) -> Path:
        """A program that is called like ssh, with the name of a host and a command."""
        cases = "".join(f"{name}) process={each.pid};;\n" for name, each in self.by_name.items())
        script = folder / "enter"
        script.write_text(f'#!/bin/sh\ncase $1 in\n{cases}esac\nshift\n{ENTER}"$@"\n')
        script.chmod(0o755)
        return script

    @contextlib.contextmanager
    def line(self, at: Host, port: int, to: tuple, delay: float):
        """A port of a host that leads to an address with a delay in seconds there and back; what it counts."""
        counts = multiprocessing.RawArray("q", 2)
        process = multiprocessing.Process(target=serve, args=(at, port, to, delay / 2, counts), daemon=True)
        process.start()
        try:
            wait_for_port(at, port)
            yield counts
        finally:
            process.terminate()
            process.join()


def serve(at: Host, port: int, to: tuple, delay: float, counts):
    """The process of a line."""
    at.enter_network()
    service.serve_line(port, to[1], delay, counts, listen=at.address, to=to[0])


def wait_for_port(at: Host, port: int, address=""):
    """Waits until something listens on a port of a host."""
    address = address or at.address
    host.wait_until(lambda: at.in_network(lambda: service.is_open(port, address)), f"{at.name}:{port} listens", 60)


class Redis:
    """Redis on a host, on all of its addresses, with an append-only file that is flushed each second."""

    PORT = 6379

    def __init__(self, at: Host, folder: Path):
        self.at = at
        words = ["--bind", "0.0.0.0", "--protected-mode", "no", "--port", str(self.PORT), "--save", "", "--dir", folder]
        words += ["--appendonly", "yes", "--appendfsync", "everysec", "--rdbcompression", "no", "--auto-aof-rewrite-min-size", "1gb"]
        self.process = subprocess.Popen(at.words("redis-server", *words), stdout=subprocess.DEVNULL)
        wait_for_port(at, self.PORT)

    def memory(self) -> int:
        """Bytes that it uses."""
        told = self.at.run("redis-cli", "-p", self.PORT, "info", "memory")
        return int(next(line for line in told.splitlines() if line.startswith("used_memory:")).split(":")[1])

    def memory_at_rest(self) -> int:
        """Bytes that it uses when nobody works: a log is shortened some seconds after the last change."""
        seen, deadline = self.memory(), time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(10)
            before, seen = seen, self.memory()
            # Its own bookkeeping moves by some kilobytes.
            if abs(seen - before) < 1 << 20:
                break
        return seen

    def end(self):
        """Ends it."""
        self.process.terminate()
        self.process.wait()


class SharedWorktree:
    """A worktree that the first host serves and all mount, at the same path."""

    PORT, NAME = 7788, "bench"

    def __init__(self, hosts: Hosts, names, folder: Path, words, spare="", client_words=None):
        """`words`: options of the first mount, such as that of a log; `spare`: a host that may serve later; `client_words`:
        options of other mounts, by host. The store is a directory that all hosts see."""
        self.hosts, self.names, self.folder, self.spare = hosts, list(names), folder, spare
        self.mountpoint = folder / "mnt"
        self.mountpoint.mkdir()
        # With a log, clients find the server in it, also another one later.
        self.has_log = bool(words)
        (folder / "passphrase").write_text("correct horse battery staple\n")
        self.environment = dict(os.environ, VELLUM_LOG="info")
        for name in [*self.names, *filter(None, [spare])]:
            (folder / name).mkdir()
            self.vellum(name, "init", "-q", "--store", folder / "store", "--passphrase-file", folder / "passphrase")
        for name in self.names:
            self.mount(name, words if name == self.names[0] else (client_words or {}).get(name, ()))
        # A mount that is stopped cannot be asked.
        self.processes = {name: self.find_process(name) for name in self.names}

    def find_process(self, name) -> int:
        """The process of a mount, by the numbers of this machine."""
        wanted = json.loads((self.path(name) / ".vellum/mount.json").read_text())["pid"]
        space = os.readlink(f"/proc/{self.hosts[name].pid}/ns/pid")
        for status in Path("/proc").glob("[0-9]*/status"):
            # Processes end while they are looked at.
            with contextlib.suppress(OSError, StopIteration):
                numbers = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:")).split()
                if numbers[-1] == str(wanted) and os.readlink(status.parent / "ns/pid") == space:
                    return int(status.parent.name)
        raise host.CommandFailed(f"no process serves the mount of {name}")

    def signal_mount(self, name, number):
        """Sends a signal to the process of a mount. No program is started for it: the start closes files of this process,
        and waits if they are in that mount."""
        os.kill(self.processes[name], number)

    def vellum(self, name, *words) -> str:
        """A command of Vellum on a host, in its own directory of the volume."""
        environment = self.environment | {"HOME": str(self.folder / name)}
        return self.hosts[name].run(host.vellum(), "-C", self.folder / name, *words, env=environment)

    def vellum_in_mount(self, name, *words) -> str:
        """A command of Vellum on a host, in the mount."""
        environment = self.environment | {"HOME": str(self.folder / name)}
        return self.hosts[name].run(host.vellum(), "-C", self.mountpoint, *words, env=environment)

    def mount(self, name, words=()):
        """Mounts it on a host. The first one serves."""
        address = f"{self.hosts[name].address}:{self.PORT}"
        server = f"{self.hosts[self.names[0]].address}:{self.PORT}"
        client = [] if self.has_log else ["--server", server]
        how = ["--listen", address] if name == self.names[0] else client
        self.vellum(name, "mount", "--shared", self.NAME, *how, *words, self.mountpoint)

    def path(self, name) -> Path:
        """Its root on a host, as it is seen from here."""
        return self.hosts[name].path(self.mountpoint)

    def requests(self, name) -> int:
        """What a client has asked the server so far. Its question counts, too."""
        told = json.loads(self.vellum(self.names[0], "status", "--clients", "--json"))
        clients = [each for worktree in told["worktrees"] for each in worktree["clients"]]
        return sum(each["requests"] for each in clients if each["host"] == name)

    def kernel_requests(self, name) -> int:
        """What the kernel of a client has asked the process of its mount so far."""
        told = json.loads((self.path(name) / ".vellum" / "mount.json").read_text())
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.hosts[name].path(told["control"])))
            asked.sendall(b'{"op": "client-mount"}\n')
            return json.loads(asked.makefile().readline())["done"]["client_mount"]["kernel_requests"]

    def lose_server(self) -> float:
        """Kills the process that serves and has the spare host serve; seconds until a client's
        operation goes on, which began when the process died."""
        lost, client = self.names[:2]
        self.signal_mount(lost, signal.SIGKILL)
        start = time.perf_counter()
        waiting = threading.Thread(target=(self.path(client) / "after").touch)
        waiting.start()
        self.names[0] = self.spare
        self.mount(self.spare)
        waiting.join()
        took = time.perf_counter() - start
        if not (self.path(client) / "after").exists():
            raise host.CommandFailed("the operation that waited for a server failed")
        return took

    def end(self):
        """Unmounts it everywhere, the server last."""
        for name in reversed(self.names):
            self.hosts[name].run(host.vellum(), "umount", "-q", self.mountpoint)
