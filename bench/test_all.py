"""How all is measured: what fails stops nothing, and takes no record away."""

import json
import tempfile
import unittest
from pathlib import Path

import all as measuring_all
import record


def whole(**samples):
    """A record with a row for each sample."""
    kept = record.Record("x", "", columns=["vellum"])
    for row, value in samples.items():
        kept.add(row, "vellum", value)
    return kept.whole()


class Measuring(unittest.TestCase):
    """One measuring, with commands of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def script(self, text):
        """A command that is told as those of `bench` are."""
        path = self.folder / f"script-{len(list(self.folder.iterdir()))}.py"
        path.write_text(f"import sys\nplace = sys.argv[sys.argv.index('--json') + 1]\n{text}\n")
        return [str(path)]

    def writes(self, **samples):
        return self.script(f"open(place, 'w').write({json.dumps(whole(**samples))!r})")

    def measure(self, *scripts):
        one = measuring_all.Measuring("x", list(scripts), [])
        return measuring_all.measure(one, self.folder, self.folder, False)

    def rows(self):
        return [row["name"] for row in record.load(self.folder / "x.json")["rows"]]

    def test_a_record_takes_the_place_of_the_old_one(self):
        (self.folder / "x.json").write_text(json.dumps(whole(old=1.0)))
        self.assertEqual(self.measure(self.writes(new=2.0)), "")
        self.assertEqual(self.rows(), ["new"])

    def test_what_fails_takes_no_record_away(self):
        (self.folder / "x.json").write_text(json.dumps(whole(old=1.0)))
        self.assertIn("exit code 3", self.measure(self.script("sys.exit(3)")))
        self.assertEqual(self.rows(), ["old"])
        self.assertIn("exit code 3", self.measure(self.writes(new=2.0), self.script("sys.exit(3)")))
        self.assertEqual(self.rows(), ["old", "new"])

    def test_a_failure_stops_nothing_but_itself(self):
        failing = measuring_all.Measuring("first", [], [self.script("sys.exit(1)")])
        working = measuring_all.Measuring("second", [], [self.writes(new=2.0)])
        failed = measuring_all.every([failing, working], self.folder, self.folder, True)
        self.assertEqual(list(failed), ["first"])
        self.assertTrue((self.folder / "second.json").is_file())


class Lists(unittest.TestCase):
    """What is measured."""

    def test_every_record_of_the_page_is_made_by_one(self):
        template = (measuring_all.ROOT / "docs" / "benchmarks.in.md").read_text()
        import report

        named = {match.group(2).split()[0] for match in report.DIRECTIVE.finditer(template)}
        self.assertEqual(named, {one.name for one in measuring_all.measurings()})

    def test_records_go_where_they_are_told(self):
        words = measuring_all.command(["own.py", "x", "--", "bench", "x"], "there")
        self.assertEqual(words[2:], ["x", "--json", "there", "--", "bench", "x"])


if __name__ == "__main__":
    unittest.main()
