"""Tests of what is computed of a burst."""

import unittest
from types import SimpleNamespace

import burst
import real_run


def options(**more):
    one = {"base": 10.0, "factor": 20, "before": 5, "burst": 20, "after": 5, "members": 3, "most": 8}
    one |= {"policy": "rules", "boots": 18, "cap": 0.1, "records": 9, "writes": 0.05, "objective_ms": 50}
    one["generator_processors"] = 1.2
    return SimpleNamespace(**(one | more))


def seconds(done):
    one = options()
    return [
        {"second": at + 1.0, "time": 1001.0 + at, "offered": burst.offered(one, at), "done": done(at), "p99_ms": 9.0,
         "idle": 0.5, "box_idle": 0.3, "failed": 0, "absent": 0, "wrong": 0, "unstarted": 0}
        for at in range(30)
    ]


def seen(when, **states):
    machines = [
        {"token": f"{state}-{place}", "state": state} for state, count in states.items() for place in range(count)
    ]
    return when, {"machines": machines, "decisions": [], "capacity": {"3": {}} if when > 1003 else {}}


class Burst(unittest.TestCase):
    def test_the_schedule_rises_twentyfold_once(self):
        self.assertEqual(burst.schedule(options()), "steps:10x5,200x20,10x5")
        self.assertEqual([burst.offered(options(), at) for at in (0, 4.9, 5, 24.9, 25)], [10, 10, 200, 200, 10])

    def test_members_are_enough_when_they_keep_up_for_a_while(self):
        late = seconds(lambda at: 10 if at < 5 else 100 if at < 15 else 250)
        self.assertEqual(burst.enough_after(late, 5, 25), 9, "the mean of five seconds counts")
        at_once = seconds(lambda at: burst.offered(options(), at))
        self.assertEqual(burst.enough_after(at_once, 5, 25), 0)
        self.assertIsNone(burst.enough_after(seconds(lambda at: 100), 5, 25))

    def test_a_second_is_out_if_too_little_was_done_or_too_late(self):
        calm = seconds(lambda at: 10)[0]
        self.assertTrue(burst.is_within(calm, 50))
        for wrong in ({"done": 9}, {"p99_ms": 51.0}, {"p99_ms": None}):
            self.assertFalse(burst.is_within(calm | wrong, 50))

    def test_machines_are_paid_for_until_the_next_look_and_only_within_the_run(self):
        self.assertAlmostEqual(burst.machine_minutes([(0, 3), (60, 4), (120, 3)], 30, 180), (90 + 240 + 180) / 60)

    def test_a_report_tells_sizes_joins_and_what_is_out(self):
        told = [seen(999, serving=3), seen(1008, serving=3, joining=1), seen(1012, serving=5), seen(1029, serving=4)]
        told[1][1]["machines"][3]["token"] = told[2][1]["machines"][3]["token"] = "x"
        totals = {"done": 1, "failed": 0, "absent": 0, "wrong": 0, "unstarted": 7}
        late = seconds(lambda at: 10 if at < 5 else 100 if at < 15 else 250)
        report = burst.summed(options(), late, totals, told)
        self.assertEqual(report["members_seen"], {"before": 3, "most": 5, "end": 4})
        self.assertEqual((report["out_s"], report["joins_s"], report["enough_members"]), (10, [4], 5))
        self.assertFalse(report["learned_before_burst"])
        self.assertEqual(report["sizes"], [(-1, 3), (12, 5), (29, 4)])
        whole = report | {"sweep": {"absent": 0, "wrong": 1}}
        row = "| rules | 3 → 5 → 4 | 9 | 10 | 0 | 7 | 0, 1 | 2.1 | valid |"
        self.assertEqual(burst.row(whole), row)

    def test_a_policy_has_rules_only_where_it_goes_by_them(self):
        self.assertIn("bound = 40", burst.policy(options(), "rules"))
        self.assertNotIn("bound", burst.policy(options(), "target", 3))

    def test_how_long_machines_took_and_what_members_did_is_told_to_the_simulation(self):
        life = ["requested", "booting", "joining", "joining", "serving", "draining", "draining", None]
        each = [{"measures": {"operations": {"value": value}}} for value in (10, 10, 40)]
        told = [
            (at, {"fleet": {"machines": [{"token": "a", "state": state}] if state else []}, "look": {"members": {"Ok": each}}})
            for at, state in enumerate(life)
        ]
        boots = real_run.spans(told, "requested".__eq__, lambda state: state not in ("requested", "booting"))
        joins = real_run.spans(told, "joining".__eq__, "serving".__eq__)
        drains = real_run.spans(told, "draining".__eq__, lambda state: state is None)
        self.assertEqual((boots, joins, drains), ([2], [2], [2]))
        self.assertEqual(real_run.works(told, [(0, 20)]), (3, 6), "of all, and of the busiest as if all did as much")
        unknown = [(0, {"fleet": {"machines": []}, "look": None})]
        self.assertEqual(real_run.works(unknown, [(0, 20)]), (None, None))


class RealRun(unittest.TestCase):
    def test_a_member_that_has_just_joined_measures_nothing_yet(self):
        busy = [{"id": f"n{at}", "measures": {"operations": {"value": 10.0 * at}}} for at in (1, 2, 3)]
        told = [(5, {"look": {"members": {"Ok": [*busy, {"id": "n4"}]}}}), (6, {"look": None})]
        self.assertEqual(real_run.works(told, [(0, 20.0)]), (3.0, 4.5))


if __name__ == "__main__":
    unittest.main()