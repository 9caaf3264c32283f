#!/usr/bin/env python3
"""Every figure of docs/benchmarks.md, one measuring after another, unattended: hours, and about 60 GB of disk.

    bench/all.py                            all of them, most important first, into bench/records
    bench/all.py --only measuring backup    these alone, in the same order
    bench/all.py --list                     their names, and what each runs
    bench/all.py --short --out DIR          each with small numbers, to see that it works; no figures for anybody

Each writes its record when it is done; one that fails is told at the end (exit code 1), and the others go on. What they
print is kept beneath target/bench. A machine that does something else is refused (exit code 2) unless --anyway is given.

VELLUM names the binary (default: target/dist/vellum; `make measure` builds it); RESTIC, BORG, RUSTIC, RSYNC, SY, XCP, CPZ,
RCLONE and JUICEFS name rivals that are not on PATH; VELLUM_BENCH_CACHE says where trees and repositories go (default:
~/.cache/vellum-bench). Most need root. The sizes are those of docs/benchmarks.md.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import record

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RECORDS = HERE / "records"
CACHE = Path(os.environ.get("VELLUM_BENCH_CACHE", os.path.expanduser("~/.cache/vellum-bench")))
# Longest that one command may take, seconds: a mount that hangs does not keep the others from being measured.
PATIENCE = 4 * 3600
# Part of the processors' time that others may take.
BUSY = 0.10
# For so long it is looked whether they do, and so long one that has just worked may take to come to rest, seconds.
LOOK, REST = 3, 120
# Rivals, and how one comes by each.
RIVALS = {
    "restic": "apt-get install restic",
    "borg": "apt-get install borgbackup",
    "rustic": "cargo install rustic-rs --locked",
    "rsync": "apt-get install rsync",
    "rclone": "apt-get install rclone",
    "sy": "cargo install sy --locked",
    "xcp": "cargo install xcp --locked",
    "cpz": "cargo install cpz --locked",
    "juicefs": "its releases; JUICEFS names the binary",
}
# What measuring itself needs.
NEEDED = ("cc", "fio", "findmnt", "git", "go", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "ssh", "sshd", "tar")


@dataclass
class Measuring:
    """Commands that make one record: whole, and only to see that they work."""

    name: str
    whole: list
    short: list
    environment: dict = field(default_factory=dict)


def own(name, *arguments):
    """One of Vellum's own benches, as a record."""
    return ["own.py", name, "--", "bench", name, *arguments]


def backup(*arguments):
    return ["compare/backup.py", *arguments]


