"""A filesystem for fsspec: pandas, pyarrow, dask, zarr and others read volumes by URL.

`vellum:///srv/photos@v1.0/data/x` is the path data/x in the snapshot v1.0 of the volume in /srv/photos; without `@`, it is the
snapshot on which the worktree main stands when the filesystem is opened, or else the newest. `@NAME:live` is the live worktree
NAME, which can be written. `vellum://s3://bucket/photos@v1.0/data/x` is the same of a volume in a store. docs/python.md has the
rules.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union
from urllib.parse import quote, unquote

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]

from .addresses import AnyKey, is_address
from .errors import NotFound, Usage, read_only
from .trees import Entry, Tree, Worktree
from .volumes import Volume, open_volume

PROTOCOL = "vellum"
LIVE = ":live"
# The worktree of which the newest snapshot is taken if the URL names none.
DEFAULT_SNAPSHOT = "main"
# Bytes that are copied in one step.
PART = 32 << 20
# What the address of a store begins with.
_SCHEME = re.compile(r"[a-z0-9]+://")
_KINDS = {"file": "file", "directory": "directory", "symlink": "link"}


def _split_url(url: str) -> Tuple[Optional[str], Optional[str], str]:
    """Splits an address: the volume's directory or its store, the snapshot, the path. Without the protocol, all of it is a
    path."""
    if not url.startswith(f"{PROTOCOL}:"):
        return None, None, url
    rest = url[len(PROTOCOL) + 1 :]
    if not rest.startswith("//"):
        raise Usage(f"{url}: an address is vellum://VOLUME@SNAPSHOT/path, or vellum:///directory@SNAPSHOT/path")
    rest = rest[2:]
    if rest.startswith("/"):
        return _split_directory(url, rest)
    if _SCHEME.match(rest):
        return _split_store(rest)
    # Not by urlsplit(): it takes the volume for a user and the snapshot for a host.
    place, _, path = rest.partition("/")
    volume, at, snapshot = place.partition("@")
    if not volume:
        raise Usage(f"{url} names no volume")
    return _locate(unquote(volume)), unquote(snapshot) if at else None, path


def _locate(volume: str) -> str:
    """A volume's directory, absolute, or the address of its store."""
    return volume if is_address(volume) else os.path.abspath(volume)


def _split_store(rest: str) -> Tuple[str, Optional[str], str]:
    """Splits address@snapshot/path. The first `@` divides; that in sftp://user@host belongs to the address."""
    scheme, _, place = rest.partition("://")
    host = place.partition("/")[0]
    if scheme != "sftp" and ":" in host.partition("@")[0] and "@" in host:
        # What is before this `@` may be a secret: it is not repeated.
        raise Usage(
            "an address holds no user and no password; one with a port and no folder is quoted:"
            " vellum://webdavs%3A%2F%2Fhost%3A8080@SNAPSHOT/path"
        )
    at = place.find("@", len(host) if scheme == "sftp" else 0)
    if at < 0:
        raise Usage(
            "the address of a store ends at @SNAPSHOT, or at @ alone: vellum://s3://bucket/folder@SNAPSHOT/path; without it,"
            " the address is quoted: vellum://s3%3A%2F%2Fbucket%2Ffolder/path"
        )
    snapshot, _, path = place[at + 1 :].partition("/")
    return f"{scheme}://{place[:at]}", unquote(snapshot) or None, path


def _split_directory(url: str, rest: str) -> Tuple[str, Optional[str], str]:
    """Splits /directory@snapshot/path: the last `@` before which the directory of a volume is, divides. Without one, the
    volume is the longest directory that is a volume's."""
    parts = rest.split("/")
    for end in range(len(parts), 0, -1):
        head, at, snapshot = "/".join(parts[:end]).rpartition("@")
        if at and "/" not in snapshot and _is_volume(head):
            return head, unquote(snapshot), "/".join(parts[end:])
    for end in range(len(parts), 0, -1):
        head = "/".join(parts[:end])
        if _is_volume(head):
            return head, None, "/".join(parts[end:])
    raise NotFound(f"{url}: no directory in it is that of a volume")


def _is_volume(directory: str) -> bool:
    return bool(directory) and Path(directory, ".vellum").exists()


def _normalise(path: str) -> str:
    """A path without protocol, slashes at its ends, and `.` and `..`."""
    names: List[str] = []
    for name in path.split("/"):
        if name == "..":
            if names:
                names.pop()
        elif name not in ("", "."):
            names.append(name)
    return "/".join(names)


class VellumFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A snapshot, or a live worktree, of a volume: the one of a directory, or that in a store by its address. `passphrase`,
    `key`, `credentials` and `plain` are those of vellum.open()."""

    protocol = PROTOCOL
    root_marker = ""
    # Snapshots do not change, and the native part has caches of its own.
    use_listings_cache = False
    # They are not kept with the options of a filesystem, and it is found without them: a store has one volume, whatever
    # opened it.
    _strip_tokenize_options = ("passphrase", "key")

    def __init__(
        self,
        volume: Union[str, "os.PathLike[str]"],
        snapshot: Optional[str] = None,
        worktree: Optional[str] = None,
        *,
        passphrase: Union[str, bytes, None] = None,
        key: Optional[AnyKey] = None,
        credentials: Optional[str] = None,
        plain: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        if snapshot is not None and worktree is not None:
            raise Usage("a filesystem is that of a snapshot or that of a worktree, not of both")
        self.volume_address = _locate(os.fspath(volume))
        self.worktree = worktree
        self._volume: Volume = open_volume(
            self.volume_address, passphrase=passphrase, key=key, credentials=credentials, plain=plain
        )
        self.snapshot: Optional[str] = None
        self._tree: Tree
        if worktree is None:
            # From here on it is this snapshot: a tag or a worktree may move while the data is being read.
            self.snapshot = self._volume.resolve(snapshot) if snapshot else _find_default_snapshot(self._volume)
            self._tree = self._volume.snapshot(self.snapshot)
        else:
            self._tree = self._volume.worktree(worktree)

    def __reduce__(self) -> Tuple[Any, Tuple[Any, ...]]:
        # The id, so that every process reads the same bytes; never a key.
        _, credentials, plain = self._volume.origin
        kept = {"volume": self.volume_address, "snapshot": self.snapshot, "worktree": self.worktree}
        return _reopen, (type(self), {**kept, "credentials": credentials, "plain": plain or None})

    @property
    def tree(self) -> Tree:
        """The open snapshot or worktree."""
        return self._tree

    def close(self) -> None:
        """Closes the volume; another process can then open the worktree."""
        self._volume.close()
        type(self).clear_instance_cache()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return _normalise(_split_url(os.fsdecode(os.fspath(path)))[2])

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> Dict[str, Any]:
        volume, snapshot, _ = _split_url(url)
        if volume is None:
            return {}
        if snapshot is not None and snapshot.endswith(LIVE):
            return {"volume": volume, "worktree": snapshot[: -len(LIVE)]}
        return {"volume": volume, "snapshot": snapshot} if snapshot else {"volume": volume}

    @classmethod
    def _parent(cls, path: str) -> str:
        return _normalise(str(PurePosixPath(cls._strip_protocol(path)).parent))

    def unstrip_protocol(self, name: str) -> str:
        which = f"{self.worktree}{LIVE}" if self.worktree is not None else str(self.snapshot)
        return f"{PROTOCOL}://{quote(self.volume_address, safe='')}@{quote(which, safe=':')}/{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        return f"{PROTOCOL}-{self._volume.id}-{self.worktree or self.snapshot}"

    def _live(self) -> Worktree:
        if isinstance(self._tree, Worktree):
            return self._tree
        raise read_only(f"snapshot {self.snapshot}")

    def _describe(self, path: str, entry: Entry) -> Dict[str, Any]:
        kind, stat = entry.kind, entry.stat
        info: Dict[str, Any] = {
            "name": path,
            "size": stat.st_size if kind == "file" else 0,
            "type": _KINDS.get(kind, "other"),
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "mtime": stat.st_mtime,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
            "islink": kind == "symlink",
        }
        if kind == "symlink":
            info["destination"] = self._tree.readlink(path)
            try:
                followed = self._tree.stat(path)
            except (NotFound, OSError):
                return info
            # As what it leads to, since that is what is read by its name.
            info["type"] = "directory" if followed.st_mode & 0o170000 == 0o040000 else "file"
            info["size"] = followed.st_size if info["type"] == "file" else 0
        return info

    def info(self, path: str, **options: Any) -> Dict[str, Any]:
        path = self._strip_protocol(path)
        scan = self._tree.find(path)
        return self._describe(path, next(scan))

    def exists(self, path: str, **options: Any) -> bool:
        return self._tree.exists(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **options: Any) -> List[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        found = []
        for entry in self._tree.list_dir(path):
            name = f"{path}/{entry.path}" if path else entry.path
            found.append(self._describe(name, entry) if detail else name)
        return found

    def find(
        self,
        path: str,
        maxdepth: Optional[int] = None,
        withdirs: bool = False,
        detail: bool = False,
        **options: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        found = {}
        for entry in self._scan(path):
            name = _normalise(entry.path)
            relative = name[len(path) :].strip("/")
            depth = relative.count("/") + 1 if relative else 0
            if maxdepth is not None and depth > maxdepth:
                continue
            # A directory that is asked for is listed only if directories are; a file always is.
            if entry.kind == "directory" and (not withdirs or not name):
                continue
            found[name] = self._describe(name, entry) if detail else None
        return dict(sorted(found.items())) if detail else sorted(found)

    def _scan(self, path: str) -> Iterator[Entry]:
        if not self._tree.exists(path):
            return iter(())
        return self._tree.find(path)

    def created(self, path: str) -> datetime:
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        stat = self._tree.stat(self._strip_protocol(path))
        return datetime.fromtimestamp(stat.st_mtime, tz=timezone.utc)

    def ukey(self, path: str) -> str:
        path = self._strip_protocol(path)
        if self.snapshot is not None:
            return self._volume.content_id(path, snapshot=self.snapshot)
        stat = self._tree.stat(path)
        return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"

    def checksum(self, path: str) -> str:
        return self.ukey(path)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        if mode != "rb":
            self._live()
        if "w" in mode or "x" in mode or "a" in mode:
            self._make_parent(path)
        return self._tree.open(path, mode if "b" in mode else f"{mode}b")

    def cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **options: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self._tree.read_bytes(path)
        offset, length = self._range(path, start, end)
        (content,) = self._tree.read_ranges([(path, offset, length)])
        if isinstance(content, BaseException):
            raise content
        return content

    def _range(self, path: str, start: Optional[int], end: Optional[int]) -> Tuple[int, int]:
        """An offset and a length; negative numbers count from the end."""
        size = self._tree.stat(path).st_size
        first = 0 if start is None else start if start >= 0 else max(size + start, 0)
        last = size if end is None else end if end >= 0 else size + end
        return first, max(last - first, 0)

    def tail(self, path: str, size: int = 1024) -> bytes:
        return self.cat_file(path, start=-size)

    def cat_ranges(
        self,
        paths: List[str],
        starts: Any,
        ends: Any,
        max_gap: Optional[int] = None,
        on_error: str = "return",
        **options: Any,
    ) -> List[Any]:
        count = len(paths)
        firsts = starts if isinstance(starts, (list, tuple)) else [starts] * count
        lasts = ends if isinstance(ends, (list, tuple)) else [ends] * count
        if not len(firsts) == len(lasts) == count:
            raise ValueError("paths, starts and ends must have one length")
        stripped = [self._strip_protocol(path) for path in paths]
        asked = [(path, *self._range(path, first, last)) for path, first, last in zip(stripped, firsts, lasts)]
        found = self._tree.read_ranges(asked)
        for content in found:
            if isinstance(content, BaseException) and on_error == "raise":
                raise content
        return list(found)

    def _make_parent(self, path: str) -> None:
        parent = self._parent(path)
        if parent:
            self._live().mkdir(parent, parents=True)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        if mode == "create":
            with self._live().open(path, "xb") as file:
                file.write(value)
        else:
            self._live().write_bytes(path, value)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self._make_parent(path)
        self._live().mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if self._tree.exists(path):
            if not exist_ok:
                raise FileExistsError(path)
            return
        self._live().mkdir(path, parents=True)

    def rm_file(self, path: str) -> None:
        self._live().remove(self._strip_protocol(path))

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(path)
        self._live().remove(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        paths = path if isinstance(path, list) else [path]
        if maxdepth is not None:
            super().rm(paths, recursive=recursive, maxdepth=maxdepth)
            return
        for one in self.expand_path(paths):
            if not self._tree.exists(one) and not self._is_symlink(one):
                continue
            if not recursive and self.info(one)["type"] == "directory":
                raise IsADirectoryError(f"{one} is a directory: rm(recursive=True) removes it")
            self._live().remove(one, recursive=recursive)

    def _is_symlink(self, path: str) -> bool:
        try:
            return bool(self.info(path)["islink"])
        except (NotFound, NotADirectoryError):
            return False

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.info(source)["type"] == "directory":
            self.makedirs(target, exist_ok=True)
            return
        self._make_parent(target)
        self._live().copy(source, target)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **options: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self._tree.exists(target) and self.info(target)["type"] == "directory":
            target = f"{target}/{PurePosixPath(source).name}"
        self._make_parent(target)
        self._live().rename(source, target)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        self._live().open(path, "wb" if truncate else "ab").close()

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **options: Any) -> None:
        path = self._strip_protocol(rpath)
        if outfile is None and self.info(path)["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        if outfile is None:
            os.makedirs(os.path.dirname(lpath) or ".", exist_ok=True)
        target = outfile if outfile is not None else open(lpath, "wb")
        try:
            with self._tree.open(path, "rb", buffering=0) as source:
                while part := source.read(PART):
                    target.write(part)
        finally:
            if outfile is None:
                target.close()


def _find_default_snapshot(volume: Volume) -> str:
    """The snapshot that is read if none is named, as `vellum clone` takes its files."""
    try:
        return volume.resolve(DEFAULT_SNAPSHOT)
    except NotFound:
        # There is no such worktree, or it has no snapshot.
        return volume.describe().id


def _reopen(kind: Any, options: Dict[str, Any]) -> Any:
    return kind(**{name: value for name, value in options.items() if value is not None})
