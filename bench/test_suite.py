"""How cases are run: their options, their rounds, and many of them: what fails stops nothing, and takes no record away."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

import cases
import report
from benchkit import backup_tools, record, runner, suite, trees
from benchkit.runner import Case, Option, Run


def whole(**samples):
    """A record with a row for each sample."""
    kept = record.Record("x", "", columns=["vellum"])
    for row, value in samples.items():
        kept.add(row, "vellum", value)
    return kept.whole()


class ManyCases(unittest.TestCase):
    """Records, each made by a command."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def script(self, text):
        """A command that gets the place of its record as cases do."""
        return [sys.executable, "-c", f"import sys\nplace = sys.argv[sys.argv.index('--json') + 1]\n{text}\n"]

    def writes(self, **samples):
        return f"open(place, 'w').write({json.dumps(whole(**samples))!r})"

    def measure(self, text):
        return suite.measure("x", self.script(text), self.folder, self.folder)

    def rows(self):
        return [row["name"] for row in record.load(self.folder / "x.json")["rows"]]

    def test_a_record_takes_the_place_of_the_old_one(self):
        (self.folder / "x.json").write_text(json.dumps(whole(old=1.0)))
        self.assertEqual(self.measure(self.writes(new=2.0)), "")
        self.assertEqual(self.rows(), ["new"])

    def test_what_fails_takes_no_record_away(self):
        (self.folder / "x.json").write_text(json.dumps(whole(old=1.0)))
        self.assertIn("exit code 3", self.measure("sys.exit(3)"))
        self.assertEqual(self.rows(), ["old"])
        self.assertIn("exit code 3", self.measure(f"{self.writes(new=2.0)}; sys.exit(3)"))
        self.assertEqual(self.rows(), ["old", "new"])

    def test_a_failure_stops_nothing_but_itself(self):
        commands = {"first": self.script("sys.exit(1)"), "second": self.script(self.writes(new=2.0))}
        with contextlib.redirect_stdout(io.StringIO()):
            failed = suite.measure_all(commands, self.folder, short=True, logs=self.folder)
        self.assertEqual(failed, ["first"])
        self.assertTrue((self.folder / "second.json").is_file())


class OneCase(unittest.TestCase):
    """Options, parts and rounds."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.seen = []

    def case(self, **more):
        def measure(run: Run):
            self.seen.append((run.options.size, run.options.deep, run.options.rounds))
            run.start(["vellum", "other"], cache="warm", started_by="nobody")
            run.add(f"before {run.options.size}", "vellum", 1.0)
            for number in run.rounds():
                for tool in run.turns(["vellum", "other"]):
                    with run.guard("row", tool):
                        if tool == "other" and number == 1:
                            raise runner.host.CommandFailed("it fell over")
                        run.add("row", tool, float(number))

        options = (Option("size", 3, "how much"), Option("deep", False, "how"))
        return Case("x", "X", measure, rounds=2, options=options, **more)

    def run_case(self, words, case=None, **how):
        words = [*words, "--work", str(self.folder)]
        with contextlib.redirect_stderr(io.StringIO()):
            return runner.run_case(case or self.case(), words, json=self.folder / "x.json", **how)

    def test_options_have_defaults_and_types(self):
        self.run_case([])
        self.run_case(["--size", "5", "--deep", "--rounds", "1"])
        self.assertEqual(self.seen, [(3, False, 2), (5, True, 1)])

    def test_without_options_every_part_is_measured_into_one_record(self):
        kept = self.run_case([], self.case(whole=("--size 1", "--size 2 --rounds 1"), short=("--size 9",)))
        self.assertEqual(self.seen, [(1, False, 2), (2, False, 1)])
        self.assertEqual({row["name"] for row in kept["rows"]}, {"before 1", "before 2", "row"})
        self.run_case([], self.case(short=("--size 9",)), short=True)
        self.assertEqual(self.seen[-1], (9, False, 2))

    def test_samples_belong_to_their_rounds_and_who_fails_is_named(self):
        kept = self.run_case([])
        samples = next(row for row in kept["rows"] if row["name"] == "row")["samples"]
        self.assertEqual(samples, {"vellum": [0.0, 1.0], "other": [0.0]})
        self.assertEqual([each["tool"] for each in kept["left_out"]], ["other"])
        self.assertEqual(list(kept["setting"]), ["filesystem", "cache", "started by"])


class Lists(unittest.TestCase):
    """What is measured."""

    def test_the_words_of_tools_name_places_that_there_are(self):
        for tool in backup_tools.TOOLS.values():
            for words in tool.words.values():
                self.assertNotIn("{", tool(Path("/work")).fill(words, tree="/tree"))

    def test_trees_are_the_same_each_time(self):
        with tempfile.TemporaryDirectory() as folder:
            made = [Path(folder, name) for name in "ab"]
            for root in made:
                trees.files(4, [0, 10], lambda number: f"d{number % 2}/f{number}", seed=1)(root)
            held = [[(path.name, path.read_bytes()) for path in sorted(root.rglob("f*"))] for root in made]
        self.assertEqual(*held)
        self.assertEqual([name for name, _ in held[0]], ["f0", "f2", "f1", "f3"])

    def test_every_record_of_the_page_is_made_by_a_case(self):
        template = report.TEMPLATE.read_text()
        named = {match.group(2).split()[0] for match in report.DIRECTIVE.finditer(template)}
        self.assertEqual(named, set(cases.ALL))

    def test_every_part_of_every_case_parses(self):
        for case in cases.ALL.values():
            self.assertTrue(case.parts([], short=True), case.name)
            self.assertTrue(case.parts([], short=False), case.name)

    def test_every_target_is_of_a_record(self):
        self.assertLessEqual({target["record"] for target in report.TARGETS}, set(cases.ALL))
