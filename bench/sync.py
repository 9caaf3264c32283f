#!/usr/bin/env python3
"""vellum sync beside rsync and cp, in turns, so that drift of a busy machine hits all alike.

usage: VELLUM=path/to/vellum sync.py WORKDIR [ROUNDS]

WORKDIR lies on the filesystem that is measured. Prints medians in milliseconds, and for each rival the median of the
ratios of the rounds: above 1, vellum is faster. What a tool wrote is compared with the source in the first round.
"""
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

VELLUM = os.environ.get("VELLUM", "vellum")
TOOLS = {
    "vellum": [VELLUM, "sync", "-q", "-a"],
    "rsync": ["rsync", "-a"],
    "cp": ["cp", "-a", "--reflink=auto"],
}


def make_sources(top):
    rng = random.Random(1)

    def tree(name, files):
        for path, size in files:
            path = os.path.join(top, name, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(rng.randbytes(size))

    tree("small", [(f"f{i}", rng.randint(1000, 10000)) for i in range(1000)])
    tree("medium", [(f"f{i}", 100_000) for i in range(100)])
    tree("large", [("f", 100 << 20)])
    tree("nested", [(f"a{i % 5}/b{i % 10}/c{i % 20}/f{i}", 5000) for i in range(200)])
    tree("many", [(f"d{i % 20}/f{i}", 4096) for i in range(20_000)])


def command(tool, source, target):
    return TOOLS[tool] + [source + ("/." if tool == "cp" else "/"), target + "/"]


def patched(source, old):
    """A copy of 100 MB of which 1 MB differs."""
    shutil.copy2(source, old)
    with open(old, "r+b") as file:
        file.seek(50 << 20)
        file.write(b"x" * (1 << 20))
    os.utime(old, (1, 1))


def one(case, tool, source, target, first):
    if case.startswith("again"):
        if first:
            subprocess.run(command("cp", source, target), check=True)
            subprocess.run(command(tool, source, target), check=True)
    else:
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        if case == "changed":
            patched(os.path.join(source, "f"), os.path.join(target, "f"))
    words = command(tool, source, target)
    if tool == "cp" and case.startswith("again"):
        words.insert(1, "-u")
    os.sync()
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    spent = time.perf_counter() - start
    if first:
        subprocess.run(["diff", "-r", source, target], check=True)
    return spent * 1000


def main():
    work, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    sources = os.path.join(work, "sources")
    make_sources(sources)
    cases = {name: name for name in ("small", "medium", "large", "nested", "many")}
    cases |= {"changed": "large", "again-1000": "small", "again-20000": "many"}
    for case, name in cases.items():
        times = {tool: [] for tool in TOOLS}
        for turn in range(rounds + 1):
            order = list(TOOLS)
            for tool in order[turn % len(order):] + order[:turn % len(order)]:
                target = os.path.join(work, f"{case}.{tool}")
                os.makedirs(target, exist_ok=True)
                spent = one(case, tool, os.path.join(sources, name), target, turn == 0)
                if turn:
                    times[tool].append(spent)
        row = [f"{case:12}"] + [f"{tool} {statistics.median(times[tool]):8.1f}" for tool in TOOLS]
        for rival in list(TOOLS)[1:]:
            ratio = statistics.median(b / a for a, b in zip(times["vellum"], times[rival]))
            row.append(f"{rival}/vellum {ratio:5.2f}")
        print("  ".join(row), flush=True)
        for tool in TOOLS:
            shutil.rmtree(os.path.join(work, f"{case}.{tool}"), ignore_errors=True)
    shutil.rmtree(sources)


if __name__ == "__main__":
    main()
