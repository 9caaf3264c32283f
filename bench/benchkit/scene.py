"""Scenes: trees and volumes that commands are run in, described by files such as `bench/limits.json`.

    {"prepare": [COMMAND…], "where": DIRECTORY, "files": N, "bytes": SIZE, "levels": false, "depth": 0,
     "ends": [".txt", ".log"], "then": [COMMAND…], "finish": [COMMAND…]}

`prepare` is run first, then files of random bytes are made in `where` (default: `{tree}`), then `then` is run. Steps of a
scene and of what is measured in it are command lines, in which stand `{tree}`, `{mount}` (an empty directory), `{work}`
(all of it), `{new}` (a path that does not exist, another one each time) and `{vellum}` (the binary, which is what the word
`vellum` at the beginning means, too). Deliberately absent: what is measured, and what is said of it.
"""

import os
import shlex
from pathlib import Path

from benchkit import host, trees

# Files in each directory of a scene.
FILES_PER_DIR = 100
# By how much the files of a scene are smaller in a try, and their number is.
SHORT_BYTES, SHORT_FILES = 1000, 10


class Scene:
    """One scene, from its first step to its last."""

    def __init__(self, told: dict, work: Path, short=False):
        self.told, self.work, self.number = told, work, 0
        self.files = max(told.get("files", 0) // SHORT_FILES, 2) if short else told.get("files", 0)
        self.bytes = max(told.get("bytes", 0) // SHORT_BYTES, 1) if short else told.get("bytes", 0)
        self.env = dict(os.environ, HOME=str(work / "home"), XDG_CACHE_HOME=str(work / "cache"))

    def __enter__(self):
        for name in ("home", "tree", "mount"):
            (self.work / name).mkdir(parents=True)
        try:
            self.run_all(self.told.get("prepare", []))
            where = Path(self.filled(self.told.get("where", "{tree}")))
            trees.files(self.files, [self.bytes], self.place, seed=19)(where)
            self.run_all(self.told.get("then", []))
        except BaseException:
            self.finish()
            raise
        return self

    def __exit__(self, *_):
        self.finish()

    def finish(self):
        """Runs the last steps, and removes everything."""
        try:
            self.run_all(self.told.get("finish", []))
        finally:
            host.remove(self.work)

    def place(self, number: int) -> str:
        """The place of one file: in a directory of a hundred, each one level below the one before, or spread over some levels."""
        ends = self.told.get("ends", [""])
        name = f"f{number:05}{ends[number % len(ends)]}"
        if self.told.get("levels"):
            return "/".join([f"level{depth:02}" for depth in range(number)] + [name])
        if depth := self.told.get("depth"):
            return "/".join([f"level{level:02}" for level in range(number % depth)] + [name])
        return f"d{number // FILES_PER_DIR:03}/{name}"

    def filled(self, text: str) -> str:
        """A command line with its places."""
        places = {"work": self.work, "tree": self.work / "tree", "mount": self.work / "mount"}
        places["new"] = self.work / f"new{self.number}"
        if "{vellum}" in text:
            places["vellum"] = host.vellum()
        for name, path in places.items():
            text = text.replace("{" + name + "}", str(path))
        return text

    def words(self, text: str) -> list:
        """The words of a command line."""
        words = [self.filled(word) for word in shlex.split(text)]
        return [host.vellum(), *words[1:]] if words[0] == "vellum" else words

    def run_all(self, lines):
        """Runs steps that are not measured."""
        for line in lines:
            host.run(*self.words(line), env=self.env)

    def next_round(self):
        """`{new}` is a path that does not exist again."""
        host.remove(self.work / f"new{self.number}")
        self.number += 1
