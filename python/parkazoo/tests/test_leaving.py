"""Who knows only members that have left finds the others by the word left there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, running, started
from parkazoo import NamespaceMismatch, ParKazooClient
from parkazoo.layout import CONFIG
from parkazoo.mapping import Table
from parkazoo.move import Mover
from proxy import Proxy
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_addresses import PATIENT

WAYS: dict[str, dict[str, Any]] = {
    "strict": {},
    "degraded": {"degraded": True},
    "lazy": {"lazy": True},
}
# Says of each path what it reads there, and what it has heard by then.
READER = """
import json, sys
import parkazoo

kind, hosts, lock, options = json.loads(sys.argv[1])
client = getattr(parkazoo, kind)(hosts, auto_init=False, **options)
heard = []
client.add_listener(heard.append)
client.start(60)
client.ensure_path("/p")
client.exists("/p/x", watch=lambda event: heard.append(event.type))
if lock:
    held = client.Lock("/p/lock", "reader")
    assert held.acquire(timeout=60)
for path in sys.stdin:
    try:
        found = client.get_async(path.strip()).get(timeout=60)[0].decode()
    except Exception as error:
        found = repr(error)
    members = sorted(client.table.ensembles)
    print(json.dumps([found, members, heard]), flush=True)
"""


class Reader:
    def __init__(self, *words: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, json.dumps(words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, path: str) -> list[Any]:
        """What is there, the members, all that was heard."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(path + "\n")
        self.process.stdin.flush()
        said: list[Any] = json.loads(self.process.stdout.readline())
        return said


@contextmanager
def reader(hosts: str, lock: bool = False, **options: Any) -> Iterator[Reader]:
    kind = options.pop("kind", "ParKazooClient")
    one = Reader(kind, hosts, lock, options)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


def replace_all(client: ParKazooClient, *hosts: str) -> None:
    """The members are these now, and none of those that it had."""
    mover = Mover(client)
    before = list(mover.table.ensembles)
    for each in hosts:
        mover.add_ensemble(each)
    for name in before:
        mover.remove_ensemble(name)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_is_started_again_finds_those_who_came_instead(
    ensembles: EnsembleFactory, way: str
) -> None:
    """It was CONNECTED to those that had left, where nothing is, without end."""
    first, second, third = ensembles(3)
    with (
        started(first.hosts) as other,
        started(first.hosts, **WAYS[way]) as client,
    ):
        other.create("/p/x", b"old", makepath=True)
        assert client.get("/p/x")[0] == b"old"
        client.stop()
        replace_all(other, second.hosts)
        replace_all(other, third.hosts)  # so that the first word is of old, too
        other.set("/p/x", b"new")
        client.start(PATIENCE_SECONDS)
        assert client.state == KazooState.CONNECTED
        assert client.get("/p/x")[0] == b"new"
        assert client.table == other.table
        assert list(client._sessions.by_name) == ["e2"]


@pytest.mark.parametrize("kind", ["ParKazooClient", "PooledClient"])
@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_was_away_finds_those_who_came_instead(
    ensembles: EnsembleFactory, way: str, kind: str
) -> None:
    first, second = ensembles(2)
    with (
        started(first.hosts) as other,
        reader(first.hosts, True, timeout=4, kind=kind, **WAYS[way]) as away,
    ):
        other.create("/p/x", b"old", makepath=True)
        assert away.read("/p/x")[0] == "old"
        os.kill(away.process.pid, signal.SIGSTOP)
        lock = other.Lock("/p/lock", "other")
        assert lock.acquire(timeout=PATIENCE_SECONDS)  # its session has ended
        replace_all(other, second.hosts)
        other.set("/p/x", b"new")
        os.kill(away.process.pid, signal.SIGCONT)
        found: list[Any] = []

        def settled() -> bool:
            nonlocal found
            found = away.read("/p/x")
            return found[0] == "new"

        wait_until(settled, "it reads what is there now")
        _, members, heard = found
        assert members == ["e1"]
        assert heard[0] == "CONNECTED" and heard.count("LOST") == 1
        after = [word for word in heard[heard.index("LOST") :] if word in _STATES]
        assert after[:2] == ["LOST", "CONNECTED"]
        assert lock.is_acquired and len(other.get_children("/p/lock")) == 1


_STATES = (KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.LOST)


@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_was_away_for_less_than_its_session_notices_nothing(
    ensembles: EnsembleFactory, way: str
) -> None:
    first, second = ensembles(2)
    with (
        started(first.hosts) as other,
        reader(first.hosts, timeout=60, **WAYS[way]) as away,
    ):
        other.create("/p/x", b"old", makepath=True)
        assert away.read("/p/x")[0] == "old"
        os.kill(away.process.pid, signal.SIGSTOP)
        replace_all(other, second.hosts)
        other.set("/p/x", b"new")
        os.kill(away.process.pid, signal.SIGCONT)
        assert away.read("/p/x")[0] in ("old", "new")  # a server's last words
        for _ in range(50):
            found, members, heard = away.read("/p/x")
            assert found in ("old", "new")
            time.sleep(0.05)
        assert found == "new" and members == ["e1"]
        assert [word for word in heard if word in _STATES] == ["CONNECTED"]


