"""Volumes that remember: versioned, deduplicated, encrypted file trees.

    import vellum

    with vellum.open("/data/photos") as volume:
        for snapshot in volume.history(path="album", limit=50):
            print(snapshot.id, snapshot.time, snapshot.note)
        text = (volume.snapshot("v1.0") / "album" / "notes.txt").read_text()
"""

from ._native import __version__
from .errors import (
    ClosedError,
    Conflict,
    Corrupt,
    Denied,
    Error,
    Exists,
    Interrupted,
    IoFailure,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    ReadOnly,
    Unsupported,
    Usage,
)
from .paths import TreePath
from .trees import Entry, Snapshot, Tree, Worktree
from .volumes import Change, PathVersion, SnapshotInfo, Volume
from .volumes import create_volume as create
from .volumes import open_volume as open

__all__ = [
    "Change",
    "ClosedError",
    "Conflict",
    "Corrupt",
    "Denied",
    "Entry",
    "Error",
    "Exists",
    "Interrupted",
    "IoFailure",
    "IsADirectory",
    "NoSpace",
    "NotADirectory",
    "NotFound",
    "PathVersion",
    "ReadOnly",
    "Snapshot",
    "SnapshotInfo",
    "Tree",
    "TreePath",
    "Unsupported",
    "Usage",
    "Volume",
    "Worktree",
    "__version__",
    "create",
    "open",
]
