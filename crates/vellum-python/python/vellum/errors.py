"""Exceptions. Each is both a vellum.Error and the exception that the standard library has for the same failure."""

from __future__ import annotations

import errno as errno_numbers
import os
from typing import Optional


class Error(Exception):
    """A failure of Vellum. `kind` is the stable code of docs/json.md, such as "not_found"."""

    kind: str = "io"

    def __str__(self) -> str:
        return str(self.args[-1]) if self.args else type(self).__name__


class NotFound(Error, FileNotFoundError):
    """What was asked for does not exist."""

    kind = "not_found"


class Denied(Error, PermissionError):
    """A wrong passphrase, a missing key, or missing permissions."""

    kind = "denied"


class Exists(Error, FileExistsError):
    """What was to be created exists."""

    kind = "conflict"


class Conflict(Error):
    """Another process changed it first, or has it open."""

    kind = "conflict"


class Corrupt(Error):
    """Stored bytes are damaged, missing, foreign or rolled back."""

    kind = "corrupt"


class NoSpace(Error, OSError):
    """The disk or the store is full."""

    kind = "no_space"


class Unsupported(Error):
    """The format or feature belongs to a version that this one does not know."""

    kind = "unsupported"


class Usage(Error, ValueError):
    """The request is contradictory or invalid; nothing was done."""

    kind = "usage"


class Interrupted(Error):
    """Stopped on request."""

    kind = "interrupted"


class IoFailure(Error, OSError):
    """Any other failure of the operating system or of a service."""

    kind = "io"


class NotADirectory(Error, NotADirectoryError):
    """A directory was expected."""


class IsADirectory(Error, IsADirectoryError):
    """A file was expected, and there is a directory."""


class ReadOnly(Error, OSError):
    """Snapshots cannot be changed."""

    kind = "usage"


class ClosedError(ValueError, RuntimeError):
    """A handle was used after it was closed, or in a process that was forked after it was opened."""


_BY_ERRNO = {
    errno_numbers.ENOENT: NotFound,
    errno_numbers.EEXIST: Exists,
    errno_numbers.ENOTDIR: NotADirectory,
    errno_numbers.EISDIR: IsADirectory,
    errno_numbers.EACCES: Denied,
    errno_numbers.EPERM: Denied,
    errno_numbers.EROFS: ReadOnly,
    errno_numbers.ENOSPC: NoSpace,
    errno_numbers.EDQUOT: NoSpace,
}

# What has no error number in POSIX, with the number that a caller of the standard library would look for.
_BY_KIND = {
    "not_found": (NotFound, errno_numbers.ENOENT),
    "conflict": (Conflict, None),
    "corrupt": (Corrupt, None),
    "denied": (Denied, errno_numbers.EACCES),
    "no_space": (NoSpace, errno_numbers.ENOSPC),
    "unsupported": (Unsupported, None),
    "usage": (Usage, None),
    "interrupted": (Interrupted, None),
    "io": (IoFailure, errno_numbers.EIO),
}


def make_error(kind: str, errno: Optional[int], message: str) -> Error:
    """Makes the exception of a failure of the native part."""
    known, usual = _BY_KIND.get(kind, (IoFailure, errno_numbers.EIO))
    chosen = known if errno is None else _BY_ERRNO.get(errno, IoFailure)
    number = usual if errno is None else errno
    if issubclass(chosen, OSError):
        made: Error = chosen(number, message)
    else:
        made = chosen(message)
    made.kind = kind
    return made


def read_only(what: str) -> ReadOnly:
    """The exception of a change of something that cannot be changed."""
    return ReadOnly(errno_numbers.EROFS, f"{what}: {os.strerror(errno_numbers.EROFS)}")
