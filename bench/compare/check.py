"""Compares what a tool restored with the tree it came from, so that nobody is fast by being wrong."""

import subprocess
from pathlib import Path


def restored_root(out: Path, tree: Path) -> Path | None:
    """Where in `out` the tree stands: some tools restore it under its whole path."""
    names = {entry.name for entry in tree.iterdir()}
    candidates = [out, out / tree.name, out / str(tree).lstrip("/")]
    for candidate in candidates:
        if candidate.is_dir() and names <= {entry.name for entry in candidate.iterdir()}:
            return candidate
    return None


def same(out: Path, tree: Path) -> bool:
    """Whether names and contents are equal. Metadata is the matter of each tool's own tests."""
    root = restored_root(out, tree)
    if root is None:
        return False
    command = ["diff", "-rq", "--no-dereference", "--exclude=.vellum", str(tree), str(root)]
    return subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
