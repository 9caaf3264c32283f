"""Limits: what is said of figures, and of machines on which they say little."""

import json
import tempfile
import unittest
from pathlib import Path

import regression
from benchkit import host, machine
from benchkit.machine import State
from benchkit.scene import Scene

REFERENCE = {"machine": "x", "copy": 1000, "calls": 1000}
LIMIT = {"name": "a", "scene": "s", "command": "true", "limit": 2, "unit": "s", "why": "somebody said so"}


class Verdicts(unittest.TestCase):
    """Of figures."""

    def test_a_figure_at_its_limit_keeps_it(self):
        self.assertEqual(regression.verdict(LIMIT, 2, True), regression.KEPT)
        self.assertEqual(regression.verdict(LIMIT, 2.01, True), regression.OVER)

    def test_what_is_known_to_fail_is_not_red_and_told_when_it_is_kept(self):
        known = LIMIT | {"known_failing": {"figure": 3, "why": "it waits"}}
        self.assertEqual(regression.verdict(known, 5, True), regression.KNOWN)
        self.assertEqual(regression.verdict(known, 1, True), regression.KEPT_AGAIN)
        self.assertFalse(regression.is_red([regression.KNOWN, regression.KEPT_AGAIN, regression.NOT_JUDGED]))

    def test_nothing_is_judged_on_a_machine_in_doubt_but_failures_are_red(self):
        self.assertEqual(regression.verdict(LIMIT, 5, False), regression.NOT_JUDGED)
        self.assertEqual(regression.verdict(LIMIT, None, False), regression.FAILED)
        self.assertTrue(regression.is_red([regression.KEPT, regression.FAILED]))
        self.assertTrue(regression.is_red([regression.KEPT, regression.OVER]))

    def test_a_figure_is_the_median_and_stands_beside_its_limit(self):
        [row] = regression.rows([LIMIT], {"a": [9.0, 1.0, 1.5]}, True)
        self.assertEqual((row["figure"], row["verdict"]), (1.5, regression.KEPT))
        self.assertIn("| a | 1.50 s | 2.00 s | kept | somebody said so |", regression.table([row]))


class Machines(unittest.TestCase):
    """That are slow, or busy."""

    def doubts(self, **other):
        return machine.doubts([State(1000, 1000, 0.1), State(**{"copy": 900, "calls": 900, "load": 0.2} | other)], REFERENCE)

    def test_half_of_the_reference_is_enough(self):
        self.assertEqual(self.doubts(copy=500), [])
        self.assertIn("49% of the speed", self.doubts(copy=490)[0])
        self.assertEqual(len(self.doubts(copy=1, calls=1)), 2)

    def test_a_busy_machine_tells_nothing(self):
        self.assertEqual(self.doubts(load=2.0), [])
        self.assertIn("10.0 for each processor", self.doubts(load=10.0)[0])


class Scenes(unittest.TestCase):
    """Trees and steps."""

    def setUp(self):
        self.work = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_steps_run_in_order_and_nothing_stays(self):
        told = {
            "prepare": ["mkdir {work}/place"], "where": "{work}/place", "files": 3, "bytes": 5, "ends": [".a", ".b"],
            "then": ["cp -r {work}/place {new}"], "finish": [f"sh -c 'ls {{work}}/place/* > {self.work}/seen'"],
        }
        with Scene(told, self.work / "scene") as scene:
            self.assertEqual(len(list((scene.work / "new0").rglob("f*"))), 3)
            scene.next_round()
            self.assertFalse((scene.work / "new0").exists())
            self.assertEqual(scene.words("a {new}")[1], str(scene.work / "new1"))
        self.assertEqual((self.work / "seen").read_text().split(), ["f00000.a", "f00001.b", "f00002.a"])
        self.assertFalse((self.work / "scene").exists())

    def test_what_cannot_be_prepared_is_finished_all_the_same(self):
        with self.assertRaises(host.CommandFailed):
            with Scene({"prepare": ["false"], "finish": [f"touch {self.work}/seen"]}, self.work / "scene"):
                self.fail("it was not prepared")
        self.assertTrue((self.work / "seen").exists())

    def test_levels_are_one_below_the_other(self):
        scene = Scene({"levels": True}, self.work)
        self.assertEqual([scene.place(number) for number in (0, 2)], ["f00000", "level00/level01/f00002"])

    def test_every_limit_has_its_scene_and_its_reason(self):
        told = json.loads(regression.LIMITS.read_text())
        for limit in told["limits"]:
            self.assertIn(limit["scene"], told["scenes"], limit["name"])
            self.assertTrue(limit["why"] and limit["limit"] > 0 and limit["unit"] in ("s", "bytes"), limit["name"])
            if known := limit.get("known_failing"):
                self.assertTrue(known["why"] and known["figure"] > limit["limit"], limit["name"])
        self.assertEqual(len({limit["name"] for limit in told["limits"]}), len(told["limits"]))
