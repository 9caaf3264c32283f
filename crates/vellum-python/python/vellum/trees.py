"""Trees of files: snapshots, which never change, and live worktrees, which do."""

from __future__ import annotations

import os
import weakref
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union, cast

from .addresses import VolumeOrigin, open_origin_snapshot
from .errors import Error, read_only
from .files import RawFile, split_mode, wrap_file

if TYPE_CHECKING:
    from ._native import NativeTree, StatRow
    from .paths import TreePath
    from .volumes import Volume

AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", "TreePath"]


def encode_path(path: AnyPath) -> bytes:
    """The bytes of a path in a tree."""
    from .paths import TreePath

    return os.fsencode(str(path) if isinstance(path, TreePath) else path)


class Entry(NamedTuple):
    """An entry of a directory or of a walk. `stat` is that of a symlink itself."""

    path: str
    kind: str
    stat: os.stat_result


def make_stat(row: StatRow) -> os.stat_result:
    """The attributes as os.stat() has them. Volumes have no device number: it is 0."""
    _, mode, ino, links, uid, gid, size, atime, mtime, ctime, btime = row
    whole = (mode, ino, 0, links, uid, gid, size, atime // 10**9, mtime // 10**9, ctime // 10**9)
    exact = {
        "st_atime": atime / 10**9,
        "st_mtime": mtime / 10**9,
        "st_ctime": ctime / 10**9,
        "st_atime_ns": atime,
        "st_mtime_ns": mtime,
        "st_ctime_ns": ctime,
    }
    del btime  # os.stat_result has no creation time on Linux.
    return os.stat_result(whole, exact)


class Tree:
    """A tree of files that can be read. Paths are relative to its root, with or without a leading slash, and never lead
    out of it. `tree / "a" / "b"` is a TreePath."""

    def __init__(self, native: NativeTree):
        self._native = native
        self._files: weakref.WeakSet[RawFile] = weakref.WeakSet()

    def __truediv__(self, other: AnyPath) -> TreePath:
        return self.root / other

    @property
    def root(self) -> TreePath:
        """The path of the root."""
        from .paths import TreePath

        return TreePath(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def close(self) -> None:
        """Closes it, and the files that were opened in it."""
        self._close_files()
        self._native.close()

    def _close_files(self) -> None:
        for file in list(self._files):
            file.close()

    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns the attributes at a path."""
        return make_stat(self._native.stat(encode_path(path), follow_symlinks))

    def exists(self, path: AnyPath) -> bool:
        """Returns whether something is at a path; symlinks are followed."""
        return self._native.exists(encode_path(path))

    def list_dir(self, path: AnyPath = "") -> List[Entry]:
        """Returns the entries of a directory in the order of their names; their paths are the names."""
        rows = self._native.list_dir(encode_path(path))
        return [Entry(os.fsdecode(name), row[0], make_stat(row)) for name, row in rows]

    def find(self, path: AnyPath = "") -> Iterator[Entry]:
        """Walks over everything at and below a path, directories before their content. Symlinks are not followed."""
        scan = self._native.scan(encode_path(path))
        while True:
            batch = scan.next_batch()
            if not batch:
                return
            for name, row in batch:
                yield Entry(os.fsdecode(name), row[0], make_stat(row))

    def read_bytes(self, path: AnyPath) -> bytes:
        """Returns the content of a file."""
        return self._native.read(encode_path(path))

    def read_ranges(self, ranges: Sequence[Tuple[AnyPath, int, int]]) -> List[Union[bytes, Error]]:
        """Returns parts of files, each given by path, offset and length. Many are read at the same time. What cannot be
        read is an exception in the list."""
        asked = [(encode_path(path), offset, length) for path, offset, length in ranges]
        return cast("List[Union[bytes, Error]]", self._native.read_ranges(asked))

    def readlink(self, path: AnyPath) -> str:
        """Returns the target of a symlink."""
        return os.fsdecode(self._native.read_link(encode_path(path)))

    def xattrs(self, path: AnyPath) -> dict[str, bytes]:
        """Returns the extended attributes."""
        return {os.fsdecode(name): value for name, value in self._native.xattrs(encode_path(path))}

    def open(
        self,
        path: AnyPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Opens a file as open() of Python does."""
        native_mode, text = split_mode(mode)
        native = self._native.open(encode_path(path), native_mode)
        raw = RawFile(native, native_mode, os.fsdecode(encode_path(path)))
        self._files.add(raw)
        return cast(IO[Any], wrap_file(raw, text, buffering, encoding, errors, newline))


class Snapshot(Tree):
    """A snapshot, opened for reading."""

    def __init__(self, native: NativeTree, origin: VolumeOrigin, worktree: Optional[Worktree] = None):
        super().__init__(native)
        self._origin = origin
        # Through which it is read until it is in the store.
        self._worktree = worktree
        self.id: str = native.name

    def read_from_store(self, volume: Volume) -> None:
        """Reads it without the worktree that has made it, which is about to be closed."""
        if self._worktree is not None and not self.closed:
            self._close_files()
            self._native.close()
            self._native = volume.open_native_snapshot(self.id)
        self._worktree = None

    def close_if_of(self, worktree: Worktree) -> None:
        """Closes it if it is still read through this worktree."""
        if self._worktree is worktree:
            self.close()

    def __repr__(self) -> str:
        return f"<Snapshot {self.id[:8]}>"

    def __reduce__(self) -> Tuple[Any, Tuple[Any, ...]]:
        # The id, so that every process reads the same bytes; never a key.
        return open_origin_snapshot, (self._origin, self.id)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class Worktree(Tree):
    """A live worktree: a tree that is written without a mount. Only one process at a time has it open.

    As a context manager it is closed at the end. One that `Volume.fork` made is also removed if the block fails, or if it
    was made with keep=False; with keep=True it stays in any case."""

    def __init__(self, native: NativeTree, volume: Volume, keep: Optional[bool] = True):
        super().__init__(native)
        self._volume = volume
        self._keep = keep
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self.name: str = native.name

    def __repr__(self) -> str:
        return f"<Worktree {self.name}>"

    def __enter__(self) -> Worktree:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self.closed:
            return
        if self._keep is False or (self._keep is None and kind is not None):
            self.discard()
        else:
            self.close()

    def close(self) -> None:
        """Publishes what is left, and closes the worktree and its files: another process can open it then. Snapshots that it
        has made stay open. If something cannot be published, it is closed nevertheless, and keeps what it has here."""
        if self.closed:
            return
        self._close_files()
        try:
            self.flush()
            for snapshot in list(self._snapshots):
                snapshot.read_from_store(self._volume)
        finally:
            self._end()

    def discard(self) -> None:
        """Removes the worktree. What is not in the store is lost, snapshots included."""
        self._close_files()
        try:
            self._native.discard()
        finally:
            self._end()

    def _end(self) -> None:
        # Each of them keeps the worktree open.
        for snapshot in list(self._snapshots):
            snapshot.close_if_of(self)
        self._native.close()

    def write_bytes(self, path: AnyPath, content: bytes) -> None:
        """Replaces the content of a file, or creates it."""
        self._native.write(encode_path(path), bytes(content))

    def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Creates a directory; with `parents`, also those above it, and it may exist."""
        self._native.mkdir(encode_path(path), parents)

    def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory with its content."""
        self._native.remove(encode_path(path), recursive)

    def rename(self, old: AnyPath, new: AnyPath) -> None:
        """Renames, and replaces what has the new name, as os.rename() does."""
        self._native.rename(encode_path(old), encode_path(new))

    def copy(self, old: AnyPath, new: AnyPath) -> None:
        """Copies a file. Its content is shared, not copied."""
        self._native.copy(encode_path(old), encode_path(new))

    def symlink(self, target: AnyPath, path: AnyPath) -> None:
        """Creates a symlink."""
        self._native.symlink(encode_path(target), encode_path(path))

    def link(self, old: AnyPath, new: AnyPath) -> None:
        """Gives a file another name."""
        self._native.link(encode_path(old), encode_path(new))

    def chmod(self, path: AnyPath, mode: int) -> None:
        """Sets the permission bits."""
        self._native.chmod(encode_path(path), mode & 0o7777)

    def set_times(self, path: AnyPath, *, accessed_ns: int, modified_ns: int) -> None:
        """Sets the times of access and of change of content, in nanoseconds since 1970."""
        self._native.set_times(encode_path(path), accessed_ns, modified_ns)

    def set_xattr(self, path: AnyPath, name: str, value: bytes) -> None:
        """Sets an extended attribute, such as user.origin."""
        self._native.set_xattr(encode_path(path), os.fsencode(name), value)

    def snapshot(self, note: str = "", *, tags: Sequence[str] = ()) -> Snapshot:
        """Makes a snapshot and opens it. It is in the store after `flush` or `close`; others find it then."""
        made = self._native.create_snapshot(note, list(tags))
        opened = Snapshot(self._native.open_snapshot(made), self._volume.origin, self)
        self._snapshots.add(opened)
        return opened

    def restore(self, snapshot: str, *, discard: bool = False) -> Optional[str]:
        """Makes the worktree what a snapshot holds. What no snapshot has is kept in a safety snapshot, whose id is returned;
        with `discard` it is lost."""
        return self._native.restore(snapshot, discard)

    @property
    def is_changed(self) -> bool:
        """Whether anything was changed since the last snapshot."""
        return self._native.is_changed()

    def sync(self) -> None:
        """Waits until all changes survive a power cut of this machine."""
        self._native.sync(False)

    def flush(self) -> None:
        """Waits until everything is in the store, snapshots included."""
        self._native.sync(True)


def expect_worktree(tree: Tree) -> Worktree:
    """Returns the tree if it can be changed."""
    if isinstance(tree, Worktree):
        return tree
    raise read_only(repr(tree))
