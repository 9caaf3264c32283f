"""What is said of benches: from Criterion's folders to rows, and from rows to verdicts.

    python3 -m unittest discover -s bench
"""

import json
import tempfile
import unittest
from pathlib import Path

import commits
from benchkit import contest, criterion, measure, record

BASE, HEAD = "old", "new"


def measured(home, full_id, times, throughput=None):
    """A folder as Criterion leaves it: samples of ten iterations, in nanoseconds."""
    folder = home / full_id.replace("/", "_") / "new"
    folder.mkdir(parents=True)
    (folder / "benchmark.json").write_text(json.dumps({"full_id": full_id, "throughput": throughput}))
    (folder / "sample.json").write_text(json.dumps({"iters": [10.0] * len(times), "times": times}))


def row(base, head, better="less"):
    """A row with a sample of each side and round."""
    samples = {BASE: base, HEAD: head}
    return {"name": "get", "group": "map", "quantity": "time", "unit": "s", "better": better, "samples": samples}


class Folders(unittest.TestCase):
    """Criterion's folders."""

    def setUp(self):
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_times_are_seconds_for_one_iteration(self):
        measured(self.home, "map/get/near", [50.0, 70.0])
        [found] = criterion.benches(self.home)
        self.assertEqual((found.group, found.name, found.unit, found.better), ("map", "get/near", "s", "less"))
        self.assertEqual([round(each * 1e9, 6) for each in found.samples], [5.0, 7.0])

    def test_bytes_become_rates(self):
        measured(self.home, "log/append/4KiB", [40960.0], {"Bytes": 4096})
        [found] = criterion.benches(self.home)
        self.assertEqual((found.unit, found.better), ("bytes per second", "more"))
        self.assertAlmostEqual(found.samples[0], 1e9, delta=1)

    def test_figures_stand_beside_times(self):
        (self.home / "figures").mkdir()
        told = {"id": "map/apply/all", "quantity": "rewritten", "value": 59.3, "unit": "bytes"}
        (self.home / "figures" / "one.json").write_text(json.dumps(told))
        measured(self.home, "map/apply/all", [10.0])
        whole = record.Record("micro", "", columns=["vellum"])
        for found in criterion.benches(self.home):
            found.add_to(whole, "vellum")
        kinds = [(each["quantity"], each["samples"]["vellum"][0]) for each in whole.whole()["rows"]]
        self.assertEqual([kind for kind, _ in kinds], ["rewritten", "time"])
        self.assertEqual(kinds[0][1], 59.3)

    def test_counts_are_those_of_one_operation_and_no_times(self):
        measured(self.home / "allocations", "map/get/near", [30.0, 60.0])
        measured(self.home / "allocations", "map/put/many", [100.0], {"Elements": 5})
        measured(self.home / "allocations", "map/get/none", [0.001])
        measured(self.home, "map/get/near", [50.0])
        found = criterion.counts(self.home / "allocations", "allocations", "count")
        self.assertEqual([(each.name, each.samples) for each in found], [("get/near", [3.0]), ("get/none", [0.0]), ("put/many", [2.0])])
        self.assertEqual([each.quantity for each in criterion.benches(self.home)], ["time"])

    def test_what_was_measured_before_is_left_out(self):
        measured(self.home, "map/get/near", [50.0])
        later = (self.home / "map_get_near" / "new" / "benchmark.json").stat().st_mtime + 10
        self.assertEqual(criterion.benches(self.home, later), [])


class Verdicts(unittest.TestCase):
    """Two commits."""

    def verdict(self, *samples, **kind):
        return commits.verdict(row(*samples, **kind), BASE, HEAD)[1]

    def test_a_tenth_more_is_a_regression_if_rounds_agree(self):
        self.assertEqual(self.verdict([1.0, 1.0, 1.0], [1.2, 1.2, 1.21]), "REGRESSION")
        self.assertEqual(self.verdict([1.0, 1.0, 1.0], [1.05, 1.1, 1.09]), "OK")
        self.assertEqual(self.verdict([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]), "OK")

    def test_a_lower_rate_is_a_regression(self):
        self.assertEqual(self.verdict([120.0] * 3, [100.0] * 3, better="more"), "REGRESSION")
        self.assertEqual(self.verdict([100.0] * 3, [120.0] * 3, better="more"), "OK")

    def test_rounds_that_do_not_agree_tell_nothing(self):
        self.assertEqual(self.verdict([1.0, 1.0, 1.0], [0.9, 1.3, 1.6]), "UNCLEAR")

    def test_rounds_that_agree_on_worse_alone_tell_that(self):
        self.assertEqual(self.verdict([1.0, 1.0, 1.0], [1.5, 2.0, 3.0]), "REGRESSION")

    def test_a_bench_that_one_side_lacks_has_no_ratio(self):
        self.assertEqual(self.verdict([], [1.0]), "ONE SIDE ONLY")

    def test_each_round_begins_with_another_side(self):
        self.assertEqual([contest.order([BASE, HEAD], number)[0] for number in range(3)], [BASE, HEAD, BASE])


class Started(unittest.TestCase):
    """What one run of a program costs."""

    MIB = 1 << 20

    def setUp(self):
        self.log = Path(self.enterContext(tempfile.TemporaryDirectory()), "log")

    def shell(self, script, **how):
        return measure.run(["sh", "-c", script], log=self.log, **how)

    def test_a_program_that_takes_little_memory_shows_little(self):
        # This process is several times as large.
        self.assertLess(measure.run(["true"]).peak, 6 * self.MIB)

    def test_memory_that_it_takes_shows(self):
        taken = measure.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=50M", "count=1"]).peak
        self.assertTrue(50 * self.MIB < taken < 60 * self.MIB, taken)

    def test_words_stay_words_and_output_goes_to_the_log(self):
        cost = measure.run(["printf", "%s|", "a b", "", "$HOME"], log=self.log)
        self.assertEqual(self.log.read_text(), "a b||$HOME|")
        self.assertGreater(cost.wall, 0)

    def test_directory_and_environment_are_those_that_were_asked_for(self):
        self.shell('printf %s "$PWD $WORD"', cwd="/", env={"WORD": "x", "PATH": "/usr/bin:/bin"})
        self.assertEqual(self.log.read_text(), "/ x")

    def test_a_failure_is_told_with_what_was_printed(self):
        with self.assertRaisesRegex(measure.CommandFailed, r"exit code 7\n  \| why"):
            self.shell("echo why; exit 7")
        self.shell("exit 7", ok=(0, 7))
        with self.assertRaisesRegex(measure.CommandFailed, "exit code -9"):
            self.shell("kill -9 $$")

    def test_what_is_not_there_cannot_be_started(self):
        with self.assertRaisesRegex(measure.CommandFailed, "cannot be started"):
            measure.run(["/missing/program"])
