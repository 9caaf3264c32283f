"""fsspec's own tests of a filesystem, on a live worktree."""

from __future__ import annotations

import pytest

pytest.importorskip("fsspec")

import fsspec.tests.abstract as abstract  # noqa: E402
import vellum  # noqa: E402
from vellum.fsspec_filesystem import VellumFileSystem  # noqa: E402


class VellumFixtures(abstract.AbstractFixtures):
    """A filesystem for the tests of fsspec."""

    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        place = tmp_path_factory.mktemp("suite") / "volume"
        with vellum.create(place) as volume:
            volume.create_worktree("w").close()
        made = VellumFileSystem(volume=place, worktree="w")
        yield made
        made.close()

    @pytest.fixture
    def fs_path(self):
        return "base"

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, VellumFixtures):
    """Within the worktree."""


class TestGet(abstract.AbstractGetTests, VellumFixtures):
    """Out of it."""


class TestPut(abstract.AbstractPutTests, VellumFixtures):
    """Into it."""


class TestOpen(abstract.AbstractOpenTests, VellumFixtures):
    """Files of it."""


class TestPipe(abstract.AbstractPipeTests, VellumFixtures):
    """Contents at once."""
