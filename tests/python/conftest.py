"""Volumes to test on."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest
import vellum


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[vellum.Volume]:
    """An empty volume."""
    with vellum.create(tmp_path / "volume") as made:
        yield made


@pytest.fixture
def work(volume: vellum.Volume) -> vellum.Worktree:
    """An empty live worktree of it."""
    return volume.create_worktree("work")
