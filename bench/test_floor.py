"""What `cases/floor.py` unpacks, compares, and says of its targets."""

import tarfile
import tempfile
import unittest
from pathlib import Path

from benchkit import record
from cases import floor


def whole(**times):
    """A record of one row, and what each side took in each round."""
    kept = record.Record("floor", "", columns=list(times), ours="vellum")
    for side, samples in times.items():
        for number, value in enumerate(samples):
            kept.add("rename", side, value, group=floor.WORK, number=number)
            kept.add("rename", side, value / 2, group=floor.WORK, quantity=floor.PROCESSOR, number=number)
    return kept.whole()


class Targets(unittest.TestCase):
    """What is said below the tables."""

    def test_a_ratio_is_met_or_missed(self):
        met = floor.verdicts(whole(null=[20e-6] * 3, vellum=[27e-6] * 3))
        self.assertEqual(
            met,
            "rename: 1.35 ×, least by least 1.35 ×; target 1.4 ×: met; processor time 13.5 µs against 10.0 µs\n",
        )
        self.assertIn("MISSED", floor.verdicts(whole(null=[20e-6] * 3, vellum=[30e-6] * 3)))

    def test_rounds_that_others_disturbed_spoil_no_least(self):
        said = floor.verdicts(whole(null=[20e-6, 20e-6, 50e-6], vellum=[90e-6, 26e-6, 95e-6]))
        self.assertIn("least by least 1.30 ×; target 1.4 ×: met", said)


class Sides(unittest.TestCase):
    """What is compared."""

    def test_one_binary_has_no_name_and_several_have(self):
        self.assertEqual(list(floor.binaries("/x/vellum")), ["vellum"])
        self.assertEqual(floor.binaries("before=/a after=/b"), {"before": "/a", "after": "/b"})

    def test_the_archive_is_the_same_each_time(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in "ab"]
            for path in paths:
                floor.make_archive(path, 50)
            self.assertEqual(*(path.read_bytes() for path in paths))
            with tarfile.open(paths[0]) as tar:
                kinds = [entry.isdir() for entry in tar]
        self.assertEqual((len(kinds), sum(kinds)), (53, 3))
