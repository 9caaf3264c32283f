"""What `against.py` says of two sides that agree, differ, or cannot be told apart."""

import math
import unittest

from against import BIG, NAMES, judge, likely


class Judging(unittest.TestCase):
    """Rounds in turns, and what they mean."""

    def verdict(self, ours, theirs, allowed=math.log(1 + BIG)):
        """The verdict alone."""
        return judge(ours, theirs, allowed)[2]

    def test_sides_that_agree_are_ok(self):
        self.assertEqual(self.verdict([100, 102, 99], [101, 100, 100]), "ok")
        self.assertEqual(self.verdict([92, 93, 92], [100, 100, 101], -math.log(NAMES)), "ok")

    def test_too_fast_is_as_wrong_as_too_slow(self):
        self.assertEqual(self.verdict([90, 91, 90], [100, 100, 100]), "WRONG")
        self.assertEqual(self.verdict([110, 111, 110], [100, 100, 100]), "WRONG")

    def test_rounds_that_disagree_get_no_verdict(self):
        self.assertEqual(self.verdict([100, 50, 200, 70, 140], [100, 100, 100, 100, 100]), "noisy")

    def test_a_slow_minute_spoils_nothing(self):
        self.assertEqual(self.verdict([100, 10, 100], [100, 10, 100]), "ok")

    def test_more_rounds_tell_what_few_cannot(self):
        ours = [100, 112, 91, 101, 99, 108, 93]
        self.assertEqual(self.verdict(ours, [100] * 7), "noisy")
        self.assertEqual(self.verdict(ours * 6, [100] * 42), "ok")

    def test_of_as_many_ratios_the_outermost_count_for_nothing(self):
        # The known limits of the sign test.
        spans = {3: (1, 3), 6: (1, 6), 7: (1, 7), 9: (2, 8), 15: (4, 12), 25: (8, 18)}
        for count, span in spans.items():
            self.assertEqual(likely(range(1, count + 1)), span, count)
