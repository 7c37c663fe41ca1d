"""Puts a real etcd cluster under the real controller, with the adapter of docs/guides/etcd-adapter.md.

    python3 examples/adapters/test_etcd_adapter.py target/release/tontine

Needs Linux, etcd and etcdctl. Every process is on loopback addresses of this run, and is ended by its id.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ADAPTER = HERE / "etcd_adapter.py"
PAGE = HERE.parent.parent / "docs" / "guides" / "etcd-adapter.md"
TONTINE = ""
WAIT_SECONDS = 60
# Two runs on one machine must not meet: each has its own network below 127.0.0.0/8.
NET = f"127.{64 + os.getpid() // 250 % 128}.{1 + os.getpid() % 250}"


def call(url, path, body):
    with urllib.request.urlopen(url + path, json.dumps(body).encode(), 3) as answer:
        return json.load(answer)


def plain(text):
    return base64.b64decode(text).decode()


def coded(text):
    return base64.b64encode(text.encode()).decode()


def url_of(number):
    return f"http://{NET}.{number}:2379"


def wait_for(what, condition):
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {WAIT_SECONDS} s")


class Traffic(threading.Thread):
    """Writes and reads through the founders, one key after the other, and checks each read."""

    def __init__(self):
        super().__init__()
        self.over, self.wrong, self.failed = threading.Event(), [], 0
        self.acked, self.tried = {}, {}

    def run(self):
        number = 0
        while not self.over.is_set():
            number += 1
            key, url = f"key-{number % 500:03}", url_of(1 + number % 3)
            try:
                self.tried[key] = str(number)
                call(url, "/v3/kv/put", {"key": coded(key), "value": coded(str(number))})
                self.acked[key] = str(number)
                found = call(url_of(1 + (number + 1) % 3), "/v3/kv/range", {"key": coded(key)})["kvs"][0]["value"]
                if plain(found) != str(number):
                    self.wrong.append((key, number, plain(found)))
                time.sleep(0.002)
            except OSError:  # A leader that is handed over refuses what is under way.
                self.failed += 1

    def end(self, test):
        self.over.set()
        self.join()
        test.assertEqual(self.wrong, [], "reads that did not show the write before them")
        test.assertGreater(len(self.acked), 100)
        test.assertLess(self.failed, 20)
        for founder in (1, 2, 3):
            # Each member for itself: what it holds, and not what a majority holds.
            whole = {"key": coded("key-"), "range_end": coded("key."), "serializable": True}
            found = call(url_of(founder), "/v3/kv/range", whole)["kvs"]
            kept = {plain(one["key"]): plain(one["value"]) for one in found}
            lost = [key for key in self.acked if kept.get(key) not in (self.acked[key], self.tried[key])]
            test.assertEqual(lost, [], f"keys that founder {founder} lacks")


class Cluster:
    """Three members, a controller, and what it makes."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="etcd-adapter-"))
        self.running = []
        self.coordination = f"dir:{self.folder}/coordination"
        self.command = [sys.executable, str(ADAPTER), "--endpoints", ",".join(url_of(one) for one in (1, 2, 3))]
        founders = ",".join(f"f{one}=http://{NET}.{one}:2380" for one in (1, 2, 3))
        for one in (1, 2, 3):
            self.start(f"f{one}", [
                "etcd", "--name", f"f{one}", "--data-dir", f"{self.folder}/f{one}",
                "--initial-cluster", founders,
                "--listen-peer-urls", f"http://{NET}.{one}:2380",
                "--initial-advertise-peer-urls", f"http://{NET}.{one}:2380",
                "--listen-client-urls", url_of(one), "--advertise-client-urls", url_of(one),
            ])  # fmt: skip
        pipe = subprocess.PIPE
        self.adapter = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        self.running.append(self.adapter)
        wait_for("the founders", self.is_well)

    def is_well(self):
        try:
            return all(call(url_of(one), "/v3/kv/range", {"key": coded("a")}) for one in (1, 2, 3))
        except OSError:
            return False

    def start(self, name, command, **environment):
        with open(self.folder / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | environment,
            )  # fmt: skip
        self.running.append(child)
        return child

    def end(self, child):
        """Ends a process and those that it started."""
        self.running.remove(child)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    @contextlib.contextmanager
    def silence(self, founder):
        """A founder that hangs."""
        process = self.running[founder - 1]
        os.kill(process.pid, signal.SIGSTOP)
        # On a busy machine its threads go on for a while; its parent is told when the last of them has stopped.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def close(self):
        for child in list(self.running):
            self.end(child)
        # What is left of machines, where a test failed.
        for where in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"MACHINE_DATA={self.folder}/".encode() in where.read_bytes():
                    os.kill(int(where.parent.name), signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def control(self, *arguments):
        """A controller whose adapter gets these arguments, too."""
        machines = ["--dir", f"{self.folder}/machines", "--addresses", f"{NET}.10-{NET}.19"]
        adapters = {"engines.etcd": [*self.command, *arguments],
                    "providers.local": [TONTINE, "adapter", "local", *machines]}  # fmt: skip
        file = self.folder / "adapters.toml"
        file.write_text("".join(f"[{name}]\ncommand = {json.dumps(words)}\n" for name, words in adapters.items()))
        run = ["elastic", "run", "--coordination", self.coordination, "--adapters", str(file)]
        return self.start("controller", [TONTINE, *run])

    def elastic(self, *words):
        return subprocess.run(
            [TONTINE, "elastic", *words, "--coordination", self.coordination],
            capture_output=True, text=True, timeout=WAIT_SECONDS,
        )  # fmt: skip

    def members(self):
        """Whether each member votes, by id."""
        # A read waits until the first member has applied what the others have agreed to; its list does not.
        call(url_of(1), "/v3/kv/range", {"key": coded("a")})
        found = call(url_of(1), "/v3/cluster/member/list", {})["members"]
        return {f"{int(one['ID']):x}": not one.get("isLearner", False) for one in found}

    def leader(self):
        return f"{int(call(url_of(1), '/v3/maintenance/status', {})['leader']):x}"

    def ask(self, method, **params):
        """One call of an adapter of our own."""
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"fleet": "etcd", **params}})
        print(line, file=self.adapter.stdin, flush=True)
        return json.loads(self.adapter.stdout.readline())


