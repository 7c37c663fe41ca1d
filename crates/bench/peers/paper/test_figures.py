"""Tests of what is computed of runs: `python3 -m unittest discover -s crates/bench/peers/paper`."""

import unittest

from figures import limits, quantile, size, streamed, table_row, verdict, window
from load import search, tontine_seconds
from members import bound
from plot import draw, round_step


def second(at, **more):
    return {"time": at, "offered": 100, "done": 90, "p50_ms": 2.0, "p99_ms": 9.0, "idle": 0.5, "box_idle": 0.2} | more


class Figures(unittest.TestCase):
    def test_a_quantile_is_one_of_the_values_and_unknown_ones_do_not_count(self):
        values = [None, 5, 1, 3, 2, 4]
        told = [quantile(values, share) for share in (0, 0.2, 0.5, 0.99, 1)]
        self.assertEqual(told, [1, 1, 3, 5, 5])
        self.assertEqual(quantile(range(1, 101), 0.99), 99)
        self.assertIsNone(quantile([None], 0.5))

    def test_bytes_are_read_with_their_units(self):
        self.assertEqual(size("5.5MiB"), 5_767_168)
        self.assertEqual(size("12 B"), 12)
        self.assertEqual(size("2.00 GB"), 2 << 30)
        with self.assertRaises(ValueError):
            size("many")

    def test_what_a_member_of_cassandra_receives_is_the_sum_of_its_streams(self):
        lines = [
            "INFO [Stream #a, ID#0] Prepare completed. Receiving 3 files(1.500MiB), sending 0 files(0.000KiB)",
            "INFO [Stream #a, ID#0] Prepare completed. Receiving 1 files(512.000KiB), sending 2 files(9.000MiB)",
            "INFO nothing of the kind",
        ]
        self.assertEqual(streamed(lines), 2 << 20)

    def test_a_window_has_whole_seconds_alone_and_their_medians(self):
        seconds = [second(at, p99_ms=at, absent=1) for at in range(1, 11)]
        part = window(seconds, 2.5, 7.2)
        self.assertEqual((part["seconds"], part["p99_ms"], part["p99_ms_worst"]), (4, 5, 7))
        self.assertEqual((part["done"], part["absent"]), (90, 4))
        self.assertIsNone(window(seconds, 20, 30)["done"])

    def test_a_run_is_invalid_where_generator_or_box_had_nothing_left(self):
        calm = [second(at, lag_p99_ms=1.0) for at in range(100)]
        self.assertEqual(limits(calm), [])
        busy = [one | ({"idle": 0.01} if one["time"] < 6 else {}) for one in calm]
        self.assertIn("the generator had less than 5 %", limits(busy)[0])
        self.assertEqual(limits(busy[2:]), [], "four of ninety-eight seconds may be so")
        self.assertIn("the box", limits([one | {"box_idle": 0.0} for one in calm])[0])
        self.assertIn("50 ms late", limits([one | {"lag_p99_ms": 50.0} for one in calm])[0])

    def test_one_absent_read_voids_a_run_also_in_the_sweep(self):
        part = window([second(1), second(2)], 0, 2)
        report = {
            "engine": "redis", "members": 4, "added": 4, "load": 0.9, "limits": [], "totals": {"absent": 0, "failed": 1234},
            "growth": {"what": "x", "seconds": 3, "bytes_moved": 2_500_000},
            "windows": {"before": part, "during": part, "after": window([], 0, 1)},
        }
        self.assertEqual(verdict(report), "valid")
        row = "| redis | 4+4 | 0.9 | x | 3.0 | 2.5 | 90 → 90 → - | 2.0 → 2.0 → - | 9.0 → 9.0 → - | 1,234 | - | valid |"
        self.assertEqual(table_row(report), row)
        self.assertIn("void", verdict(report | {"totals": {"absent": 1}}))
        self.assertIn("void", verdict(report | {"sweep": {"wrong": 1}}))
        self.assertIn("invalid", verdict(report | {"limits": ["the box"]}))

    def test_capacity_is_found_from_below_and_from_above(self):
        for first in (100, 1000, 9000):
            found = search(first, 1e6, lambda rate: rate <= 3456)
            self.assertTrue(3456 / 1.06 < found <= 3456, found)
        self.assertEqual(search(1000, 1e6, lambda rate: False), 0)

    def test_a_cap_is_a_share_of_ten_milliseconds_and_never_below_the_kernels_least(self):
        self.assertEqual(bound(0.25), (10_000, 2_500))
        self.assertEqual(bound(0.05), (20_000, 1_000))

    def test_what_a_report_of_tontine_counts_for_the_whole_run_is_lost_nowhere(self):
        report = {
            "client": {"cores": 0.4}, "other_cores": 1.0,
            "context": {"started_at": 100.0, "cores": 2},
            "outcomes": {"failed": {"a": 1}, "indeterminate": {"b": 2}, "missing": 3, "corrupt": 4, "unstarted": 0},
            "series": [{"second": at, "operations": 5, "p50_us": 1e3, "p99_us": 2e3} for at in range(3)],
        }
        told = tontine_seconds(report, 0.8)
        self.assertEqual([one["time"] for one in told], [101, 102, 103])
        self.assertEqual(sum(one["failed"] for one in told), 3)
        self.assertEqual(sum(one["absent"] + one["wrong"] for one in told), 7)
        self.assertAlmostEqual(told[0]["idle"], 0.5)

    def test_a_drawing_has_each_curve_and_survives_unknown_latencies(self):
        svg = draw("a < b", [second(1), second(2, p99_ms=None), second(3)], [(2, "+4")], [(0, 4), (2, 8)])
        self.assertEqual(svg.count("<polyline"), 4)
        self.assertIn("a &lt; b", svg)
        self.assertEqual([round_step(value) for value in (0.3, 1.1, 4.9, 12, 60)], [1, 2, 5, 20, 100])


if __name__ == "__main__":
    unittest.main()
