"""How each backup tool is called: its words for the same few operations.

Settings are alike as far as they go: encryption on, zstd at level 3, each tool's own cache on, repository on the same
disk as the tree. Each tool gets a home of its own, so that nothing of the user's is read or changed.
The tools differ in what unlocking costs: restic and rustic run scrypt, borg PBKDF2, at every command; Vellum keeps its key
beside the worktree, and runs Argon2 only where a store is attached from elsewhere, which `restore` does here.
"""

import os
import shlex
import shutil
from pathlib import Path

from benchkit import host, measure
from benchkit.measure import Cost

PASSWORD = "correct horse battery staple"


class Tool:
    """A tool with a repository in `work`. In its words stand places, {repo} and {out}, and the number of a snapshot."""

    name = ""
    environment: dict[str, str] = {}
    # By operation: init, first (a snapshot), again (of a tree that has not changed; like the first unless said
    # otherwise), restore (into {out}, where the tool is run), verify.
    words: dict[str, str] = {}

    def __init__(self, work: Path):
        self.work = work / self.name
        self.repo, self.out, self.log = (self.work / name for name in ("repo", "restored", "log"))
        self.count = 0
        self.env = dict(os.environ, HOME=str(self.work / "home"), XDG_CACHE_HOME=str(self.work / "cache"))
        self.env |= {name: self.fill(text) for name, text in self.environment.items()}

    @classmethod
    def program(cls) -> str | None:
        """Where the tool is."""
        return host.program(cls.name)

    @classmethod
    def command(cls, op) -> str | None:
        """The words of an operation, if the tool takes part in it."""
        return cls.words.get(op) or (cls.words.get("first") if op == "again" else None)

    def fill(self, text: str, **places) -> str:
        """A text with what its places stand for."""
        return text.format(repo=self.repo, out=self.out, count=self.count, work=self.work, **places)

    def call(self, words: str, cwd=None, **places) -> Cost:
        """The tool with some words."""
        argv = [self.fill(word, **places) for word in shlex.split(words)]
        return measure.run([self.program(), *argv], cwd=cwd, env=self.env, log=self.log)

    def prepare(self, tree: Path):
        """An empty repository."""
        shutil.rmtree(self.work, ignore_errors=True)
        for folder in (self.work, self.work / "home", self.work / "cache"):
            folder.mkdir(parents=True)
        if words := self.command("init"):
            self.call(words)

    def run(self, op: str, tree: Path) -> Cost:
        """An operation."""
        self.count += op in ("first", "again")
        if op == "restore":
            self.out.mkdir()
        cwd = {"first": tree, "again": tree, "restore": self.out}.get(op)
        return self.call(self.command(op), cwd, tree=tree)

    def space(self) -> int | None:
        """Bytes of the repository."""
        return measure.disk_use(self.repo) if self.command("first") else None


class Restic(Tool):
    """restic, repository format 2."""

    name = "restic"
    environment = {"RESTIC_REPOSITORY": "{repo}", "RESTIC_PASSWORD": PASSWORD}
    words = {
        "init": "init --repository-version 2",
        "first": "backup --quiet --compression auto .",
        "restore": "restore --quiet latest --target {out}",
        "verify": "check --quiet --read-data",
    }


class Borg(Tool):
    """borg 1, with the key in the repository and BLAKE2 for ids."""

    name = "borg"
    environment = {"BORG_REPO": "{repo}", "BORG_PASSPHRASE": PASSWORD, "BORG_BASE_DIR": "{work}/home"}
    words = {
        "init": "init --encryption repokey-blake2",
        "first": "create --compression zstd,3 ::n{count} .",
        "restore": "extract ::n1",
        "verify": "check --verify-data",
    }


class Rustic(Tool):
    """rustic with its defaults, which are those of restic's format 2."""

    name = "rustic"
    environment = {"RUSTIC_REPOSITORY": "{repo}", "RUSTIC_PASSWORD": PASSWORD, "RUSTIC_NO_PROGRESS": "true"}
    words = {
        "init": "init",
        "first": "backup .",
        "restore": "restore latest {out}",
        "verify": "check --read-data",
    }


class Vellum(Tool):
    """Vellum. It works in the tree itself, so it gets a copy of its own: rivals must not find `.vellum` in theirs."""

    name = "vellum"
    words = {
        "init": "init {tree} --store {repo} --passphrase-file {work}/passphrase",
        "first": "snapshot --tag n{count}",
        "restore": "restore n1",
        "verify": "verify --all",
    }
    # The copy is kept from round to round; it stands outside `work`, which each round empties.
    copies: dict[Path, Path] = {}

    def prepare(self, tree):
        if tree not in self.copies:
            self.copies[tree] = copy = self.work.parent / "vellum-trees" / tree.name
            shutil.rmtree(copy, ignore_errors=True)
            copy.parent.mkdir(parents=True, exist_ok=True)
            host.run("cp", "-a", tree, copy)
        self.tree = self.copies[tree]
        shutil.rmtree(self.tree / ".vellum", ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "home").mkdir(parents=True)
        (self.work / "passphrase").write_text(PASSWORD + "\n")
        (self.work / "passphrase").chmod(0o600)
        self.call(self.command("init"), tree=self.tree)
        measure.warm(self.tree)

    def run(self, op, tree):
        if op != "restore":
            self.count += op != "verify"
            return self.call(self.command(op), self.tree)
        self.out.mkdir()
        # Attaching counts, since rivals unlock their repository too.
        attached = self.call(self.command("init"), tree=self.out)
        restored = self.call(self.command(op), self.out)
        return Cost(attached.wall + restored.wall, attached.cpu + restored.cpu, max(attached.peak, restored.peak))


class Find(Tool):
    """The floor of a second snapshot: one walk that looks at every file."""

    name = "find"
    words = {"again": ". -printf '%s %T@\\n'"}


class Cp(Tool):
    """The floor of a restore: a plain copy."""

    name = "cp"
    words = {"restore": "-a --reflink=never {tree} {out}"}


TOOLS = {tool.name: tool for tool in (Vellum, Restic, Borg, Rustic, Find, Cp)}
RIVALS = ("restic", "borg", "rustic")
FLOORS = ("find", "cp")