class EtcdAdapter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def succeed(self, *words):
        done = self.cluster.elastic(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_1_it_keeps_the_contract(self):
        check = [TONTINE, "adapter", "check", "--", *self.cluster.command]
        done = subprocess.run(check, capture_output=True, text=True, timeout=WAIT_SECONDS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_2_a_cluster_grows_to_five_and_shrinks_to_three_under_load(self):
        cluster, founders = self.cluster, self.cluster.members()
        policy = cluster.folder / "etcd.toml"
        policy.write_text('engine = "etcd"\nprovider = "local"\nmachine-type = "local"\nmin = 3\nmax = 5\n')
        self.succeed("apply", str(policy))
        controller = cluster.control()
        for founder in founders:
            wait_for("adoption", lambda one=founder: cluster.elastic("adopt", "etcd", "--member", one).returncode == 0)
        traffic = Traffic()
        traffic.start()
        try:
            self.succeed("plan", "etcd", "+2")
            grown = cluster.members()
            self.assertEqual(list(grown.values()), [True] * 5)
            # Of the machines, one leads. It must hand over before it leaves.
            leader, machine = cluster.leader(), min(grown.keys() - founders.keys())
            call(self.url_by_id(leader), "/v3/maintenance/transfer-leadership", {"targetID": str(int(machine, 16))})
            self.assertEqual(cluster.leader(), machine)
            self.succeed("plan", "etcd", "-2")
        finally:
            traffic.end(self)
        self.assertEqual(cluster.members(), founders)
        self.assertIn(cluster.leader(), founders)
        logs = "".join((cluster.folder / f"f{one}.log").read_text() for one in (1, 2, 3))
        self.assertTrue("received MsgTimeoutNow" in logs, "no machine has handed the lead over before it left")
        cluster.end(controller)

    def url_by_id(self, member):
        found = call(url_of(1), "/v3/cluster/member/list", {})["members"]
        return next(one["clientURLs"][0] for one in found if f"{int(one['ID']):x}" == member)

    def test_3_a_machine_on_which_etcd_does_not_start_leaves_no_member(self):
        cluster, founders = self.cluster, self.cluster.members()
        controller = cluster.control("--", "--no-such-flag")
        done = cluster.elastic("plan", "etcd", "+1")
        self.assertIn("3 machines failed in a row", done.stderr)
        self.assertEqual(cluster.members(), founders)
        cluster.end(controller)

    def test_4_a_lost_member_is_proved_to_be_dispensable_and_one_that_serves_never_is(self):
        cluster, founders = self.cluster, self.cluster.members()
        script = cluster.ask("boot", token="by-hand")["result"]["script"]
        data = cluster.folder / "by-hand"
        data.mkdir()
        surroundings = {"MACHINE_ADDRESS": f"{NET}.9", "MACHINE_DATA": str(data), "MACHINE_TOKEN": "by-hand"}
        machine = cluster.start("by-hand", ["/bin/sh", "-c", script], **surroundings)
        member = wait_for("the learner", lambda: cluster.members().keys() - founders.keys()).pop()
        self.assertFalse(cluster.members()[member])
        # It is refused until the learner is in sync, and the controller asks again.
        wait_for("its promotion", lambda: "result" in cluster.ask("join", member=member))
        self.assertTrue(cluster.members()[member])

        def proves(answer):
            proof = answer.get("result", {})
            facts = [proof.get(name) for name in ("owns_nothing", "nothing_moves", "nothing_short")]
            return bool(proof.get("witnesses")) and facts == [True, True, True]

        def is_refused(code, method, **params):
            wait_for(f"{method} is refused", lambda: cluster.ask(method, **params).get("error", {}).get("code") == code)

        self.assertFalse(proves(cluster.ask("evidence", member=member)))
        self.assertFalse(proves(cluster.ask("evidence", address=f"{NET}.9")))
        wait_for("proof about nobody", lambda: proves(cluster.ask("evidence", address=f"{NET}.200")))
        is_refused(-32001, "forget", member=member)
        cluster.end(machine)
        wait_for("proof about the lost member", lambda: proves(cluster.ask("evidence", member=member)))
        for founder in founders:
            self.assertFalse(proves(cluster.ask("evidence", member=founder)))
        is_refused(-32000, "drain", member=next(iter(founders)))
        for _ in ("it goes", "it is gone"):
            wait_for("forget", lambda: cluster.ask("forget", member=member).get("result") == {})
        self.assertEqual(cluster.members(), founders)
        with cluster.silence(3):
            # No proof about anybody while one witness is silent.
            self.assertFalse(proves(cluster.ask("evidence", address=f"{NET}.200")))
            with cluster.silence(2):
                # The first knows a list, and it may be old.
                self.assertEqual(cluster.ask("observe")["error"]["code"], -32000)

    def test_5_the_page_shows_what_runs(self):
        program = ADAPTER.read_text()
        shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        self.assertGreater(len(shown), 5)
        for block in shown:
            held = any(textwrap.indent(block, indent) in program for indent in ("", "    "))
            self.assertTrue(held, f"the page shows what is not in the program:\n{block}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit("usage: test_etcd_adapter.py PROGRAM; build it with `cargo build --release -p cli`")
    for needed in ("etcd", "etcdctl"):
        if not shutil.which(needed):
            sys.exit(f"{needed} is missing; run `./check setup`, or `apt-get install etcd-server etcd-client`")
    TONTINE = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2, failfast=True)
