"""The programs, a service, and a line to it: how a command is run, what it cost, and where its data goes."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchkit import host, measure as measuring, trees
from benchkit.service import BUCKET, SECRET, USER, Service, Traffic

PASSWORD = "correct horse battery staple"
REGION = "us-east-1"
# Seconds.
COUNTED_LATE = 0.1
RCLONE = ["rclone", "--config", "/dev/null", "--transfers", "16"]


@dataclass
class Sample:
    """What one row cost: time, and what went over the line. Other figures have a quantity of their own."""

    row: str
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    # Only of single commands.
    cpu: float | None = None
    peak: int | None = None
    # Bytes that were read, for a rate.
    amount: int | None = None
    # Further figures: quantity → (value, unit); with these alone, nothing else is noted.
    others: dict = field(default_factory=dict)

    def describe(self) -> str:
        """A line for whoever waits."""
        return f"{self.seconds:.2f} s, {dict(self.traffic.requests)}, {self.traffic.sent} up, {self.traffic.received} down"

    def add_to(self, run, tool, group):
        """Notes all of it."""

        def add(quantity, value, unit="count", better="less"):
            run.add(self.row, tool, value, group=group, quantity=quantity, unit=unit, better=better)

        for quantity, (value, unit) in self.others.items():
            add(quantity, value, unit)
        if self.others:
            return
        add("time", self.seconds, "s")
        add("requests", self.traffic.total())
        for kind, count in sorted(self.traffic.requests.items()):
            add(f"{kind} requests", count)
        add("sent", self.traffic.sent, "bytes")
        add("received", self.traffic.received, "bytes")
        if self.cpu is not None:
            add("processor time", self.cpu, "s")
            add("peak memory", self.peak, "bytes")
        if self.amount:
            add("rate", self.amount / self.seconds, "bytes per second", "more")


class RemoteBench:
    """An empty home for all programs, and a line to a service."""

    def __init__(self, run, service: Service, port: int, group: str):
        self.options, self.service, self.group = run.options, service, group
        self.delay, self.number = port != service.port, run.number
        self.root, self.vellum = run.work / f"bench-{port}", host.vellum()
        self.endpoint, self.prefix, self.folders = f"http://127.0.0.1:{port}", f"f{port}", 0
        folders = {name: self.root / name for name in ("home", "cache", "config", "state", "work")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        self.work, self.log = folders["work"], self.root / "log"
        self.secret = self.root / "secret"
        self.secret.write_text(PASSWORD + "\n")
        self.env = os.environ | {
            "HOME": str(folders["home"]),
            "XDG_CACHE_HOME": str(folders["cache"]),
            "XDG_CONFIG_HOME": str(folders["config"]),
            "XDG_STATE_HOME": str(folders["state"]),
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "RESTIC_PASSWORD": PASSWORD,
            "RESTIC_FROM_PASSWORD": PASSWORD,
            "KOPIA_PASSWORD": PASSWORD,
            "KOPIA_CHECK_FOR_UPDATES": "false",
        }
        # rclone's own transport takes no file of certificates.
        self.env.pop("AWS_CA_BUNDLE", None)

    def run(self, row, *argv, cwd=None, ok=(0,)) -> Sample:
        """Runs a command to its end."""
        before = self.service.traffic()
        cost = measuring.run(argv, cwd=cwd, env=self.env, ok=ok, log=self.log)
        return Sample(row, cost.wall, self.traffic_since(before), cost.cpu, cost.peak)

    def traffic_since(self, before: Traffic) -> Traffic:
        """What came since then. The service counts a request a little after it has answered it."""
        time.sleep(COUNTED_LATE)
        return self.service.traffic().since(before)

    def call(self, *argv, cwd=None, ok=(0,)) -> str:
        """Runs a command that is not measured."""
        return host.run(*argv, cwd=cwd, env=self.env, ok=ok)

    @contextlib.contextmanager
    def measured(self, row):
        """What happens meanwhile is the sample."""
        sample, before, start = Sample(row), self.service.traffic(), time.perf_counter()
        yield sample
        sample.seconds = time.perf_counter() - start
        sample.traffic = self.traffic_since(before)

    def kill_and_repeat(self, row, whole: Sample, *argv, cwd=None) -> Sample:
        """Kills a command at a random moment of the time that it took before (into another folder), runs it again, and
        says how much more it sent altogether."""
        before = self.service.traffic()
        moment = whole.seconds * random.Random(f"{row} {self.number}").uniform(0.3, 0.9)
        with open(self.log, "wb") as log:
            child = subprocess.Popen([str(word) for word in argv], cwd=cwd, env=self.env, stdout=log, stderr=log)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(moment)
            child.send_signal(signal.SIGKILL)
            child.wait()
        if argv[0] == "restic":
            # It leaves its locks behind, on both repositories.
            for repository in (argv[2], argv[-1]):
                self.call("restic", "-r", repository, "unlock", "--remove-all")
        self.call(*argv, cwd=cwd)
        sent = self.traffic_since(before).sent
        return Sample(row, others={"sent twice": (max(0, sent - whole.traffic.sent), "bytes")})

    def new_folder(self) -> str:
        """A folder of the bucket that nothing is in."""
        self.folders += 1
        return f"{self.prefix}-{self.number}-{self.folders}"

    def store(self, folder: str) -> str:
        """The address of a folder for Vellum."""
        return f"s3://{BUCKET}/{folder}?endpoint={self.endpoint}"

    def restic(self, folder: str) -> list:
        """restic with a repository in a folder."""
        return ["restic", "-r", f"s3:{self.endpoint}/{BUCKET}/{folder}"]

    def kopia(self, folder: str) -> list:
        """kopia with a repository in a folder, once it is connected to it."""
        return [host.program("kopia"), "--config-file", self.root / f"{folder}.kopia", "--no-persist-credentials"]

    def kopia_place(self, folder: str) -> list:
        """The address of a folder for kopia, which takes the keys from the environment."""
        endpoint = self.endpoint.removeprefix("http://")
        return ["s3", "--bucket", BUCKET, "--endpoint", endpoint, "--disable-tls", "--prefix", f"{folder}/"]

    def rustic(self, folder: str) -> list:
        """rustic with a repository in a folder. Its profile stands where rustic looks for it by name; the keys it takes
        from the environment."""
        profile = self.root / "config/rustic" / f"{folder}.toml"
        profile.parent.mkdir(exist_ok=True)
        profile.write_text(
            f'[repository]\nrepository = "opendal:s3"\npassword = "{PASSWORD}"\n\n'
            f'[repository.options]\nbucket = "{BUCKET}"\nroot = "/{folder}"\n'
            f'endpoint = "{self.endpoint}"\nregion = "{REGION}"\n'
        )
        return [host.program("rustic"), "--no-progress", "--use-profile", folder]

    def rclone(self, folder: str) -> str:
        """The address of a folder for rclone."""
        return f':s3,provider=Other,env_auth=true,region={REGION},endpoint="{self.endpoint}":{BUCKET}/{folder}'

    def aws(self, *arguments) -> list:
        """The aws command line at work on this service."""
        return ["aws", "--endpoint-url", self.endpoint, "s3", "cp", "--only-show-errors", *arguments]

    def s5cmd(self) -> list:
        """s5cmd at work on this service."""
        return [host.program("s5cmd"), "--endpoint-url", self.endpoint]

    def unlocked(self) -> list:
        """What Vellum opens a volume with."""
        return ["--passphrase-file", self.secret]

    def tree(self, name: str) -> Path:
        """A copy of the tree that is measured, which may be changed."""
        copy = self.work / name
        host.run("cp", "-a", trees.ensure(self.options.tree), copy)
        return copy

    def attach(self, name: str, store: str) -> Path:
        """A new worktree of a volume, with nothing in any cache."""
        self.drop_caches()
        path = self.new_path(name)
        self.call(self.vellum, "init", path, "--store", store, *self.unlocked())
        return path

    def new_path(self, name: str) -> Path:
        """A path where nothing is."""
        host.remove(self.work / name)
        return self.work / name

    def drop_caches(self):
        """Whatever a program kept for itself, and whatever the kernel kept."""
        host.remove(self.root / "cache")
        (self.root / "cache").mkdir()
        host.drop_caches()

    def clean(self):
        """Removes what one part made on this machine."""
        for entry in self.work.iterdir():
            shutil.rmtree(entry)

    def remove(self):
        """Removes all of it."""
        host.remove(self.root)
