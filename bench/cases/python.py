"""The package for Python beside a mount: starting, opening, a large file, and a table.

In one snapshot stand a file and a Parquet table of random numbers, not compressed. Each sample is a process of its own, which
says how long its step took: `import vellum` (less what Python itself takes to start), `vellum.open`, reading the file at once
(`read_bytes`, and `open().read()` in a view of the same snapshot), and reading the table with pyarrow (through the package's
filesystem for fsspec, and from the view). The files of the store are in the page cache. A view is mounted anew for each sample,
so that what is read comes from the store as well; "cached view" is one of which the kernel has cached everything, so that
nothing but the kernel takes part.

PYTHON names an interpreter that has the package, built as for a release (`make wheel`), and pyarrow; without it, python3 is
taken.
"""

import contextlib
import os
import shutil

from benchkit import host
from benchkit.runner import Case, Option, Run

VIEW, CACHED = "view", "cached view"
# What each step runs; it prints its seconds. `place` is the volume's directory, or that of the view.
CLOCK = "import sys, time; place = sys.argv[1]; start = time.perf_counter(); "
# At the end of a process, pyarrow's threads may still give back objects of Python, and abort it then: of any filesystem that is
# written in Python (pyarrow 26). So it ends without its ending.
TELL = "; print(time.perf_counter() - start, flush=True); import os; os._exit(0)"
STEPS = {
    "import": {"vellum": f"{CLOCK}import vellum{TELL}"},
    "open": {"vellum": f"import vellum; {CLOCK}volume = vellum.open(place){TELL}"},
    "read a file": {
        "vellum": f"import vellum; volume = vellum.open(sys.argv[1]); {CLOCK}data = (volume.snapshot() / 'large').read_bytes(){TELL}",
        VIEW: f"{CLOCK}data = open(place + '/large', 'rb').read(){TELL}",
    },
    "read a table": {
        "vellum": "import fsspec, pyarrow.parquet, vellum; from pyarrow.fs import FSSpecHandler, PyFileSystem; "
        "files = PyFileSystem(FSSpecHandler(fsspec.filesystem('vellum', volume=sys.argv[1], snapshot='HEAD'))); "
        f"{CLOCK}table = pyarrow.parquet.read_table('table.parquet', filesystem=files){TELL}",
        VIEW: f"import pyarrow.parquet; {CLOCK}table = pyarrow.parquet.read_table(place + '/table.parquet'){TELL}",
    },
}
MAKE_TABLE = """
import os, sys, numpy, pyarrow, pyarrow.parquet
rows = int(sys.argv[2]) * (1 << 20) // 64
columns = {f"c{number}": numpy.frombuffer(os.urandom(8 * rows), dtype="int64") for number in range(8)}
pyarrow.parquet.write_table(pyarrow.table(columns), sys.argv[1], compression="none", use_dictionary=False)
"""


def interpreter() -> str:
    """A Python that has the package."""
    path = os.environ.get("PYTHON") or shutil.which("python3")
    host.run(path, "-c", "import pyarrow, vellum")
    return path


def make_volume(run: Run, python: str):
    """A volume with the file and the table."""
    volume, block = run.folder("volume"), 1 << 20
    host.vellum_in(volume, "init", "-q")
    with open(volume / "large", "wb") as file:
        for _ in range(run.options.mib):
            file.write(os.urandom(block))
    host.run(python, "-c", MAKE_TABLE, volume / "table.parquet", run.options.mib)
    host.vellum_in(volume, "snapshot", "-q")
    return volume


def measure(run: Run):
    """All steps in turns."""
    python = interpreter()
    columns, versions = ["vellum", VIEW, CACHED], [host.vellum()]
    run.start(columns, floors=[VIEW, CACHED], cache="warm", python=host.run(python, "--version"), versions=versions)
    volume, mounts = make_volume(run, python), {tool: run.folder(tool.replace(" ", "-")) for tool in (VIEW, CACHED)}

    def sample(row, tool, step, place):
        with run.guard(row, tool):
            run.add(row, tool, float(host.run(python, "-c", f"import sys; {step}", place)))

    with viewed(volume, mounts[CACHED]) as cached:
        host.run("cat", cached / "large", cached / "table.parquet")
        for _ in run.rounds():
            for step, sides in STEPS.items():
                row = f"{step} of {run.options.mib} MiB" if VIEW in sides else step
                for tool in run.turns([*sides, CACHED] if VIEW in sides else sides):
                    if tool == "vellum":
                        sample(row, tool, sides[tool], volume)
                    elif tool == CACHED:
                        sample(row, tool, sides[VIEW], cached)
                    else:
                        with viewed(volume, mounts[VIEW]) as view:
                            sample(row, tool, sides[VIEW], view)


@contextlib.contextmanager
def viewed(volume, place):
    """A view of the snapshot."""
    host.vellum_in(volume, "view", "-q", "HEAD", place)
    try:
        yield place
    finally:
        host.run(host.vellum(), "umount", "-q", place)


CASE = Case(
    "python",
    "The package for Python beside a mount",
    measure,
    options=(Option("mib", 1024, "size of the file and of the table, MiB"),),
    rounds=5,
    short=("--rounds 1 --mib 32",),
)
