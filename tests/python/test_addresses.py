"""Volumes by the addresses of their stores, on a real server."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from urllib.parse import quote

import pytest
import vellum
from forks import run_in_fork


def open_stored(stored, **changed):
    return vellum.open(stored.address, **{"passphrase": stored.code, "credentials": "test", **changed})


def files_with(folder, secret):
    """The files below a folder that hold a secret."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def run_python(code, **options):
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_a_volume_in_a_store_is_read(stored, home):
    with open_stored(stored) as volume:
        assert volume.origin.address == stored.address
        assert [row.note for row in volume.history()] == ["two", "one"]
        tree = volume.snapshot("v1")
        assert tree.id == stored.first and tree.read_bytes("data/x") == b"0123456789"
        assert [entry.path for entry in tree.list_dir("data")] == ["deep", "x"]
        assert len(list(tree.find())) == 5
        with (tree / "data" / "deep" / "y").open("rb") as file:
            file.seek(99_990)
            assert file.read() == b"y" * 10
        (change,) = [change for change in volume.compare("v1", "v2") if change.kind == "file"]
        assert (change.path, change.old_size, change.size) == ("data/x", 10, 6)
    # What was fetched is kept for all processes of the user; the key is not, nor the recovery code.
    assert any((home / "cache/vellum").rglob("*.pack")) or any((home / "cache/vellum").rglob("*"))
    kept = {path.name for path in (home / "state").rglob("*")}
    assert kept and not kept & {"key", "key-epochs", "slot-key"}
    assert not files_with(home / "state", stored.code) and not files_with(home / "cache", stored.code)


def test_a_live_worktree_of_a_volume_in_a_store_is_written(stored):
    with open_stored(stored) as volume, volume.fork("v1", name="forked") as work:
        work.write_bytes("new", b"1")
        made = work.snapshot("three", tags=["v3"]).id
    with open_stored(stored) as volume:
        assert volume.resolve("v3") == made and (volume.snapshot("forked") / "new").read_bytes() == b"1"
        assert sorted(volume.worktrees()) == ["forked", "main", "w"]


def test_the_secret_is_an_argument_or_in_the_environment(stored, home, monkeypatch):
    file = home / "key"
    file.write_text(f"{stored.code}\n")
    for given in ({"passphrase": stored.code.encode()}, {"key": file}, {"key": file.read_bytes()}):
        with vellum.open(stored.address, credentials="test", **given) as volume:
            assert volume.resolve("v1") == stored.first
    for name, value in (("VELLUM_PASSPHRASE", stored.code), ("VELLUM_KEY_FILE", str(file))):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            with vellum.open(stored.address, credentials="test") as volume:
                assert volume.resolve("v1") == stored.first
    # Those of the service's own programs.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "vellum-test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "vellum-test-secret")
    with vellum.open(stored.address, passphrase=stored.code) as volume:
        assert volume.origin.credentials is None and volume.resolve("v1") == stored.first


def test_what_cannot_be_opened_says_why(stored, home, s3_server):
    with pytest.raises(vellum.Denied, match="no key slot"):
        open_stored(stored, passphrase="wrong")
    with pytest.raises(vellum.Denied, match="VELLUM_KEY_FILE"):
        open_stored(stored, passphrase=None)
    with pytest.raises(vellum.Usage, match="is encrypted: leave out plain"):
        open_stored(stored, passphrase=None, plain=True)
    with pytest.raises(vellum.NotFound, match="holds no volume"):
        open_stored(stored._replace(address=s3_server.store("nothing-here")))
    with pytest.raises(vellum.Usage, match="no-such-bucket.*bucket does not exist"):
        open_stored(stored._replace(address=s3_server.store("x", bucket="no-such-bucket")))
    with pytest.raises(vellum.Error, match="credentials"):
        open_stored(stored, credentials="unknown")
    with pytest.raises(vellum.Unsupported, match="'ftp' is not a kind of store"):
        open_stored(stored._replace(address="ftp://host/path"))
    with pytest.raises(vellum.NotFound, match="nowhere"):
        open_stored(stored._replace(address="file:///nowhere/at/all"), credentials=None)
    for given in ({"key": b"x"}, {"passphrase": ""}, {"passphrase": None, "key": home / "empty"}):
        (home / "empty").touch()
        with pytest.raises(vellum.Usage):
            open_stored(stored, **given)
    with pytest.raises(vellum.Usage, match="a directory has its key"):
        vellum.open(home / "maker", passphrase=stored.code)


