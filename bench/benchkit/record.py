"""A record: the samples of one run, and what a reader needs to judge them.

Every case makes one of these, as JSON; `report.py` makes all tables from them. A record holds samples, never
medians or ratios: what may be said of them is decided in one place, and can be decided again.

    {"format": 1, "name": …, "title": …, "command": … (or several: [...]), "time": …, "machine": {…}, "setting": {…},
     "columns": [tool, …], "ours": tool, "floors": [tool, …], "rows": [{"name", "group", "quantity", "unit", "better",
     "samples": {tool: [value of each round, or null]}}], "left_out": [{"row", "tool", "why"}]}
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

FORMAT = 1
# Units of samples. Tables choose their own multiples.
UNITS = ("s", "bytes", "per second", "bytes per second", "count")


class Record:
    """Samples by row and tool."""

    def __init__(self, name, title, *, columns, ours="vellum", floors=(), setting=None):
        self.head = {
            "format": FORMAT,
            "name": name,
            "title": title,
            "command": command(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "setting": setting or {},
            "columns": list(columns),
            "ours": ours,
            "floors": list(floors),
        }
        self.rows = {}
        self.left_out = []

    def add(self, row, tool, value, *, group="", quantity="time", unit="s", better="less", number=None):
        """Notes a sample. `number` is its round; without it, the next one of this row and tool."""
        if unit not in UNITS:
            raise ValueError(f"no unit {unit}")
        entry = {"name": row, "group": group, "quantity": quantity, "unit": unit, "better": better, "samples": {}}
        samples = self.rows.setdefault(row_key(entry), entry)["samples"].setdefault(tool, [])
        number = len(samples) if number is None else number
        samples.extend([None] * (number + 1 - len(samples)))
        samples[number] = value

    def leave_out(self, row, tool, why):
        """Notes that a tool failed at something and is not in the figures."""
        self.left_out.append({"row": row, "tool": tool, "why": str(why)})
        print(f"{row}: {tool} fails and is left out: {why}", file=sys.stderr)

    def whole(self) -> dict:
        """All of it, as it is written."""
        head = dict(self.head, load_at_end=os.getloadavg()[0])
        return head | {"rows": list(self.rows.values()), "left_out": self.left_out}

    def keep(self, path):
        """Writes it, so that a broken run leaves nothing half. Rows that only the old file has stay."""
        if path is None:
            return
        path, whole = Path(path), self.whole()
        if path.is_file():
            whole = merged(load(path), whole)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(whole, indent=1) + "\n")
        scratch.replace(path)


def row_key(row: dict) -> tuple:
    """What distinguishes a row from all others of its record."""
    return row["group"], row["name"], row["quantity"]


def commands_of(whole: dict) -> list:
    """The commands that made a record."""
    return [whole["command"]] if isinstance(whole["command"], str) else whole["command"]


def merged(old: dict, new: dict) -> dict:
    """`new`, with what only `old` has: a long record is measured in parts."""
    again = {row_key(row) for row in new["rows"]}
    kept = [row for row in old["rows"] if row_key(row) not in again]
    columns = list(dict.fromkeys(old["columns"] + new["columns"]))
    commands = list(dict.fromkeys([*(commands_of(old) if kept else []), *commands_of(new)]))
    command = commands if len(commands) > 1 else commands[0]
    return new | {"rows": kept + new["rows"], "columns": columns, "command": command}


def load(path) -> dict:
    """A record, if it is one of this format."""
    path = Path(path)
    try:
        whole = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    if whole.get("format") != FORMAT:
        sys.exit(f"{path}: a record of format {whole.get('format')}, but this script reads format {FORMAT}")
    return whole


def command() -> str:
    """What was typed, as a reader can type it again; where the record went is nobody's affair."""
    script = os.path.relpath(sys.argv[0], Path(__file__).parent.parent.parent)
    arguments = sys.argv[1:]
    if "--json" in arguments:
        place = arguments.index("--json")
        del arguments[place : place + 2]
    return shlex.join([script, *arguments])


def machine() -> dict:
    """Processors, kernel, memory, and how busy it was when the run began."""
    names = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "processor": names[0].strip() if names else platform.machine(),
        "processors": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }


def filesystem(path) -> str:
    """The kind of filesystem on which `path` lies, and what is under it."""
    asked = ["findmnt", "-n", "-o", "FSTYPE,SOURCE", "--target", str(path)]
    found = subprocess.run(asked, capture_output=True, text=True)
    return " on ".join(found.stdout.split()) or "unknown"


def requests() -> str:
    """How the kernel hands requests to a mount that is made now."""
    try:
        rings = Path("/sys/module/fuse/parameters/enable_uring").read_text().strip() == "Y"
    except OSError:
        rings = False
    return "by rings (FUSE over io_uring)" if rings else "through the device"


def versions(programs) -> str:
    """What some programs say of themselves."""
    return ", ".join(filter(None, map(version, programs)))


def version(program) -> str:
    """The first line of what a program says of itself, or nothing."""
    for flag in ("--version", "version", "-version"):
        try:
            found = subprocess.run([program, flag], capture_output=True, text=True, timeout=20)
        except OSError:
            return ""
        if found.returncode == 0 and found.stdout:
            return found.stdout.splitlines()[0]
    return "unknown"
