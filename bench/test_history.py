"""Headlines by release and by machine: what is kept, what is refused, what is drawn."""

import json
import tempfile
import unittest
from pathlib import Path

import curves
import history
from benchkit import host, record

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-24)\n\n### Added\n\n## [0.1.0]\n"


def whole(load=0.1):
    """A record of the size and the start-up of the binary."""
    kept = record.Record("startup", "", columns=["vellum"])
    kept.add("start-up", "vellum", 0.002)
    kept.add("binary", "vellum", 12_000_000, quantity="space", unit="bytes")
    kept.head["machine"] |= {"load": load, "processors": 2, "processor": "Old"}
    return kept.whole()


def kept(version, value, machine="2 × Old"):
    """The record of a release with one headline."""
    figures = {"start-up": {"value": value, "unit": "s", "machine": machine, "date": "2026-11-27"}}
    return {"version": version, "commit": "c" * 40, "time": "2026-11-27T00:00:00Z", "figures": figures}


class Refusals(unittest.TestCase):
    """Nothing is kept of what nobody could repeat."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def refuses(self, text, call, *arguments):
        with self.assertRaisesRegex(history.Refused, text):
            call(*arguments)

    def test_versions_are_those_of_the_changelog(self):
        self.assertEqual(history.versions(CHANGELOG), ["0.2.0", "0.1.0"])
        history.check_version("0.2.0", CHANGELOG, self.folder)
        self.refuses("no release 0.3.0", history.check_version, "0.3.0", CHANGELOG, self.folder)
        self.refuses("no release ../x", history.check_version, "../x", CHANGELOG, self.folder)

    def test_a_release_has_one_record_and_what_is_unreleased_a_new_one_each_time(self):
        for version in ("0.1.0", "unreleased"):
            (self.folder / f"{version}.json").write_text("{}")
        self.refuses("is not replaced", history.check_version, "0.1.0", CHANGELOG, self.folder)
        history.check_version("unreleased", CHANGELOG, self.folder)

    def test_a_machine_has_one_record_and_a_plain_name(self):
        history.check_machine("lab.2026-12", self.folder, [whole()])
        (self.folder / "lab.2026-12.json").write_text("{}")
        self.refuses("another name", history.check_machine, "lab.2026-12", self.folder, [whole()])
        for name in ("", "../x", "My Machine", ".x"):
            self.refuses("no name of a machine", history.check_machine, name, self.folder, [whole()])

    def test_figures_of_a_busy_machine_are_not_taken(self):
        self.refuses("startup \\(load 0.3\\)", history.check_machine, "lab", self.folder, [whole(load=0.3)])
        self.refuses("no records", history.check_machine, "lab", self.folder, [])

    def test_a_work_tree_with_changes_tells_nothing(self):
        git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
        host.run("git", "init", "-q", self.folder)
        (self.folder / "file").write_text("1")
        self.refuses("\\(file, …\\)", history.commit_of, self.folder)
        host.run("git", "add", "file", cwd=self.folder)
        host.run(*git, "commit", "-qm", "one", cwd=self.folder)
        self.assertRegex(history.commit_of(self.folder), "^[0-9a-f]{40}$")
        (self.folder / "file").write_text("2")
        self.refuses("has changes", history.commit_of, self.folder)


class Headlines(unittest.TestCase):
    """What is kept of records."""

    def test_medians_are_kept_with_their_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "startup.json").write_text(json.dumps(whole()))
            found = history.headlines(Path(folder))
        self.assertEqual(set(found), {"start-up", "size of the binary"})
        self.assertEqual((found["start-up"]["value"], found["start-up"]["machine"]), (0.002, "2 × Old"))

    def test_every_headline_is_in_the_records_of_the_page(self):
        found = history.headlines(history.RECORDS)
        self.assertEqual([each["name"] for each in history.HEADLINES if each["name"] not in found], [])


class Curves(unittest.TestCase):
    """The page."""

    def test_releases_stand_in_their_order(self):
        with tempfile.TemporaryDirectory() as folder:
            for version in ("0.10.0", "unreleased", "0.9.0"):
                Path(folder, f"{version}.json").write_text(json.dumps(kept(version, 0.002)))
            text = curves.releases(Path(folder))
            self.assertIn("| | 0.9.0 | 0.10.0 | unreleased |", text)
            self.assertIn("| start-up | 2.00 ms | 2.00 ms | 2.00 ms |", text)
            self.assertIn("![start-up](history/start-up.svg)", text)
            self.assertEqual(list(curves.pictures(Path(folder))), ["start-up.svg"])

    def test_one_release_has_no_curve_and_none_no_table(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(curves.releases(Path(folder)), curves.NONE_YET)
            Path(folder, "0.1.0.json").write_text(json.dumps(kept("0.1.0", 1.0)))
            self.assertNotIn("svg", curves.releases(Path(folder)))
            self.assertEqual(curves.pictures(Path(folder)), {})

    def test_another_machine_breaks_the_curve(self):
        history_of = [kept("1", 1.0), kept("2", 2.0), kept("3", 0.5, "64 × New"), kept("4", 0.4, "64 × New")]
        self.assertEqual(curves.segments(history_of, "start-up"), [[(0, 1.0), (1, 2.0)], [(2, 0.5), (3, 0.4)]])
        drawn = curves.curve("start-up", history_of)
        self.assertEqual(drawn.count("<polyline"), 2)
        self.assertIn(">2.00 s<", drawn)

    def test_names_are_escaped(self):
        one = kept("1", 1.0)
        one["figures"] = {"a < b": one["figures"]["start-up"]}
        self.assertIn("a &lt; b", curves.curve("a < b", [one]))