def test_a_client_that_is_cut_off_from_a_member_that_leaves_hears_lost(
    ensembles: EnsembleFactory,
) -> None:
    """Its lock there went with the session, another took it at its new place, and the
    table that says so came from another member before anybody said that."""
    first, second = ensembles(2)
    hosts = f"{first.hosts};{second.hosts}"
    with started(hosts) as other, started(hosts, **{**PATIENT, "timeout": 4}) as client:
        table = client.table
        assert table is not None
        leaving = next(n for n, h in table.ensembles.items() if h == second.hosts)
        path = next(
            path
            for path in (f"/lock{number}" for number in range(1000))
            if table.owners[client._layout.buckets(path)[0].shard] == leaving
        )
        lock = client.Lock(path, "cut off")
        assert lock.acquire(timeout=PATIENCE_SECONDS)
        heard: list[str] = []
        client.add_listener(heard.append)
        session = client._sessions.by_name[leaving]
        session.set_hosts("127.0.0.1:1")
        session._call(_CONNECTION_DROP, None)
        theirs = other.Lock(path, "other")
        assert theirs.acquire(timeout=PATIENCE_SECONDS)
        assert heard == ["SUSPENDED"] and lock.is_acquired
        Mover(other).remove_ensemble(leaving)
        wait_until(lambda: "CONNECTED" in heard, "it goes on")
        assert heard == ["SUSPENDED", "LOST", "CONNECTED"]
        assert theirs.is_acquired and len(client.get_children(path)) == 1


@pytest.mark.parametrize("keeps_on", [False, True])
def test_who_asks_a_member_that_is_silent_and_leaves_hears_lost(
    ensembles: EnsembleFactory, keeps_on: bool
) -> None:
    """What was sent while a heartbeat had no answer was taken for a sign of life, so it
    heard of no loss, with a lock that another one had by then."""
    first, second = ensembles(2)
    hosts = f"{first.hosts};{second.hosts}"
    seconds = 10.0
    options = {**PATIENT, "timeout": seconds}
    with (
        closing(Proxy(second.servers[0].client_port)) as proxy,
        started(hosts) as other,
        started(hosts, **options) as client,
    ):
        mover = Mover(other)
        table = mover.table
        leaving = next(n for n, h in table.ensembles.items() if h == second.hosts)
        staying = next(n for n in table.ensembles if n != leaving)
        path = next(
            path
            for path in (f"/lock{number}" for number in range(1000))
            if table.owners[client._layout.buckets(path)[0].shard] == leaving
        )
        other.ensure_path(path)
        kept = client._layout.buckets(path)[0].shard
        mover.move({s: staying for s in table.shards(leaving) if s != kept})
        session = client._sessions.by_name[leaving]
        session.set_hosts(proxy.address)
        session._call(_CONNECTION_DROP, None)
        wait_until(lambda: proxy.pipes and client.connected, "it goes by the proxy")
        lock = client.Lock(path, "silent")
        assert lock.acquire(timeout=PATIENCE_SECONDS)
        theirs = other.Lock(path, "other")
        heard: list[str] = []
        client.add_listener(heard.append)
        client.get_children(path)
        proxy.hold()
        time.sleep(0.57 * seconds)
        client.get_async(path)
        done = threading.Event()

        def keep_on() -> None:
            while keeps_on and not done.wait(seconds / 20):
                client.get_async(path)

        threading.Thread(target=keep_on, daemon=True).start()
        assert theirs.acquire(timeout=PATIENCE_SECONDS)
        assert heard == ["SUSPENDED"]
        mover.remove_ensemble(leaving)
        wait_until(lambda: len(heard) > 1, "it goes on")
        done.set()
        assert heard[:2] == ["SUSPENDED", "LOST"]
        wait_until(lambda: client.connected, "it is back")


def word(ensemble: Ensemble, data: bytes) -> bytes:
    """Put this in place of its copy of the table; returns that."""
    with running(KazooClient(ensemble.hosts, timeout=30)) as plain:
        before: bytes = plain.get(CONFIG)[0]
        plain.set(CONFIG, data)
        return before


def test_a_word_that_nobody_bears_out_is_said_and_followed_no_further(
    ensembles: EnsembleFactory,
) -> None:
    """A backup of when it had left, or the word of another namespace."""
    first, second, third = ensembles(3)
    with (
        started(f"{first.hosts};{second.hosts}", **PATIENT) as client,
        started(third.hosts) as others,
    ):
        client.create("/p/x", b"ours", makepath=True)
        assert client.table is not None and others.table is not None
        ours = Table.initial({"e0": first.hosts}).tombstone()
        ours = ours.replace(
            Table.initial({"e0": first.hosts}).namespace.encode(),
            client.table.namespace.encode(),
        )
        for data, says in (
            (ours, "was taken out of this namespace"),
            (others.table.tombstone(), "holds another namespace"),
        ):
            before = word(second, data)
            wait_until(lambda: says in str(client._sessions.refused), says)  # noqa: B023
            wait_until(lambda: client.state == KazooState.SUSPENDED, "it is told")
            with pytest.raises(NamespaceMismatch, match=says):
                client.get("/p/x")
            word(second, before)
            wait_until(lambda: client.state == KazooState.CONNECTED, "it is back")
            assert client._sessions.refused is None
            assert client.get("/p/x")[0] == b"ours"
