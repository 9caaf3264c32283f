"""The examples of docs/python.md, run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import vellum

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example, tmp_path, capsys):
    if "pandas" in example:
        pandas = pytest.importorskip("pandas")
    place = tmp_path / "photos"
    with vellum.create(place) as volume, volume.create_worktree("results") as work:
        (work / "album").mkdir()
        (work / "album" / "notes.txt").write_text("the notes")
        (work / "tables").mkdir()
        if "pandas" in example:
            with (work / "tables" / "a.parquet").open("wb") as file:
                pandas.DataFrame({"a": [1]}).to_parquet(file)
        work.snapshot("first", tags=["v1.0"])
        (work / "album" / "notes.txt").write_text("other notes")
        work.snapshot("second")
    exec(compile(example.replace("/data/photos", str(place)), str(DOCUMENT), "exec"), {"vellum": vellum})  # noqa: S102
    printed = capsys.readouterr().out
    if "read_text" in example:
        assert "the notes" in printed and "modified album/notes.txt 9 11" in printed
    if "fork" in example:
        with vellum.open(place) as volume:
            assert (volume.snapshot("run-17") / "out.csv").read_text() == "1,2\n"
    if "find" in example:
        assert "['tables/a.parquet']" in printed


def test_there_are_examples():
    assert len(EXAMPLES) == 3
