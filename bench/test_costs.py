"""Costs: from counted requests and bytes to money."""

import unittest

import costs
from benchkit import record

SERVICE = {
    "name": "Some Service",
    "source": "its page",
    "date": "2026-11-25",
    "out": 0.09,
    "requests": {"PUT": 5.0, "LIST": 5.0, "GET": 0.4, "DELETE": 0.0},
}


def whole():
    """A push by one tool, and a read by two."""
    kept = record.Record("x", "", columns=["vellum", "other"])
    for quantity, count in (("PUT requests", 100), ("POST requests", 100), ("DELETE requests", 5), ("requests", 205)):
        kept.add("push", "vellum", count, group="g", quantity=quantity, unit="count")
    for tool, count, size in (("vellum", 10, 1e9), ("other", 1000, 2e9)):
        kept.add("read", tool, count, group="g", quantity="GET requests", unit="count")
        kept.add("read", tool, size, group="g", quantity="received", unit="bytes")
    return kept.whole()


class Costs(unittest.TestCase):
    """One service."""

    def test_requests_are_charged_by_kind(self):
        requests = costs.count_requests(whole(), "g", "push", "vellum")
        self.assertEqual(requests, {"PUT": 200, "DELETE": 5})
        self.assertAlmostEqual(costs.cost(SERVICE, requests, 0), 200 * 5 / 1e6)

    def test_bytes_that_leave_are_charged(self):
        self.assertAlmostEqual(costs.cost(SERVICE, {"GET": 10}, 1e9), 10 * 0.4 / 1e6 + 0.09)

    def test_a_request_without_a_price_is_refused(self):
        with self.assertRaises(SystemExit):
            costs.cost(SERVICE, {"SELECT": 1}, 0)

    def test_the_table_has_a_row_for_each_work_and_tool(self):
        lines = costs.table(whole(), [SERVICE], "g", "read;push").splitlines()
        self.assertEqual(lines[0], "| 1,000 times | tool | Some Service |")
        rows = ["| read | vellum | $90.00 |", "| read | other | $180.40 |", "| push | vellum | $1.00 |"]
        self.assertEqual(lines[2:5], rows)
        self.assertEqual(lines[-1], "List prices: Some Service: its page, 2026-11-25.")

    def test_small_sums_keep_digits_that_say_something(self):
        shown = [costs.dollars(value) for value in (0, 0.00001, 0.00012, 0.056, 1.5)]
        self.assertEqual(shown, ["$0", "< $0.0001", "$0.00012", "$0.056", "$1.50"])

    def test_the_list_of_prices_has_every_kind_of_every_service(self):
        for service in costs.load_prices():
            self.assertEqual(set(service["requests"]), {"PUT", "LIST", "GET", "DELETE"})
            self.assertTrue(service["source"] and service["date"] and "stored" in service)