def measurings() -> list:
    """All of them: what the product promises first, what is only compared later."""
    engines, large = str(CACHE / "engines"), "registry,big4g"
    goroot = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True).stdout.strip() if shutil.which("go") else ""
    return [
        Measuring(
            "filesystem",
            [["compare/filesystem.py", "--rounds", "3"]],
            [["compare/filesystem.py", "--rounds", "1", "--steps", "big,create,mkdir,rmdir,fsync"]],
        ),
        Measuring(
            "floor", [["floor.py"]], [["floor.py", "--rounds", "1", "--count", "200", "--files", "100"]]
        ),
        Measuring(
            "space",
            [backup("--rounds", "3", "--trees", "wheels,git", "--ops", "first")],
            [backup("--rounds", "1", "--trees", "git", "--ops", "first")],
        ),
        Measuring(
            "restore",
            [backup("--rounds", "5", "--trees", "goroot,wheels,small100k", "--ops", "first,restore")],
            [backup("--rounds", "1", "--trees", "goroot", "--ops", "first,restore")],
        ),
        Measuring("mounted", [["mounted.py"]], [["mounted.py", "--sizes", "10,1000", "--runs", "1"]]),
        Measuring("unpacked", [["unpacked.py"]], [["unpacked.py", "--files", "1000", "--runs", "1"]]),
        Measuring(
            "sync",
            [["compare/sync.py", "--rounds", "5", "--huge"]],
            [["compare/sync.py", "--rounds", "1", "--filesystems", "ext4", "--cases", "1,000 files"]],
        ),
        Measuring(
            "sync_remote",
            [["compare/sync_remote.py", "--rounds", "3"]],
            [["compare/sync_remote.py", "--rounds", "1", "--rows", "same"]],
        ),
        Measuring(
            "measuring", [["measuring.py"]], [["measuring.py", "--rounds", "1", "--count", "500", "--seconds", "1"]]
        ),
        Measuring("snapshots", [["snapshots.py"]], [["snapshots.py", "--snapshots", "30,120", "--rounds", "1"]]),
        Measuring("hydrate", [["hydrate.py"]], [["hydrate.py", "--runs", "1"]]),
        Measuring("publishing", [["publishing.py"]], [["publishing.py", "--rounds", "1"]]),
        Measuring(
            "live_engines",
            [["compare/engines.py"]],
            [["compare/engines.py", "--rounds", "1", "--transactions", "2000", "--durable", "20"]],
        ),
        Measuring("startup", [["startup.py"]], [["startup.py"]]),
        Measuring(
            "pipeline",
            [own("pipeline", "--sizes", "64K,1M,10M", goroot)],
            [own("pipeline", "--sizes", "64K", str(HERE))],
        ),
        Measuring(
            "engines",
            [
                own("engines", engines, "--sizes", "1G", "--counts", "100"),
                own("engines", engines, "--sizes", "10G", "--counts", "1000"),
                own("engines", engines, "--sizes", "10M", "--counts", "10000"),
                own("engines", engines, "--sizes", "1M", "--counts", "1000"),
                own("engines", engines, "--sizes", "100K", "--counts", "100"),
            ],
            [own("engines", engines, "--sizes", "1M", "--counts", "10")],
        ),
        Measuring(
            "backup",
            [
                backup("--rounds", "5", "--trees", "goroot,small100k,wheels"),
                backup("--rounds", "3", "--trees", "git,photos,node", "--ops", "first"),
                backup("--rounds", "3", "--trees", large),
                backup("--rounds", "1", "--trees", "small1m", "--ops", "first"),
            ],
            [backup("--rounds", "1", "--trees", "goroot", "--ops", "first")],
        ),
        # Every structure by itself, the map at the size for which there are targets.
        Measuring(
            "micro",
            [["micro.py"]],
            [["micro.py", "--quick", "--package", "vellum-host", "--package", "vellum-fuse"]],
            {"VELLUM_BENCH_KEYS": os.environ.get("VELLUM_BENCH_KEYS", "10000000")},
        ),
    ]


def command(words, scratch) -> list:
    """What is run: the record goes to `scratch`."""
    script, *rest = words
    place = rest.index("--") if "--" in rest else len(rest)
    return [sys.executable, str(HERE / script), *rest[:place], "--json", str(scratch), *rest[place:]]


def run(words, environment, log) -> str:
    """Runs one to its end; what went wrong, or nothing."""
    print(f"$ {shlex.join(map(str, words))}", file=log, flush=True)
    started = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "start_new_session": True}
    try:
        child = subprocess.Popen(words, cwd=ROOT, env=os.environ | environment, **started)
    except OSError as error:
        return str(error)
    try:
        code = child.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        end(child)
        return f"not done after {duration(PATIENCE)}"
    except BaseException:
        end(child)
        raise
    return f"exit code {code}" if code else ""


