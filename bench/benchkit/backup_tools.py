"""How each tool is called: one class per tool, with the same few operations.

Settings are alike as far as they go: encryption on, zstd at level 3, each tool's own cache on, repository on the same
disk as the tree. Each tool gets a home of its own, so that nothing of the user's is read or changed.
The tools differ in what unlocking costs: restic and rustic run scrypt, borg PBKDF2, at every command; Vellum keeps its key
beside the worktree, and runs Argon2 only where a store is attached from elsewhere, which `restore` does here.
"""

import os
import shutil
from pathlib import Path

from benchkit import host, measure
from benchkit.measure import Cost

PASSWORD = "correct horse battery staple"


class Tool:
    """A tool with a repository in `work`. Operations return what they cost."""

    name = ""
    # Operations that the tool takes part in, in the order in which they run.
    ops = ("first", "again", "restore", "verify")

    def __init__(self, work: Path):
        self.work = work / self.name
        self.repo = self.work / "repo"
        self.out = self.work / "restored"
        self.log = self.work / "log"
        self.env = dict(os.environ, HOME=str(self.work / "home"), XDG_CACHE_HOME=str(self.work / "cache"))

    @classmethod
    def program(cls) -> str | None:
        """Where the tool is."""
        return host.program(cls.name)

    def run(self, *args, cwd=None, ok=(0,)) -> Cost:
        """The tool with `args`."""
        return measure.run([self.program(), *args], cwd=cwd, env=self.env, ok=ok, log=self.log)

    def prepare(self, tree: Path):
        """An empty repository."""
        shutil.rmtree(self.work, ignore_errors=True)
        for folder in (self.work, self.work / "home", self.work / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
        self.init(tree)

    def init(self, tree: Path):
        """Makes the repository."""

    def first(self, tree: Path) -> Cost:
        """The first snapshot."""
        return self.snapshot(tree)

    def again(self, tree: Path) -> Cost:
        """A snapshot of a tree that has not changed."""
        return self.snapshot(tree)

    def space(self) -> int | None:
        """Bytes of the repository."""
        return measure.disk_use(self.repo)

    def clean(self):
        """Removes all that the tool left, and what it restored."""
        shutil.rmtree(self.work, ignore_errors=True)


class Restic(Tool):
    """restic, repository format 2."""

    name = "restic"

    def init(self, tree):
        self.env |= {"RESTIC_REPOSITORY": str(self.repo), "RESTIC_PASSWORD": PASSWORD}
        self.run("init", "--repository-version", "2")

    def snapshot(self, tree):
        return self.run("backup", "--quiet", "--compression", "auto", ".", cwd=tree)

    def restore(self, tree):
        return self.run("restore", "--quiet", "latest", "--target", self.out)

    def verify(self, tree):
        return self.run("check", "--quiet", "--read-data")


class Borg(Tool):
    """borg 1, with the key in the repository and BLAKE2 for ids."""

    name = "borg"

    def init(self, tree):
        self.env |= {"BORG_REPO": str(self.repo), "BORG_PASSPHRASE": PASSWORD, "BORG_BASE_DIR": str(self.work / "home")}
        self.count = 0
        self.run("init", "--encryption", "repokey-blake2")

    def snapshot(self, tree):
        self.count += 1
        return self.run("create", "--compression", "zstd,3", f"::n{self.count}", ".", cwd=tree)

    def restore(self, tree):
        self.out.mkdir()
        return self.run("extract", "::n1", cwd=self.out)

    def verify(self, tree):
        return self.run("check", "--verify-data")


class Rustic(Tool):
    """rustic with its defaults, which are those of restic's format 2."""

    name = "rustic"

    def init(self, tree):
        self.env |= {"RUSTIC_REPOSITORY": str(self.repo), "RUSTIC_PASSWORD": PASSWORD, "RUSTIC_NO_PROGRESS": "true"}
        self.run("init")

    def snapshot(self, tree):
        return self.run("backup", ".", cwd=tree)

    def restore(self, tree):
        return self.run("restore", "latest", self.out)

    def verify(self, tree):
        return self.run("check", "--read-data")


class Vellum(Tool):
    """Vellum. It works in the tree itself, so it gets a copy of its own: rivals must not find `.vellum` in theirs."""

    name = "vellum"
    # The copy is kept from round to round; it stands outside `work`, which each round empties.
    copies: dict[Path, Path] = {}

    @classmethod
    def program(cls):
        return host.vellum()

    def init(self, tree):
        self.tree = self.copy_of(tree)
        self.secret = self.work / "passphrase"
        self.secret.write_text(PASSWORD + "\n")
        self.secret.chmod(0o600)
        shutil.rmtree(self.tree / ".vellum", ignore_errors=True)
        self.count = 0
        self.attach(self.tree)
        measure.warm(self.tree)

    def copy_of(self, tree: Path) -> Path:
        """This tool's copy of a tree."""
        if tree not in self.copies:
            copy = self.work.parent / "vellum-trees" / tree.name
            shutil.rmtree(copy, ignore_errors=True)
            copy.parent.mkdir(parents=True, exist_ok=True)
            host.run("cp", "-a", tree, copy)
            self.copies[tree] = copy
        return self.copies[tree]

    def attach(self, folder: Path) -> Cost:
        """Makes `folder` a worktree of the store, which is made if it is missing."""
        return self.run("init", folder, "--store", self.repo, "--passphrase-file", self.secret)

    def snapshot(self, tree):
        self.count += 1
        return self.run("snapshot", "--tag", f"n{self.count}", cwd=self.tree)

    def restore(self, tree):
        """Attaching counts, since rivals unlock their repository too."""
        self.out.mkdir()
        attached = self.attach(self.out)
        restored = self.run("restore", "n1", cwd=self.out)
        return Cost(
            attached.wall + restored.wall, attached.cpu + restored.cpu, max(attached.peak, restored.peak)
        )

    def verify(self, tree):
        return self.run("verify", "--all", cwd=self.tree)


class Find(Tool):
    """The floor of a second snapshot: one walk that looks at every file."""

    name = "find"
    ops = ("again",)

    def again(self, tree):
        return self.run(".", "-printf", "%s %T@\\n", cwd=tree)

    def space(self):
        return None


class Cp(Tool):
    """The floor of a restore: a plain copy."""

    name = "cp"
    ops = ("restore",)

    def restore(self, tree):
        return self.run("-a", "--reflink=never", tree, self.out)

    def space(self):
        return None


TOOLS = {tool.name: tool for tool in (Vellum, Restic, Borg, Rustic, Find, Cp)}
RIVALS = ("restic", "borg", "rustic")
FLOORS = ("find", "cp")


def available(names) -> list[type[Tool]]:
    """The tools among `names` that are on this machine."""
    return [TOOLS[name] for name in names if TOOLS[name].program()]
