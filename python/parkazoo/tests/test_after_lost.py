"""After a LOST a client is what it would be if it started then: a degraded one goes on
with the ensembles that are there, a lazy one opens no more than it used, and one that
had not found its namespace yet goes on looking for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, running, started
from parkazoo import NamespaceMismatch, ParKazooClient, PooledClient
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_addresses import PATIENT
from test_client import nothing_wrong
from test_degraded import DIRECTORIES, break_one
from test_strangers import emptied, of, says

HERE = Path(__file__).resolve().parent
# Short, because a client that lost a session waits as long for who does not answer.
QUICK: dict[str, Any] = {**PATIENT, "timeout": 8}


def end_session(ensemble: Ensemble, client: Any) -> None:
    """What a server does by itself to a session of which it hears nothing."""
    table = client.table
    name = next(n for n, hosts in table.ensembles.items() if hosts == ensemble.hosts)
    end(ensemble.hosts, client.client_ids[name])


def end(hosts: str, identity: Any) -> None:
    thief = KazooClient(hosts, client_id=identity, timeout=30)
    thief.start(PATIENCE_SECONDS)
    thief.stop()
    thief.close()


class Heard:
    """The states a client was told of since."""

    def __init__(self, client: Any) -> None:
        self.states: list[str] = []
        client.add_listener(self.states.append)

    def lost_and_then(self, *states: str) -> bool:
        """Is this what came after LOST?"""
        if KazooState.LOST not in self.states:
            return False
        return self.states[self.states.index(KazooState.LOST) + 1 :] == list(states)


def in_use(client: ParKazooClient) -> set[str]:
    """The ensembles that it is connected to."""
    sessions = client._sessions.by_name.items()
    return {name for name, ensemble in sessions if ensemble.connected}


def answers(client: Any, paths: list[str]) -> bool:
    try:
        for path in paths:
            client.get_async(f"{path}/x").get(timeout=PATIENCE_SECONDS)
    except (KazooException, client.handler.timeout_exception):
        return False
    return True


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_a_degraded_client_goes_on_after_lost_without_who_is_away(
    kind: Any, lazy: bool, ensembles: EnsembleFactory
) -> None:
    """It stayed LOST for as long as the one was away, where a fresh client began."""
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with running(kind(hosts, degraded=True, lazy=lazy, **QUICK)) as client:
        for path in DIRECTORIES:
            client.create(f"{path}/x", b"ours", makepath=True)
        away, well, gone = break_one(
            client if kind is ParKazooClient else client._carrier, taken
        )
        wait_until(lambda: client.state == KazooState.SUSPENDED, "it is suspended")
        assert answers(client, well)
        client.create(f"{well[0]}/e", ephemeral=True)
        heard = Heard(client)
        end_session(next(e for e in taken if e is not away), client)
        wait_until(lambda: heard.lost_and_then("CONNECTED", "SUSPENDED"), "it goes on")
        assert answers(client, well)
        # Whichever ensemble it was on: the others' sessions were ended, too.
        wait_until(lambda: not client.exists(f"{well[0]}/e"), "its ephemeral is gone")
        client.set(f"{well[0]}/x", b"new")
        waiting = [client.get_async(f"{path}/x") for path in gone]
        away.start()
        for result in waiting:
            assert result.get(timeout=PATIENCE_SECONDS)[0] == b"ours"
        wait_until(
            lambda: heard.lost_and_then("CONNECTED", "SUSPENDED", "CONNECTED"),
            "it is whole",
        )
        if kind is ParKazooClient:
            assert nothing_wrong(client)


def test_a_degraded_client_goes_on_after_lost_when_the_first_comes_back(
    ensembles: EnsembleFactory,
) -> None:
    """Nobody was there for longer than it waits."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, degraded=True, **QUICK) as client:
        for path in DIRECTORIES:
            client.create(f"{path}/x", b"ours", makepath=True)
        away, well, _ = break_one(client, taken)
        (other,) = [e for e in taken if e is not away]
        heard = Heard(client)
        end_session(other, client)
        wait_until(lambda: KazooState.LOST in heard.states, "it has lost a session")
        other.kill()
        time.sleep(QUICK["timeout"] + 4)
        assert client.state == KazooState.LOST
        other.start()
        wait_until(lambda: heard.lost_and_then("CONNECTED", "SUSPENDED"), "it goes on")
        assert answers(client, well)
        away.start()
        wait_until(lambda: client.state == KazooState.CONNECTED, "it is whole")


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_a_degraded_client_goes_on_after_lost_without_an_emptied_member(
    lazy: bool, ensembles: EnsembleFactory
) -> None:
    """All requests were refused, also those that did not need that member."""
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, degraded=True, lazy=lazy, **QUICK) as client:
        assert client.table is not None
        used = [client._sessions.session(name) for name in client.table.ensembles]
        wait_until(lambda: all(each.connected for each in used), "all are in use")
        _, gone = emptied(taken)
        wait_until(lambda: says(client, "holds nothing of this"), "it has noticed")
        here, elsewhere = of(client, gone)
        assert answers(client, elsewhere)
        heard = Heard(client)
        end_session(next(e for e in taken if e is not gone), client)
        wait_until(lambda: heard.lost_and_then("CONNECTED", "SUSPENDED"), "it goes on")
        assert answers(client, elsewhere)
        for path in here:
            with pytest.raises(NamespaceMismatch, match="its data was lost"):
                client.get_children(path)


