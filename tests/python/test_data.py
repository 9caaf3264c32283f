"""What scientists read with: pandas and pyarrow."""

from __future__ import annotations

import pytest

pandas = pytest.importorskip("pandas")
dataset = pytest.importorskip("pyarrow.dataset")
parquet = pytest.importorskip("pyarrow.parquet")

import fsspec  # noqa: E402
import vellum  # noqa: E402
from vellum.fsspec_filesystem import VellumFileSystem  # noqa: E402


@pytest.fixture
def place(tmp_path):
    directory = tmp_path / "volume"
    with vellum.create(directory) as volume:
        volume.create_worktree("w").close()
    yield directory
    VellumFileSystem.clear_instance_cache()


@pytest.fixture
def frame():
    return pandas.DataFrame({"number": range(10_000), "text": [f"row {number}" for number in range(10_000)]})


def test_pandas_writes_and_reads_by_address(place, frame):
    frame.to_parquet(f"vellum://{place}@w:live/data/a.parquet")
    frame.to_csv(f"vellum://{place}@w:live/data/a.csv", index=False)
    fs = fsspec.filesystem("vellum", volume=str(place), worktree="w")
    fs.tree.snapshot("data", tags=["v1"])
    fs.close()
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"vellum://{place}@v1/data/a.parquet"), frame)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"vellum://{place}@v1/data/a.csv"), frame)
    part = pandas.read_parquet(f"vellum://{place}@v1/data/a.parquet", columns=["number"])
    assert list(part.columns) == ["number"] and len(part) == 10_000


def test_a_dataset_of_pyarrow_spans_files(place, frame):
    fs = fsspec.filesystem("vellum", volume=str(place), worktree="w")
    for number in range(3):
        frame.to_parquet(f"vellum://{place}@w:live/set/part{number}.parquet")
    fs.tree.snapshot("set", tags=["v1"])
    fs.close()
    snapshot = fsspec.filesystem("vellum", volume=str(place), snapshot="v1")
    found = dataset.dataset("set", filesystem=snapshot, format="parquet")
    assert found.count_rows() == 30_000
    assert found.to_table(filter=dataset.field("number") < 5).num_rows == 15
    assert parquet.read_table("set/part0.parquet", filesystem=snapshot).num_rows == 10_000


def test_pandas_and_pyarrow_read_and_write_a_store_by_its_address(stored, frame, monkeypatch):
    options = {"passphrase": stored.code, "credentials": "test"}
    for number in range(2):
        place = f"vellum://{stored.address}@w:live/set/part{number}.parquet"
        frame.to_parquet(place, storage_options=options)
    fs = fsspec.filesystem("vellum", volume=stored.address, worktree="w", **options)
    fs.tree.snapshot("set", tags=["v3"])
    fs.close()
    # As in the processes of a cluster, where the environment has what opens the volume.
    monkeypatch.setenv("VELLUM_PASSPHRASE", stored.code)
    place = f"vellum://{stored.address}@v3/set/part0.parquet"
    read = pandas.read_parquet(place, columns=["number"], storage_options={"credentials": "test"})
    pandas.testing.assert_frame_equal(read, frame[["number"]])
    snapshot = fsspec.filesystem("vellum", volume=stored.address, snapshot="v3", credentials="test")
    found = dataset.dataset("set", filesystem=snapshot, format="parquet")
    assert found.count_rows() == 20_000
    assert parquet.read_table("set/part1.parquet", filesystem=snapshot).num_rows == 10_000
    VellumFileSystem.clear_instance_cache()