def test_a_service_that_cannot_be_reached_is_named(stored):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"s3://bucket/folder?endpoint=http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(vellum.IoFailure, match=r"s3://bucket/folder") as failure:
        open_stored(stored._replace(address=address))
    assert isinstance(failure.value, OSError)


@pytest.mark.parametrize(
    "address",
    ["s3://name:hunter2@bucket/folder", "webdavs://ann:hunter2@host/x", "s3://bucket/x?secret-access-key=hunter2"],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(address, home):
    fsspec = pytest.importorskip("fsspec")
    for use in (
        lambda: vellum.open(address, passphrase="x"),
        lambda: fsspec.open(f"vellum://{address}@v1/x", passphrase="x"),
        lambda: fsspec.open(f"vellum://{quote(address, safe='')}@v1/x", passphrase="x"),
    ):
        with pytest.raises(vellum.Usage) as refused:
            use()
        assert "hunter2" not in str(refused.value)


def test_a_plain_volume_is_opened_if_it_is_wanted(home):
    store = home / "store"
    with vellum.create(home / "maker", store=str(store), plain=True) as made, made.create_worktree("w") as work:
        work.write_bytes("a", b"1")
        work.snapshot("one", tags=["v1"])
    address = f"file://{store}"
    with vellum.open(address, plain=True) as volume:
        assert volume.snapshot("v1").read_bytes("a") == b"1"
    with pytest.raises(vellum.Usage, match="plain=True opens it"):
        vellum.open(address, passphrase="x")
    with pytest.raises(vellum.Usage):
        vellum.open(address, passphrase="x", plain=True)


def test_what_is_pickled_has_the_snapshot_and_no_secret(stored, monkeypatch):
    with open_stored(stored) as volume:
        tree = volume.snapshot("w")
        packed = pickle.dumps((volume, tree, tree / "data" / "x"))
        assert stored.code.encode() not in packed and b"vellum-test-secret" not in packed
        assert stored.code not in repr((volume, tree, volume.origin))
        with volume.worktree("w") as work:
            work.write_bytes("data/x", b"third")
            work.snapshot("three")
        assert volume.snapshot("w").read_bytes("data/x") == b"third"
    code = """
import pickle, sys
volume, tree, path = pickle.load(sys.stdin.buffer)
assert volume.resolve("v2") == tree.id
sys.stdout.buffer.write(tree.read_bytes("data/x") + b" " + path.read_bytes())
"""
    monkeypatch.setenv("VELLUM_PASSPHRASE", stored.code)
    assert run_python(code, input=packed) == b"second second"
    monkeypatch.delenv("VELLUM_PASSPHRASE")
    with pytest.raises(vellum.Denied):
        pickle.loads(packed)


def test_a_snapshot_of_a_directory_is_pickled_too(volume, work):
    work.write_bytes("a", b"1")
    work.snapshot("one", tags=["t"])
    work.flush()
    packed = pickle.dumps(volume.snapshot("t") / "a")
    assert run_python(
        "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).read_bytes())", input=packed
    ) == b"1"
    assert pickle.loads(packed).read_bytes() == b"1"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_opens_the_volume_again(stored):
    """Neither the handles nor the threads of the parent are used there."""
    with open_stored(stored) as volume:
        tree = volume.snapshot("v1")
        walk = tree.find()
        next(walk)
        native_walk = tree._native.scan(b"")

        def open_it_again():
            for number, use in enumerate((lambda: tree.read_bytes("data/x"), native_walk.next_batch), 2):
                try:
                    use()
                    return number
                except vellum.ClosedError as error:
                    if "fork" not in str(error):
                        return 10 + number
            with open_stored(stored) as again:
                return 0 if again.snapshot("v1").read_bytes("data/deep/y") == b"y" * 100_000 else 5

        assert run_in_fork(open_it_again) == 0
        assert tree.read_bytes("data/x") == b"0123456789" and len(list(walk)) == 4


def test_addresses_of_stores_are_files_for_fsspec(stored, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    from vellum.fsspec_filesystem import VellumFileSystem

    options = {"passphrase": stored.code, "credentials": "test"}
    quoted = quote(stored.address, safe="")
    for place in (stored.address, quoted):
        with fsspec.open(f"vellum://{place}@v1/data/x", **options) as file:
            assert file.read() == b"0123456789"
    with fsspec.open(f"vellum://{stored.address}@/data/x", **options) as file:
        assert file.read() == b"second", "without a snapshot of main, the newest"
    with fsspec.open(f"vellum://{stored.address}@w:live/data/made", "wb", **options) as file:
        file.write(b"made")
    fs = fsspec.filesystem("vellum", volume=stored.address, worktree="w", credentials="test", passphrase=stored.code)
    fs.tree.snapshot("made", tags=["v3"])
    fs.close()
    fs = fsspec.filesystem("vellum", volume=stored.address, snapshot="v3", **options)
    assert fs.find("") == ["data/deep/y", "data/made", "data/x"]
    assert fs.cat_ranges(["data/x", "data/made"], 0, [3, None]) == [b"sec", b"made"]
    again = fsspec.core.url_to_fs(fs.unstrip_protocol("data/made"), **options)
    assert again[0].snapshot == fs.snapshot and again[0].cat_file(again[1]) == b"made"
    packed = pickle.dumps(fs)
    for text in (packed, fs.to_json().encode(), repr(fs.storage_options).encode(), repr(fs).encode()):
        assert stored.code.encode() not in text
    monkeypatch.setenv("VELLUM_PASSPHRASE", stored.code)
    code = "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).cat_file('data/made'))"
    assert run_python(code, input=packed) == b"made"
    VellumFileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("address", "volume", "snapshot", "path"),
    [
        ("vellum://s3://bucket/p?endpoint=https://h:1&region=x@v1/a/b", "s3://bucket/p?endpoint=https://h:1&region=x", "v1", "a/b"),
        ("vellum://s3://bucket@v1/a@b", "s3://bucket", "v1", "a@b"),
        ("vellum://gs://bucket/p@/a", "gs://bucket/p", None, "a"),
        ("vellum://az://box/p@v1", "az://box/p", "v1", ""),
        ("vellum://sftp://ann@host:22/d@w/x", "sftp://ann@host:22/d", "w", "x"),
        ("vellum://file:///srv/store@v1~2/x", "file:///srv/store", "v1~2", "x"),
        ("vellum://https%3A%2F%2Fhost%2Fp/x", "https://host/p", None, "x"),
        ("vellum://webdavs%3A%2F%2Fhost%3A8080@v1/x", "webdavs://host:8080", "v1", "x"),
    ],
)
def test_addresses_of_stores_are_taken_apart(address, volume, snapshot, path):
    pytest.importorskip("fsspec")
    from vellum.fsspec_filesystem import VellumFileSystem

    found = VellumFileSystem._get_kwargs_from_urls(address)
    assert found == {"volume": volume, **({"snapshot": snapshot} if snapshot else {})}
    assert VellumFileSystem._strip_protocol(address) == path
    with pytest.raises(vellum.Usage, match="ends at @SNAPSHOT"):
        VellumFileSystem._strip_protocol("vellum://s3://bucket/folder/x")