@pytest.mark.parametrize("degraded", [False, True], ids=["strict", "degraded"])
@pytest.mark.parametrize("used", [1, 2])
def test_a_lazy_client_opens_no_more_after_lost_than_it_used(
    used: int, degraded: bool, ensembles: EnsembleFactory
) -> None:
    """It opened a session with every ensemble."""
    taken = ensembles(3)
    with started(";".join(ensemble.hosts for ensemble in taken)) as first:
        for path in DIRECTORIES:
            first.create(f"{path}/x", b"ours", makepath=True)
        table = first.table
    assert table is not None
    # The one that its root needs, so that the others are not.
    with started(taken[0].hosts) as first:
        home = first._home
        assert home is not None
        root = next(e for e in taken if e.hosts == home.hosts_string)
    with started(root.hosts, lazy=True, degraded=degraded, **QUICK) as client:
        if used == 2:
            other = next(e for e in taken if e is not root)
            here, _ = of(client, other)
            client.get_children(here[0])
        before = in_use(client)
        assert len(before) == used
        heard = Heard(client)
        end_session(root, client)
        wait_until(lambda: heard.lost_and_then("CONNECTED"), "it is renewed")
        time.sleep(2)
        assert in_use(client) == before
        assert answers(client, DIRECTORIES)
        assert client.state == KazooState.CONNECTED


def test_a_session_lost_before_the_table_is_known_does_not_end_the_search(
    ensembles: EnsembleFactory,
) -> None:
    """Both sessions were CONNECTED after that, and the client LOST for ever."""
    one, two = ensembles(2)
    two.kill()
    client = ParKazooClient(f"{one.hosts};{two.hosts}", **QUICK)
    client.start_async()

    def session() -> Any:
        return client._sessions.by_name.get("bootstrap0")

    try:
        wait_until(lambda: session() and session().connected, "one is there")
        wait_until(lambda: "bootstrap0" in client._sessions.copies, "it has answered")
        lost = client._sessions.losses
        end(one.hosts, session().client_id)
        wait_until(lambda: client._sessions.losses > lost, "it has lost a session")
        two.start()
        wait_until(lambda: client.connected, "it opens")
        client.create("/a/b", makepath=True)
        assert nothing_wrong(client)
    finally:
        client.stop()
        client.close()


GREEN = """
import sys
from gevent import monkey
monkey.patch_all()
sys.path[:0] = sys.argv[1:2]
from kazoo.handlers.gevent import SequentialGeventHandler
from parkazoo import ParKazooClient
from servers import wait_until

states = []
options = {"timeout": 8, "connection_retry": {"max_tries": -1, "max_delay": 1}}
if "lazy" in sys.argv:
    options["lazy"] = True
client = ParKazooClient(
    sys.argv[2], handler=SequentialGeventHandler(), degraded=True, **options
)
client.start(60)
for number in range(12):  # a lazy one has sessions with those it has used
    client.ensure_path(f"/used/{number}/x")
client.add_listener(states.append)
for name, (number, password) in client.client_ids.items():
    print(name, number, password.hex(), flush=True)
wait_until(lambda: states[-3:] == ["LOST", "CONNECTED", "SUSPENDED"], "it goes on")
print("goes on", flush=True)
assert client.get_async("/").get(timeout=5)
wait_until(lambda: client.connected, "it is whole")
client.stop()
client.close()
print("done")
"""


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_a_degraded_client_of_gevent_goes_on_after_lost(
    lazy: bool, ensembles: EnsembleFactory
) -> None:
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts) as first:
        table, home = first.table, first._home
        assert table is not None and home is not None
        root = next(e for e in taken if e.hosts == home.hosts_string)
        name = home.name
        node = table.ensembles[table.owners[first._layout.node("/").shard]]
        away = next(e for e in taken if e.hosts not in (root.hosts, node))
    process = subprocess.Popen(
        [sys.executable, "-c", GREEN, str(HERE), hosts, "lazy" if lazy else "eager"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in taken]
        away.kill()
        _, number, password = next(words for words in said if words[0] == name)
        end(root.hosts, (int(number), bytes.fromhex(password)))
        assert process.stdout.readline() == "goes on\n"
        away.start()
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert out.strip() == "done" and process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_no_session_is_opened_for_a_client_that_has_stopped(
    ensembles: EnsembleFactory,
) -> None:
    """A routine that looked at a member ended its session, and began a new one when the
    client had stopped meanwhile."""
    (one,) = ensembles(1)
    with started(one.hosts) as client:
        (session,) = client._sessions.by_name.values()
    client._sessions.begin(session)
    assert session._stopped.is_set() and not session.opened
