"""Counts of instructions: what is more than before, and what cannot be compared."""

import json
import unittest

import counts

HERE = {"compiler": "rustc 1", "valgrind": "valgrind-3", "C library": "x"}


class Verdicts(unittest.TestCase):
    """Of counts."""

    def test_more_is_what_exceeds_both_one_per_cent_and_ten_thousand(self):
        self.assertEqual(counts.verdict(10_100_001, 10_000_000, True), counts.MORE)
        self.assertEqual(counts.verdict(10_100_000, 10_000_000, True), counts.SAME)
        self.assertEqual(counts.verdict(110_000, 100_000, True), counts.SAME)
        self.assertEqual(counts.verdict(110_001, 100_000, True), counts.MORE)
        self.assertEqual(counts.verdict(50_000, 100_000, True), counts.SAME)

    def test_what_is_new_is_said_to_be(self):
        self.assertEqual(counts.verdict(1, None, True), counts.NEW)

    def test_another_compiler_or_valgrind_is_not_comparable(self):
        recorded = {"made_with": HERE, "counts": {"a": 100}}
        self.assertEqual(counts.compared(recorded, {"a": 10_000_000}, HERE)[0][-1], counts.MORE)
        for key in HERE:
            [row] = counts.compared(recorded, {"a": 10_000_000}, HERE | {key: "another"})
            self.assertEqual(row[-1], counts.NOT_COMPARABLE)

    def test_the_table_has_the_change(self):
        text = counts.table([("a", 1010, 1000, counts.SAME), ("b", 5, None, counts.NEW)])
        self.assertIn("| a | 1,010 | 1,000 | +1.00% | no more |", text)
        self.assertIn("| b | 5 | – | – | not recorded |", text)


class Lists(unittest.TestCase):
    """What is counted."""

    def test_every_command_has_its_scene_and_a_name_of_its_own(self):
        told = json.loads(counts.COUNTED.read_text())
        for command in told["commands"]:
            self.assertIn(command["scene"], told["scenes"], command["name"])
        names = [command["name"] for command in told["commands"]]
        self.assertEqual(len(set(names)), len(names))
        self.assertGreaterEqual(len(names), 24)

    def test_what_was_recorded_is_still_counted(self):
        told, recorded = (json.loads(path.read_text()) for path in (counts.COUNTED, counts.COUNTS))
        names = {command["name"] for command in told["commands"]} | {f"library: {name}" for name in told["operations"]}
        self.assertLessEqual(set(recorded["counts"]), names)
