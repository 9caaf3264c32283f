"""Open files, as the standard library has them."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from ._native import NativeFile

# Chunks of content are about this large: less would decrypt one several times, more would read what nobody asked for.
BUFFER = 128 * 1024
_MODES = ("r", "w", "x", "a")


class RawFile(io.RawIOBase):
    """A file without a buffer. `name` is its path in the tree."""

    def __init__(self, native: NativeFile, mode: str, name: str):
        super().__init__()
        self._native = native
        self._position = 0
        self._appends = mode.startswith("a")
        self._reads = mode == "r" or mode.endswith("+")
        self._writes = mode != "r"
        self.name = name
        self.mode = mode
        if self._appends:
            self._position = self._size()

    def _size(self) -> int:
        return self._native.stat()[6]

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def _check(self, allowed: bool, action: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(action)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def read(self, size: Optional[int] = -1) -> bytes:
        self._check(self._reads, "not readable")
        if size is None or size < 0:
            return self.readall()
        content = self._native.read_at(self._position, size)
        self._position += len(content)
        return content

    def readall(self) -> bytes:
        self._check(self._reads, "not readable")
        content = self._native.read_at(self._position, max(self._size() - self._position, 0))
        self._position += len(content)
        return content

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns the bytes at an offset, whatever the position is."""
        self._check(self._reads, "not readable")
        return self._native.read_at(offset, size)

    def write(self, data: Any) -> int:
        self._check(self._writes, "not writable")
        count = self._native.write_at(bytes(data), self._position)
        self._position = self._size() if self._appends else self._position + count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check(True, "")
        if whence == os.SEEK_SET:
            base = 0
        elif whence == os.SEEK_CUR:
            base = self._position
        elif whence == os.SEEK_END:
            base = self._size()
        else:
            raise ValueError(f"invalid whence: {whence}")
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        self._check(True, "")
        return self._position

    def truncate(self, size: Optional[int] = None) -> int:
        self._check(self._writes, "not writable")
        wanted = self._position if size is None else size
        self._native.truncate(wanted)
        return wanted

    def sync(self) -> None:
        """Waits until what was written survives a power cut."""
        self._check(True, "")
        self._native.sync()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._native.close()


def wrap_file(
    raw: RawFile,
    text: bool,
    buffering: int,
    encoding: Optional[str],
    errors: Optional[str],
    newline: Optional[str],
) -> Union[io.RawIOBase, io.BufferedIOBase, io.TextIOBase]:
    """Puts a buffer before a file, and a decoder if it is opened as text."""
    if not text and (encoding is not None or errors is not None or newline is not None):
        raw.close()
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    if buffering == 0:
        if text:
            raw.close()
            raise ValueError("can't have unbuffered text I/O")
        return raw
    size = BUFFER if buffering in (-1, 1) else buffering
    buffer: Union[io.BufferedReader, io.BufferedWriter, io.BufferedRandom]
    if raw.readable() and raw.writable():
        buffer = io.BufferedRandom(raw, size)
    elif raw.writable():
        buffer = io.BufferedWriter(raw, size)
    else:
        buffer = io.BufferedReader(raw, size)
    if not text:
        return buffer
    return io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)


def split_mode(mode: str) -> tuple[str, bool]:
    """Splits the mode of open(): what the native part knows, and whether it is text."""
    letters = set(mode)
    if len(letters) != len(mode) or letters - set("rwxabt+") or letters >= {"b", "t"}:
        raise ValueError(f"invalid mode: {mode!r}")
    kinds = [kind for kind in _MODES if kind in letters]
    if len(kinds) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    return kinds[0] + ("+" if "+" in letters else ""), "b" not in letters
