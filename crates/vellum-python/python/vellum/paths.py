"""Paths in a tree, with the operators and methods of pathlib."""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import IO, Any, Iterator, List, Optional, Tuple, Union

from .errors import NotFound
from .trees import AnyPath, Tree, encode_path, expect_worktree


class TreePath:
    """A path in a snapshot or a worktree. It is no path of this machine, so that os.fspath() refuses it."""

    __slots__ = ("_tree", "_pure")

    def __init__(self, tree: Tree, path: Union[str, PurePosixPath] = ""):
        self._tree = tree
        self._pure = PurePosixPath(str(path).lstrip("/"))

    def __truediv__(self, other: AnyPath) -> TreePath:
        return TreePath(self._tree, self._pure / os.fsdecode(encode_path(other)).lstrip("/"))

    def joinpath(self, *others: AnyPath) -> TreePath:
        """Joins several parts."""
        joined = self
        for other in others:
            joined = joined / other
        return joined

    def __str__(self) -> str:
        text = str(self._pure)
        return "" if text == "." else text

    def __repr__(self) -> str:
        return f"<TreePath {str(self)!r} in {self._tree!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreePath) and self._tree is other._tree and self._pure == other._pure

    def __lt__(self, other: TreePath) -> bool:
        return self._pure < other._pure

    def __hash__(self) -> int:
        return hash((id(self._tree), self._pure))

    @property
    def name(self) -> str:
        """The last part; empty for the root."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The suffix of the last part, such as .txt."""
        return self._pure.suffix

    @property
    def parts(self) -> Tuple[str, ...]:
        """The names on the way from the root."""
        return self._pure.parts

    @property
    def parent(self) -> TreePath:
        """The directory above; the root is above itself."""
        return TreePath(self._tree, self._pure.parent)

    def with_name(self, name: str) -> TreePath:
        """The path with another last part."""
        return TreePath(self._tree, self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> TreePath:
        """The path with another suffix."""
        return TreePath(self._tree, self._pure.with_suffix(suffix))

    def relative_to(self, other: TreePath) -> PurePosixPath:
        """The way from another path to this one."""
        return self._pure.relative_to(other._pure)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns the attributes."""
        return self._tree.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        """Returns the attributes, of a symlink itself."""
        return self.stat(follow_symlinks=False)

    def exists(self) -> bool:
        """Returns whether something is there; symlinks are followed."""
        return self._tree.exists(self)

    def _mode(self, follow_symlinks: bool = True) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except (NotFound, NotADirectoryError):
            return 0

    def is_dir(self) -> bool:
        """Returns whether it is a directory."""
        return stat.S_ISDIR(self._mode())

    def is_file(self) -> bool:
        """Returns whether it is a regular file."""
        return stat.S_ISREG(self._mode())

    def is_symlink(self) -> bool:
        """Returns whether it is a symlink."""
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def iterdir(self) -> Iterator[TreePath]:
        """Yields what a directory has, in the order of names."""
        for entry in self._tree.list_dir(self):
            yield self / entry.path

    def walk(self) -> Iterator[Tuple[TreePath, List[str], List[str]]]:
        """Yields each directory with the names of its directories and of everything else, from the top; names that the
        caller removes from the first list are not walked into."""
        entries = self._tree.list_dir(self)
        directories = [entry.path for entry in entries if entry.kind == "directory"]
        yield self, directories, [entry.path for entry in entries if entry.kind != "directory"]
        for name in directories:
            yield from (self / name).walk()

    def glob(self, pattern: str) -> Iterator[TreePath]:
        """Yields what matches: * and ? and [] within names, ** for any number of directories."""
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        seen = set()
        for found in self._match(parts):
            if found not in seen:
                seen.add(found)
                yield found

    def rglob(self, pattern: str) -> Iterator[TreePath]:
        """Yields what matches at any depth."""
        return self.glob(f"**/{pattern}")

    def _match(self, parts: Tuple[str, ...]) -> Iterator[TreePath]:
        if not parts:
            yield self
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self._match(rest)
            for entry in self._list_if_dir():
                if entry.kind == "directory":
                    yield from (self / entry.path)._match(parts)
                elif not rest:
                    yield self / entry.path
        elif any(letter in first for letter in "*?["):
            for entry in self._list_if_dir():
                if fnmatchcase(entry.path, first):
                    yield from (self / entry.path)._match(rest)
        elif (self / first)._mode(follow_symlinks=False):
            yield from (self / first)._match(rest)

    def _list_if_dir(self) -> List[Any]:
        try:
            return list(self._tree.list_dir(self))
        except (NotFound, NotADirectoryError):
            return []

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Opens the file as open() of Python does."""
        return self._tree.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """Returns the content."""
        return self._tree.read_bytes(self)

    def read_text(self, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
        """Returns the content as text."""
        with self.open("r", encoding=encoding, errors=errors) as file:
            return str(file.read())

    def readlink(self) -> str:
        """Returns the target of a symlink."""
        return self._tree.readlink(self)

    def write_bytes(self, content: bytes) -> int:
        """Replaces the content of the file, or creates it."""
        expect_worktree(self._tree).write_bytes(self, content)
        return len(content)

    def write_text(self, text: str, encoding: Optional[str] = None, errors: Optional[str] = None) -> int:
        """Replaces the content of the file, or creates it."""
        with self.open("w", encoding=encoding, errors=errors) as file:
            return int(file.write(text))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Creates a directory."""
        worktree = expect_worktree(self._tree)
        try:
            if parents and str(self.parent):
                worktree.mkdir(self.parent, parents=True)
            worktree.mkdir(self)
        except FileExistsError:
            if not (exist_ok and self.is_dir()):
                raise

    def touch(self) -> None:
        """Creates the file if it does not exist."""
        self.open("ab").close()

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Removes a file or a symlink."""
        if self.lstat_is_dir():
            raise IsADirectoryError(f"{self} is a directory: rmdir() removes it")
        try:
            expect_worktree(self._tree).remove(self)
        except NotFound:
            if not missing_ok:
                raise

    def lstat_is_dir(self) -> bool:
        """Returns whether it is a directory itself, not a symlink to one."""
        return stat.S_ISDIR(self._mode(follow_symlinks=False))

    def rmdir(self) -> None:
        """Removes an empty directory."""
        if not self.lstat_is_dir() and self._mode(follow_symlinks=False):
            raise NotADirectoryError(f"{self} is no directory: unlink() removes it")
        expect_worktree(self._tree).remove(self)

    def rename(self, target: AnyPath) -> TreePath:
        """Renames it, and replaces what has the new name. The target is relative to the root."""
        expect_worktree(self._tree).rename(self, target)
        return self._tree.root / target

    def symlink_to(self, target: AnyPath) -> None:
        """Creates a symlink."""
        expect_worktree(self._tree).symlink(target, self)

    def hardlink_to(self, target: AnyPath) -> None:
        """Gives a file another name; the target is relative to the root."""
        expect_worktree(self._tree).link(target, self)

    def chmod(self, mode: int) -> None:
        """Sets the permission bits."""
        expect_worktree(self._tree).chmod(self, mode)
