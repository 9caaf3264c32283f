"""The examples of docs/python.md, run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

import pytest
import vellum
from s3_server import ACCESS_KEY, SECRET_KEY

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def find_store(example: str, request: pytest.FixtureRequest) -> Optional[str]:
    """The store on the server that an example gets in place of its own, if it has one."""
    if "s3://" not in example:
        return None
    home = request.getfixturevalue("home")
    server = request.getfixturevalue("s3_server")
    credentials = home / "config/vellum/credentials"
    (credentials / "test").rename(credentials / "home")
    return server.store(f"documents-{home.name}")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example, tmp_path, capsys, request, monkeypatch):
    if "pandas" in example:
        pandas = pytest.importorskip("pandas")
    place = tmp_path / "photos"
    store = find_store(example, request)
    with vellum.create(place, store=store, credentials=store and "home") as volume, volume.create_worktree("results") as work:
        (work / "album").mkdir()
        (work / "album" / "notes.txt").write_text("the notes")
        (work / "tables").mkdir()
        if "pandas" in example:
            with (work / "tables" / "a.parquet").open("wb") as file:
                pandas.DataFrame({"a": [1]}).to_parquet(file)
        work.snapshot("first", tags=["v1.0"])
        (work / "album" / "notes.txt").write_text("other notes")
        work.snapshot("second")
        code = volume.recovery_code
    if store is not None:
        # In place of the passphrase, and of the credentials that the service's own programs use.
        example = example.replace("correct horse battery staple", code)
        example = re.sub(r"s3://bucket/photos(\?region=eu-central-1)?", store, example)
        monkeypatch.setenv("VELLUM_PASSPHRASE", code)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    exec(compile(example.replace("/data/photos", str(place)), str(DOCUMENT), "exec"), {"vellum": vellum})  # noqa: S102
    printed = capsys.readouterr().out
    if "read_text" in example:
        assert "the notes" in printed
    if "compare" in example:
        assert "modified album/notes.txt 9 11" in printed
    if "fork" in example:
        with vellum.open(place) as volume:
            assert (volume.snapshot("run-17") / "out.csv").read_text() == "1,2\n"
    if "find" in example:
        assert "['tables/a.parquet']" in printed


def test_there_are_examples():
    assert len(EXAMPLES) == 5
