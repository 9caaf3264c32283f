"""Volumes: their history, snapshots and worktrees."""

from __future__ import annotations

import errno
import json
import os
import uuid
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _native, addresses
from .addresses import VolumeOrigin
from .errors import NotFound
from .trees import AnyPath, Snapshot, Tree, Worktree, encode_path

# Rows that are asked for at once.
PAGE = 500

SnapshotName = Union[str, "SnapshotInfo", Snapshot]


class SnapshotInfo(NamedTuple):
    """What is known of a snapshot."""

    id: str
    time: datetime
    note: str
    tags: Tuple[str, ...]
    worktree: str
    author: str
    host: str
    heads: Tuple[str, ...]
    """The worktrees that stand on it."""
    parents: Tuple[str, ...]
    properties: Dict[str, str]
    origin: str
    """"user", or "safety" if a restore made it."""
    files: int
    bytes: int
    changed: int
    stored: int
    """Bytes that it added to the store."""


class Change(NamedTuple):
    """A difference between two snapshots."""

    change: str
    """"added", "deleted", "modified" or "renamed"."""
    path: str
    kind: str
    old_path: Optional[str]
    size: Optional[int]
    old_size: Optional[int]
    aspects: Tuple[str, ...]
    """What differs: "content", "mode", "owner", "xattr", "time", "kind"."""


class PathVersion(NamedTuple):
    """A content that a path had in consecutive snapshots."""

    first: str
    last: str
    first_time: datetime
    last_time: datetime
    snapshots: int
    """How many snapshots have it."""
    kind: str
    size: int
    content: str
    """Equal contents have the same one."""


def _decode_name(value: Dict[str, str]) -> str:
    # A name that is no text comes with its bytes.
    encoded = value.get("path_hex")
    return value["path"] if encoded is None else os.fsdecode(bytes.fromhex(encoded))


