"""The trees that are measured. Each is made once, under the cache directory, and used again.

Real trees are copied at first use, so that a toolchain update or a build in between does not change the input.
"""

import json
import os
import random
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Callable

from benchkit import host

MIB = 1 << 20
# Files per directory of the made-up trees: neither one huge directory nor one directory per file.
FILES_PER_DIR = 1000
# Versions of the wheel, oldest first: ten that exist for one interpreter on one platform.
WHEELS = {
    "numpy": "1.24.4 1.25.0 1.25.1 1.25.2 1.26.0 1.26.1 1.26.2 1.26.3 1.26.4 2.0.0".split(),
    "networkx": "2.8.8 3.0 3.1 3.2 3.2.1 3.3 3.4 3.4.1 3.4.2 3.5".split(),
}
# How many commits of the repository are checked out, spread over its history.
COMMITS = 10
# Files of the tree whose text repeats itself.
REPETITIVE = 100
PHOTOGRAPHS = ("gnome-backgrounds", "mate-backgrounds")
# Two projects that share most of what they stand on, as projects of one team do.
NODE_PROJECTS = {
    "site": ["react@18", "react-dom@18", "vite@5", "typescript@5", "eslint@8"],
    "service": ["express@4", "typescript@5", "eslint@8", "jest@29"],
}


def copy_of(find: Callable):
    """An exact copy of the tree that a function finds."""

    def make(out: Path):
        out.mkdir(parents=True)
        host.run("cp", "-a", f"{find()}/.", out)

    return make


def files(count: int, sizes, place: Callable, seed: int):
    """Files of random bytes, which neither compress nor deduplicate; `place` says where the one of a number goes."""

    def make(out: Path):
        rng = random.Random(seed)
        for number in range(count):
            path = out / place(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                size = rng.choice(sizes)
                for start in range(0, size, MIB):
                    file.write(rng.randbytes(min(MIB, size - start)))

    return make


def small(count: int, dirs: int):
    """`count` files of 1 KiB in `dirs` directories."""
    per_dir = count // dirs
    return files(count, [1024], lambda n: f"d{n // per_dir:04}/f{n % per_dir:05}", seed=1024)


def big(mib: int):
    """One large file."""
    return files(1, [mib * MIB], lambda _: "big.bin", seed=4)


def numbered(root: Path, count: int):
    """Files of a few bytes, a thousand in each directory."""
    for number in range(count):
        folder = root / f"d{number // FILES_PER_DIR:04}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number:07}").write_text(f"{number}\n")


def wheel(package: str):
    """Ten versions of one Python wheel, unpacked side by side."""

    def make(out: Path):
        cache = out.parent / f"{package}.wheels"
        cache.mkdir(parents=True, exist_ok=True)
        for version in WHEELS[package]:
            download(package, version, cache)
            found = next(cache.glob(f"{package}-{version}-*.whl"))
            with zipfile.ZipFile(found) as archive:
                archive.extractall(out / version)

    return make


def download(package: str, version: str, cache: Path):
    """Fetches one wheel, if it is not there yet. The interpreter is fixed so that every machine gets the same bytes."""
    if next(cache.glob(f"{package}-{version}-*.whl"), None):
        return
    fixed = "--no-deps --only-binary :all: --python-version 3.11 --platform manylinux2014_x86_64 --platform any".split()
    host.run(sys.executable, "-m", "pip", "download", "-q", *fixed, "-d", cache, f"{package}=={version}")


def repository(out: Path):
    """This project's own repository, and ten of its commits checked out side by side."""
    host.run("git", "clone", "-q", "--no-hardlinks", host.ROOT, out / "clone")
    commits = host.run("git", "rev-list", "--first-parent", "HEAD", cwd=out / "clone").split()
    for commit in commits[:: max(1, len(commits) // COMMITS)][:COMMITS]:
        archive = out / f"{commit[:12]}.tar"
        host.run("git", "archive", "-o", archive, commit, cwd=out / "clone")
        shutil.unpack_archive(archive, out / commit[:12])
        archive.unlink()


def photographs(out: Path):
    """The photographs that Debian's packages of desktop backgrounds hold: JPEG and WebP files of some megabytes."""
    out.mkdir(parents=True)
    for package in PHOTOGRAPHS:
        host.run("apt-get", "download", "-qq", package, cwd=out)
        archive = next(out.glob(f"{package}_*.deb"))
        host.run("dpkg-deb", "-x", archive, out / package)
        archive.unlink()


def node(out: Path):
    """Two Node.js projects with what they depend on, as npm installs it."""
    for project, packages in NODE_PROJECTS.items():
        folder = out / project
        folder.mkdir(parents=True)
        host.run("npm", "init", "-y", cwd=folder)
        flags = ["--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
        host.run("npm", "install", *flags, *packages, cwd=folder)


def executables(out: Path):
    """The programs of this system: ELF files, each stored once."""
    out.mkdir(parents=True)
    for path in sorted(Path("/usr/bin").iterdir()):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            shutil.copyfile(path, out / path.name)


def repetitive(out: Path):
    """Text that says the same again and again, in files of a megabyte."""
    line = b"The quick brown fox jumps over the lazy dog. "
    for number in range(REPETITIVE):
        out.mkdir(parents=True, exist_ok=True)
        (out / f"f{number:03}").write_bytes((str(number).encode() + line) * (MIB // len(line)))


TREES = {
    # The Go distribution, the sources of its library, and those of the crates that cargo has unpacked on this machine.
    "goroot": copy_of(lambda: os.path.realpath(host.run("go", "env", "GOROOT"))),
    "golib": copy_of(lambda: Path(host.run("go", "env", "GOROOT"), "src")),
    "registry": copy_of(lambda: Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo", "registry", "src")),
    "small100k": small(100_000, 100),
    "big4g": big(4096),
    "wheels": wheel("numpy"),
    "networkx": wheel("networkx"),
    "small1m": small(1_000_000, 1_000_000 // FILES_PER_DIR),
    "git": repository,
    "photos": photographs,
    "node": node,
    "executables": executables,
    "repetitive": repetitive,
    # Not in the published tables: for trying the scripts out.
    "small1k": small(1_000, 10),
    "small100": small(100, 2),
    "big64m": big(64),
}


def ensure(name: str) -> Path:
    """The directory of the tree `name`, made if it is missing. A half-made tree is never taken for a whole one."""
    cache = host.CACHE / "trees"
    out = cache / name
    if not out.is_dir():
        print(f"making the tree {name} ...", file=sys.stderr)
        part = cache / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        TREES[name](part)
        part.rename(out)
    return out


def describe(path: Path) -> dict:
    """How many files and bytes a tree has. Kept beside the tree, since counting a million files takes a while."""
    note = path.parent / f"{path.name}.json"
    if not note.is_file():
        files, size = 0, 0
        for folder, _, names in os.walk(path):
            files += len(names)
            size += sum(os.lstat(os.path.join(folder, n)).st_size for n in names)
        note.write_text(json.dumps({"files": files, "bytes": size}))
    return json.loads(note.read_text())