def end(child):
    """Ends a command and what it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def keep(scratch: Path, path: Path, is_whole: bool):
    """Puts a new record in the place of the old one; of one that is not whole, what it has."""
    if not scratch.is_file():
        return
    if path.is_file() and not is_whole:
        kept = record.merged(record.load(path), record.load(scratch))
        scratch.write_text(record.json.dumps(kept, indent=1) + "\n")
    shutil.move(scratch, path)


def measure(one: Measuring, out: Path, logs: Path, short: bool) -> str:
    """All commands of one; what went wrong, or nothing."""
    wrong = ""
    with tempfile.TemporaryDirectory(dir=out) as folder, open(logs / f"{one.name}.log", "w") as log:
        scratch = Path(folder, f"{one.name}.json")
        for words in one.short if short else one.whole:
            wrong = wrong or run(command(words, scratch), one.environment, log)
        keep(scratch, out / f"{one.name}.json", not wrong)
    return f"{wrong}, see {log.name}" if wrong else ""


def used(seconds=LOOK) -> float:
    """The part of the processors' time that somebody uses now."""
    def look():
        fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        # Idle, and waiting for a disk, which is somebody's work, too, but leaves the processors alone.
        return sum(fields), fields[3] + fields[4]

    all_before, idle_before = look()
    time.sleep(seconds)
    all_now, idle_now = look()
    return 1 - (idle_now - idle_before) / max(all_now - all_before, 1)


def rests() -> bool:
    """Whether the machine has come to rest within a while."""
    end_of_patience = time.monotonic() + REST
    while used() > BUSY:
        if time.monotonic() > end_of_patience:
            return False
    return True


def missing() -> list:
    """What is not on this machine, and what that means."""
    def is_there(name):
        return shutil.which(os.environ.get(name.upper().replace(".", "_"), "") or name, path=search)

    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    told = [f"{name} is missing, and left out ({how})" for name, how in RIVALS.items() if not is_there(name)]
    return told + [f"{name} is missing: what needs it will fail" for name in NEEDED if not is_there(name)]


def duration(seconds) -> str:
    """A time as people say it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def every(chosen, out, logs, short) -> dict:
    """Runs them one after another; name → what went wrong."""
    failed = {}
    for one in chosen:
        if not short and not rests():
            print(f"{one.name}: the machine is busy; its figures may be noisy", file=sys.stderr, flush=True)
        start = time.monotonic()
        wrong = measure(one, out, logs, short)
        took = duration(time.monotonic() - start)
        print(f"{one.name}: {f'FAILED after {took}: {wrong}' if wrong else f'done in {took}'}", flush=True)
        if wrong:
            failed[one.name] = wrong
    return failed


def arguments(known):
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=known, help=f"of {', '.join(known)}")
    parser.add_argument("--out", type=Path, help="where records go (default: bench/records)")
    parser.add_argument("--short", action="store_true", help="small numbers, to see that each works; needs --out")
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    asked = parser.parse_args()
    if asked.short and not asked.out:
        parser.error("--short makes no figures for anybody: say with --out where they go")
    return asked


def main() -> int:
    """Measures, and says how it went."""
    everything = measurings()
    asked = arguments([one.name for one in everything])
    chosen = [one for one in everything if not asked.only or one.name in asked.only]
    if asked.list:
        for one in chosen:
            print(one.name, *(shlex.join(words) for words in (one.short if asked.short else one.whole)), sep="\n    ")
        return 0
    vellum = Path(os.environ.get("VELLUM", ROOT / "target/dist/vellum")).resolve()
    if not vellum.is_file():
        print(f"{vellum} is missing: `make measure` builds it, or VELLUM names another", file=sys.stderr)
        return 2
    os.environ["VELLUM"] = str(vellum)
    if not (asked.short or asked.anyway) and (part := used()) > BUSY:
        print(
            f"the machine is busy: {part:.0%} of its processors' time is used (load {os.getloadavg()[0]:.1f}). Figures would "
            "say little; try again later, or give --anyway",
            file=sys.stderr,
        )
        return 2
    out, logs = (asked.out or RECORDS).resolve(), ROOT / "target" / "bench"
    for folder in (out, logs, CACHE / "engines"):
        folder.mkdir(parents=True, exist_ok=True)
    for line in missing():
        print(line, file=sys.stderr)
    start = time.monotonic()
    failed = every(chosen, out, logs, asked.short)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} done in {duration(time.monotonic() - start)}, into {out}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