def _parse_time(text: str) -> datetime:
    if text.startswith("@"):
        # Python has no years beyond 9999.
        edge = datetime.min if text.startswith("@-") else datetime.max
        return edge.replace(tzinfo=timezone.utc)
    # Python has microseconds; the text has nanoseconds.
    return datetime.strptime(text[:26], "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=timezone.utc)


def _make_info(row: Dict[str, Any]) -> SnapshotInfo:
    return SnapshotInfo(
        id=row["id"],
        time=_parse_time(row["time"]),
        note=row["note"],
        tags=tuple(row["tags"]),
        worktree=row["worktree"],
        author=row["author"],
        host=row["host"],
        heads=tuple(row["heads"]),
        parents=tuple(row["parents"]),
        properties=row.get("properties", {}),
        origin=row["origin"],
        files=row["files"],
        bytes=row["bytes"],
        changed=row["changed"],
        stored=row["stored"],
    )


def _make_change(row: Dict[str, Any]) -> Change:
    old = row.get("old_path")
    return Change(
        change=row["change"],
        path=_decode_name(row),
        kind=row["kind"],
        old_path=None if old is None else _decode_name(old),
        size=row.get("size"),
        old_size=row.get("old_size"),
        aspects=tuple(row["aspects"]),
    )


def _make_version(row: Dict[str, Any]) -> PathVersion:
    return PathVersion(
        first=row["first"],
        last=row["last"],
        first_time=_parse_time(row["first_time"]),
        last_time=_parse_time(row["last_time"]),
        snapshots=row["count"],
        kind=row["kind"],
        size=row["size"],
        content=row["content"],
    )


class Volume:
    """An open volume. As a context manager it is closed at the end, with everything that was opened in it."""

    def __init__(
        self, native: _native.NativeVolume, origin: VolumeOrigin, recovery_code: Optional[str] = None
    ):
        self._native = native
        self.origin = origin
        """Where it is, and the name of the credentials; no secret."""
        self._trees: List[Tree] = []
        self.id: str = native.id
        self.recovery_code = recovery_code
        """Of a volume that was just created: what opens it if everything else is lost. It is not shown again."""

    def __repr__(self) -> str:
        return f"<Volume {self.id}>"

    def __reduce__(self) -> Tuple[Any, Tuple[Any, ...]]:
        # Never a key: the other process has to find it in its environment.
        return addresses.open_origin, (self.origin,)

    def __enter__(self) -> Volume:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def close(self) -> None:
        """Closes it, and the snapshots and worktrees that were opened in it."""
        for tree in self._trees:
            tree.close()
        self._trees.clear()
        self._native.close()

    def _name_of(self, snapshot: Optional[SnapshotName]) -> str:
        """The name of a snapshot; None is the newest of the volume."""
        if snapshot is None:
            for newest in self.history(limit=1):
                return newest.id
            raise NotFound(errno.ENOENT, "the volume has no snapshot yet")
        return snapshot if isinstance(snapshot, str) else snapshot.id

    def history(
        self,
        *,
        worktree: Optional[str] = None,
        path: Optional[AnyPath] = None,
        grep: Optional[str] = None,
        tag: Optional[str] = None,
        limit: Optional[int] = None,
    ) -> Iterator[SnapshotInfo]:
        """Yields snapshots, newest first: of all worktrees or of the line of one; only those that changed something at a
        path, whose note contains a text, or that have a tag."""
        after: Optional[str] = None
        left = limit
        encoded = None if path is None else encode_path(path)
        while left is None or left > 0:
            wanted = PAGE if left is None else min(PAGE, left)
            page = json.loads(
                self._native.history(
                    worktree=worktree, after=after, limit=wanted, path=encoded, grep=grep, tag=tag
                )
            )
            for row in page["snapshots"]:
                after = row["id"]
                yield _make_info(row)
            if left is not None:
                left -= len(page["snapshots"])
            if not page["more"]:
                return

    def describe(self, snapshot: Optional[SnapshotName] = None) -> SnapshotInfo:
        """Returns what is known of a snapshot."""
        return _make_info(json.loads(self._native.describe(self._name_of(snapshot))))

    def snapshot(self, snapshot: Optional[SnapshotName] = None) -> Snapshot:
        """Opens a snapshot that is in the store, by an id, its first digits, a tag, a worktree, v1~3, or a moment such as
        @{yesterday}; without a name, the newest."""
        opened = Snapshot(self.open_native_snapshot(self._name_of(snapshot)), self.origin)
        self._trees.append(opened)
        return opened

    def compare(self, old: SnapshotName, new: Optional[SnapshotName] = None, *, path: AnyPath = "") -> List[Change]:
        """Returns the differences between two snapshots at and below a path, in the order of paths."""
        found = self._native.compare(self._name_of(old), self._name_of(new), encode_path(path))
        return [_make_change(row) for row in json.loads(found)["changes"]]

    def versions(
        self, path: AnyPath, *, newest: Optional[SnapshotName] = None, limit: int = 1000
    ) -> List[PathVersion]:
        """Returns the contents that a path had up to a snapshot, newest first."""
        found = self._native.versions(encode_path(path), self._name_of(newest), limit)
        return [_make_version(row) for row in json.loads(found)]

    def content_id(self, path: AnyPath, *, snapshot: Optional[SnapshotName] = None) -> str:
        """Returns what identifies the content of a path in a snapshot: equal contents have the same."""
        return self._native.content_id(self._name_of(snapshot), encode_path(path))

    def resolve(self, snapshot: SnapshotName) -> str:
        """Returns the id of a snapshot."""
        return self._native.resolve(self._name_of(snapshot))

    def worktrees(self) -> List[str]:
        """Returns the names of all worktrees, live and checked out."""
        return self._native.worktrees()

    def worktree(self, name: str) -> Worktree:
        """Opens a live worktree. Fails if another process has it open, as a mount has."""
        return self._adopt(Worktree(self._native.open_worktree(name), self))

    def create_worktree(self, name: str, snapshot: Optional[SnapshotName] = None) -> Worktree:
        """Creates a live worktree with the content of a snapshot, or empty."""
        start = None if snapshot is None else self._name_of(snapshot)
        return self._adopt(Worktree(self._native.create_worktree(name, start), self))

    def fork(
        self, snapshot: Optional[SnapshotName] = None, *, name: Optional[str] = None, keep: Optional[bool] = None
    ) -> Worktree:
        """Creates a live worktree from a snapshot, for a `with` block. At its end the worktree stays, unless the block fails:
        then it is removed. With keep=True it stays in any case, with keep=False it never does. No content is copied."""
        chosen = f"fork-{uuid.uuid4().hex[:12]}" if name is None else name
        native = self._native.create_worktree(chosen, self._name_of(snapshot))
        return self._adopt(Worktree(native, self, keep))

    def _adopt(self, worktree: Worktree) -> Worktree:
        self._trees.append(worktree)
        return worktree

    def open_native_snapshot(self, snapshot: str) -> _native.NativeTree:
        """Opens a snapshot that is in the store, for the classes of this package."""
        return self._native.open_snapshot(snapshot)

    def tag(self, name: str, snapshot: Optional[SnapshotName] = None) -> None:
        """Gives a snapshot a tag."""
        self._native.tag(name, self._name_of(snapshot))

    def forget(self, snapshot: SnapshotName) -> None:
        """Forgets a snapshot; `collect_garbage` removes what only it held."""
        self._native.forget(self._name_of(snapshot))

    def collect_garbage(self) -> int:
        """Deletes what nothing needs; returns how many bytes the store takes less."""
        return self._native.collect_garbage()


def open_volume(
    volume: Union[str, bytes, "os.PathLike[str]"],
    *,
    passphrase: Union[str, bytes, None] = None,
    key: Union[bytes, str, "os.PathLike[str]", None] = None,
    credentials: Optional[str] = None,
    plain: bool = False,
) -> Volume:
    """Opens the volume of a directory, or of one of its parents; or the one in a store, by its address (s3://bucket/folder,
    gs://, az://, webdavs://, sftp://, https://, file:///path).

    The other arguments are for addresses. `passphrase` is a passphrase or the recovery code; `key` is the path of a key file,
    or its content as bytes. Without either, VELLUM_PASSPHRASE or VELLUM_KEY_FILE of the environment counts. `credentials`
    names those of this user for the store; by default they are those of the service's own programs. With `plain`, the volume
    must be without encryption; without it, it must not."""
    text = os.fsdecode(volume)
    if not addresses.is_address(text):
        addresses.refuse_store_options(passphrase, key, credentials, plain)
        return Volume(_native.open_volume(os.fsencode(text)), VolumeOrigin(os.path.abspath(text)))
    secret = addresses.find_secret(passphrase, key, plain)
    return Volume(_native.open_address(text, secret, credentials, plain), VolumeOrigin(text, credentials, plain))


def create_volume(
    path: Union[str, bytes, "os.PathLike[str]"],
    *,
    store: Optional[str] = None,
    credentials: Optional[str] = None,
    plain: bool = False,
) -> Volume:
    """Creates a volume in a directory, encrypted unless it is to be plain. Its store is in the directory, or at a path or an
    address, for which `credentials` names those of this user."""
    native, recovery_code = _native.create_volume(os.fsencode(path), store, credentials, plain)
    return Volume(native, VolumeOrigin(os.path.abspath(os.fsdecode(path))), recovery_code)
