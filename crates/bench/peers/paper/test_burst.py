"""Tests of what is computed of a burst."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import burst
import engine_hbase_machines
import fleet
import load
import real_run
from engine_hbase_machines import HBaseMachines
from figures import whole
from load import course


def options(**more):
    one = {"base": 10.0, "factor": 20, "before": 5, "burst": 20, "after": 5, "members": 3, "most": 8}
    one |= {"engine": "tontine", "policy": "rules", "boots": 18, "cap": 0.1, "records": 9, "writes": 0.05, "objective_ms": 50}
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
        self.assertEqual(course(burst.steps(options())), "10x5,200x20,10x5")
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
        totals = {"done": 1, "failed": 0, "absent": 0, "wrong": 0, "stale": 2, "unstarted": 7}
        late = seconds(lambda at: 10 if at < 5 else 100 if at < 15 else 250)
        report = burst.summed(options(), late, totals, told)
        self.assertEqual(report["members_seen"], {"before": 3, "most": 5, "end": 4})
        self.assertEqual((report["out_s"], report["joins_s"], report["enough_members"]), (10, [4], 5))
        self.assertFalse(report["learned_before_burst"])
        self.assertEqual(report["sizes"], [(-1, 3), (12, 5), (29, 4)])
        whole = report | {"sweep": {"absent": 0, "wrong": 1}}
        row = "| tontine, rules | 3 → 5 → 4 | 9 | 10 | 0 | 7 | 0, 1, 2 | 2.1 | valid |"
        self.assertEqual(burst.row(whole), row)

    def test_a_policy_has_rules_only_where_it_goes_by_them(self):
        self.assertIn("bound = 40", burst.policy(options(), "rules"))
        self.assertNotIn("bound", burst.policy(options(), "target", 3))

    def test_bounds_are_those_of_the_cap_where_the_adapter_tells_percents_of_processors(self):
        told = burst.policy(options(engine="hbase"), "rules", full=15.0)
        self.assertIn('engine = "hbase"', told)
        self.assertIn("bound = 6,", told)
        self.assertIn("bound = 2.25,", told)

    def test_each_engine_has_its_own_defaults_and_what_is_given_stays(self):
        def given(*words):
            return burst.filled(burst.options().parse_args(["--out", "x", *words]))

        one = given("--policy", "target")
        self.assertEqual((one.engine, one.base, one.most, one.cap, one.add), ("tontine", 1600, 8, 0.1, 5))
        one = given("--engine", "hbase", "--policy", "rules", "--most", "5")
        self.assertEqual((one.base, one.most, one.cap, str(one.scratch)), (360, 5, 0.15, "/dev/shm"))
        with self.assertRaisesRegex(SystemExit, "--policy rules"):
            given("--engine", "hbase", "--policy", "standby")

    def test_a_machine_boots_before_its_script_begins_its_member(self):
        for script in ("#!/bin/sh\nexec 'x' serve\n", "#!/bin/sh\n# One of two.\nset -eu\n"):
            answer = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"script": script}})
            came = subprocess.run(fleet.slowed(["printf", "%s\\n", answer], 18), capture_output=True, check=True).stdout
            self.assertEqual(json.loads(came)["result"]["script"], script.replace("sh\n", "sh\nsleep 18\n", 1))

    def test_members_that_serve_are_told_by_the_last_look(self):
        members = [{"id": "a", "state": "serving"}, {"id": "b", "state": "standby"}]
        self.assertEqual(fleet.serving({"members": {"Ok": members}}), ["a"])
        self.assertEqual((fleet.serving(None), fleet.serving({"members": {"Err": "no answer"}})), ([], []))

    def test_only_whole_seconds_of_the_schedule_count(self):
        told = [{"second": at} for at in (1.0, 2.01, 3.0, 3.02, 4.0, 5.0)]
        self.assertEqual([one["second"] for one in whole(told, 4)], [1.0, 2.01, 3.0, 4.0])

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


class Machines(unittest.TestCase):
    """What machines of HBase are told; no process is started."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        built = ("hbase/lib/hbase-server-2.jar", "load.jar", "elastic.jar", "tests/tontine/elastic/hbase/OwnAddress.class")
        for name in built:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()
        places = [(load, "JAR", "load.jar"), (engine_hbase_machines, "ADAPTER", "elastic.jar")]
        for module, name, place in [*places, (engine_hbase_machines, "TESTS", "tests")]:
            patch = mock.patch.object(module, name, self.folder / place)
            patch.start()
            self.addCleanup(patch.stop)
        more = {"engine": "hbase", "most": 6, "add": 3, "rebalance": "none", "engines": str(self.folder), "copies": 2}
        one = options(cap=0.15, value_bytes=1024, keys="uniform", **more)
        self.engine = HBaseMachines(one, self.folder / "run")
        self.command = [str(word) for word in self.engine.adapter()]

    def test_a_machine_finds_its_address_and_its_folder_in_its_environment(self):
        conf = Path(self.command[self.command.index("--member-config") + 1])
        pages = "".join(page.read_text() for page in conf.glob("*-site.xml"))
        for name, value in {
            "dfs.datanode.address": "${env.MACHINE_ADDRESS}:9866", "dfs.datanode.data.dir": "${env.MACHINE_DATA}/blocks",
            "hbase.regionserver.hostname": "${env.MACHINE_ADDRESS}", "hbase.regionserver.info.port": "16030",
            "hbase.zookeeper.quorum": "127.0.44.100", "dfs.hosts.exclude": str(self.engine.exclude),
        }.items():
            self.assertIn(f"<name>{name}</name><value>{value}</value>", pages)
        # EC2 takes 16 KiB with a machine, and so does the adapter.
        self.assertLess(len(pages), 12 << 10)

    def test_masters_know_nothing_of_machines(self):
        conf = self.engine.configured(self.engine.masters.folder)
        pages = "".join(page.read_text() for page in conf.glob("*-site.xml"))
        self.assertNotIn("MACHINE", pages)
        self.assertNotIn("OwnAddress", pages)

    def test_the_shell_of_a_machine_gets_its_own_settings_and_folder(self):
        script = self.command[self.command.index("--region-server") + 1]
        environment = {"HADOOP_CONF_DIR": "/m 1/conf", "MACHINE_DATA": "/m 1", "PATH": os.environ["PATH"]}
        told = subprocess.run(
            ["/bin/sh", "-c", "java() { printf '%s\\n' \"$@\"; }\n" + script.removeprefix("exec ")], env=environment,
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        self.assertIn("-Djava.io.tmpdir=/m 1", told)
        self.assertTrue(told[told.index("-cp") + 1].startswith("/m 1/conf:"))
        self.assertEqual(told[-1], "start")

    def test_full_is_what_the_adapter_says_of_a_member_at_its_cap(self):
        self.assertAlmostEqual(self.engine.processor_full, 15)
        self.assertEqual(self.engine.processors, 1)

    def test_the_generator_follows_the_schedule_with_even_arrivals(self):
        words = self.engine.generator.course(burst.steps(options()))
        self.assertEqual(words[words.index("--rate") + 1], "10x5,200x20,10x5")
        self.assertEqual(words[words.index("--arrivals") + 1], "even")
        self.assertEqual(words[words.index("--writes") + 1], "0.05")


if __name__ == "__main__":
    unittest.main()