"""The page of figures: what it takes from records, what it says where there is none, what it refuses."""

import tempfile
import unittest
from pathlib import Path

import report
from benchkit import record


def whole(quantity="time", unit="s", setting=None, name="filesystem", row="rename", **samples):
    """A record of one row."""
    kept = record.Record(name, "", columns=list(samples), ours="vellum", floors=["beneath"], setting=setting)
    for tool, values in samples.items():
        for value in values:
            kept.add(row, tool, value, quantity=quantity, unit=unit)
    return kept.whole()


class Page(unittest.TestCase):
    """From a template and records."""

    def setUp(self):
        self.records = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def made(self, template, **kept):
        for name, one in kept.items():
            (self.records / f"{name}.json").write_text(record.json.dumps(one))
        missing = []
        return report.rendered(template, self.records, missing).removeprefix(report.HEADER), missing

    def test_what_no_record_has_is_named(self):
        text, missing = self.made("a {{figure x row=y tool=vellum}}\n\n{{about x}}\n\nb")
        self.assertEqual(text, "a not measured\n\nb")
        self.assertEqual(missing, ["{{figure x row=y tool=vellum}}", "{{about x}}"])

    def test_a_tool_without_samples_was_not_measured(self):
        text, missing = self.made("{{figure x row=rename tool=cp}}", x=whole(vellum=[1.0]))
        self.assertEqual((text, len(missing)), ("not measured", 1))

    def test_what_misses_its_target_is_bold(self):
        slow, quick = whole(vellum=[3.0] * 3, beneath=[1.0] * 3), whole(vellum=[2.0] * 3, beneath=[1.0] * 3)
        wanted = "{{ratio x row=rename to=beneath}}"
        self.assertEqual(self.made(wanted, x=slow)[0], "**3.00 ×**")
        self.assertEqual(self.made(wanted, x=quick)[0], "2.00 ×")
        self.assertIn("| **3.00 ×** |", self.made("{{table x}}", x=slow)[0])

    def test_a_figure_of_ours_that_misses_its_target_is_bold(self):
        row = {"name": "remote_store", "row": "find, cold", "quantity": "requests", "unit": "count"}
        wanted = '{{figure x "row=find, cold" tool=vellum}}, {{figure x "row=find, cold" tool=restic}}'
        self.assertEqual(self.made(wanted, x=whole(**row, vellum=[11], restic=[12]))[0], "**11**, 12")
        self.assertEqual(self.made(wanted, x=whole(**row, vellum=[10], restic=[12]))[0], "10, 12")
        row["row"] = "grep -r, from the disk cache"
        wanted = wanted.replace("find, cold", row["row"])
        self.assertEqual(self.made(wanted, x=whole(**row, vellum=[1], restic=[1]))[0], "**1**, 1")

    def test_each_of_several_that_are_ours_has_a_target_of_its_own(self):
        listing = {"name": "gateways", "row": "list 100,000 entries", "nfs": [1.2] * 3, "webdav": [1.2] * 3}
        figures = ", ".join('{{figure x "row=list 100,000 entries" tool=%s}}' % tool for tool in ("nfs", "webdav", "view"))
        self.assertEqual(self.made(figures, x=whole(**listing, view=[9.0] * 3))[0], "**1.20 s**, 1.20 s, 9.00 s")
        listing["nfs"] = [0.9] * 3
        self.assertEqual(self.made(figures, x=whole(**listing, view=[9.0] * 3))[0], "900 ms, 1.20 s, 9.00 s")

    def test_a_ratio_may_be_to_the_best_of_some(self):
        kept = whole(vellum=[2.0] * 3, cp=[4.0] * 3, xcp=[1.0] * 3, rsync=[0.5] * 3)
        self.assertEqual(self.made("{{ratio x row=rename to=cp/xcp}}", x=kept)[0], "2.00 × (xcp)")
        self.assertEqual(self.made("{{ratio x row=rename to=best}}", x=kept)[0], "4.00 × (rsync)")
        head = self.made("{{table x to=cp/xcp,rsync without=cp,xcp}}", x=kept)[0].splitlines()[0]
        self.assertEqual(head, "|  | vellum | rsync | to cp, xcp | to rsync |")

    def test_memory_that_only_tells_the_size_of_the_interpreter_is_at_most_that(self):
        memory = {"quantity": "peak memory", "unit": "bytes"}
        figure = "{{figure x row=rename tool=vellum}}, {{ratio x row=rename to=cp}}"
        old = whole(**memory, vellum=[19 << 20], cp=[19 << 20])
        self.assertEqual(self.made(figure, x=old)[0], "≤ 19.0 MiB, not measured")
        new = whole(**memory, setting={"started by": "launch.c"}, vellum=[6 << 20], cp=[2 << 20])
        self.assertEqual(self.made(figure, x=new)[0], "6.00 MiB, 3.00 × (1 round)")

    def test_a_record_of_several_commands_names_them_all(self):
        first = whole(vellum=[1.0])
        second = whole(row="unlink", vellum=[1.0])
        first["command"], second["command"] = "one", "two"
        both = record.merged(first, second)
        self.assertEqual(both["command"], ["one", "two"])
        self.assertTrue(report.about(both).startswith("`one`, `two`, "))
        self.assertEqual(record.merged(both, second)["command"], ["one", "two"])
        self.assertEqual(record.merged(first, first)["command"], "one")


class Typed(unittest.TestCase):
    """Figures that no record knows."""

    def typed(self, text):
        return report.typed(f"How: 5 ms\n\n## Targets\n\n{text}")

    def test_running_text_has_none(self):
        for text in ("It takes 5 ms.", "It is 1.9 × as slow", "20 % of it", "300 MB/s", "5,000/s"):
            self.assertEqual(self.typed(text), [text])
        for text in ("Files of 4 KiB, 10,000 of them", "It takes {{figure x row=y tool=z}} and 2 processors"):
            self.assertEqual(self.typed(text), [])

    def test_targets_may_be_said(self):
        self.assertEqual(self.typed("Targets: 5 ms,\nand 2 × that"), [])
        self.assertEqual(self.typed("Targets: 5 ms\n\nand 2 × that"), ["and 2 × that"])

    def test_columns_of_ours_have_none(self):
        head = "| work | claimed | measured |\n|---|---|---|\n"
        self.assertEqual(self.typed(head + "| 1 MB read | 5 ms | {{figure x row=y tool=z}} |"), [])
        line = "| 1 MB read | 5 ms | 6 ms |"
        self.assertEqual(self.typed(head + line), [line])

    def test_the_page_itself_has_none(self):
        self.assertEqual(report.typed(report.TEMPLATE.read_text()), [])
