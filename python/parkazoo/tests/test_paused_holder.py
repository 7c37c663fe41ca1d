"""Whoever was stopped inside a lock writes nothing late, also not to another ensemble.

A client holds a lock on one ensemble and is stopped for longer than its session;
another takes the lock and writes; the first goes on. Its session with the ensemble of
what the lock guards may still be there, since each expires by itself, so that server
does not refuse the write: of ten such writes seven were accepted (Kazoo: none).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, Maker, running, started
from parkazoo import ParKazooClient
from parkazoo.proof import Proof, now
from servers import PATIENCE_SECONDS, Ensemble, Options, start_ensembles, wait_until
from stopping import Stopped
from test_late import directory_on

TRIALS = 10
# Longer than the other member's: that it is there proves nothing about that one.
LONG_SESSION = Options(configuration={"minSessionTimeout": "40000"})


def distrust(client: ParKazooClient, name: str) -> None:
    """As if that member had not answered for long."""
    client._sessions.by_name[name]._connection.proof.at = 0.0
    client._sessions._trusted_until = 0.0


def two_directories(client: ParKazooClient) -> tuple[str, str, str]:
    """The name of a member, and a directory on it and on another one."""
    assert client.table is not None
    first, second = list(client.table.ensembles)[:2]
    return first, directory_on(client, first), directory_on(client, second)


def test_what_is_asked_for_waits_until_every_ensemble_is_heard(
    ensembles: EnsembleFactory,
) -> None:
    """Also if the silent one has nothing to do with it: a lock may be there."""
    taken = ensembles(3)
    with started(";".join(e.hosts for e in taken)) as client:
        name, _, there = two_directories(client)
        silent = next(e for e in taken if e.hosts == client.table.ensembles[name])
        order = []
        silent.pause()
        distrust(client, name)
        for number in range(3):
            result = client.create_async(f"{there}/{number}")
            result.rawlink(lambda done, number=number: order.append(number))
        time.sleep(1)
        assert client.state == KazooState.CONNECTED and order == []
        silent.resume()
        assert result.get(timeout=PATIENCE_SECONDS) == f"{there}/2"
        wait_until(lambda: order == [0, 1, 2], "all are told, in order")


def test_a_degraded_client_goes_on_without_one_that_is_away(
    ensembles: EnsembleFactory,
) -> None:
    """It has said SUSPENDED, and so it is not held for what it cannot prove."""
    taken = ensembles(2)
    hosts = ";".join(e.hosts for e in taken)
    with started(hosts, degraded=True) as client:
        name, _, there = two_directories(client)
        away = next(e for e in taken if e.hosts == client.table.ensembles[name])
        away.kill()
        wait_until(lambda: client.state == KazooState.SUSPENDED, "it is noticed")
        distrust(client, name)
        client.create_async(f"{there}/x").get(timeout=PATIENCE_SECONDS)


def test_what_a_degraded_client_held_is_sent_when_the_silent_one_is_given_up(
    ensembles: EnsembleFactory,
) -> None:
    """It has nothing to do with that one; it ended with ConnectionLoss."""
    taken = ensembles(2)
    hosts = ";".join(e.hosts for e in taken)
    with started(hosts, degraded=True) as client:
        name, _, there = two_directories(client)
        silent = next(e for e in taken if e.hosts == client.table.ensembles[name])
        silent.pause()
        distrust(client, name)
        held = client.create_async(f"{there}/x")
        time.sleep(0.5)
        assert client.state == KazooState.CONNECTED and not held.ready()
        silent.kill()
        assert held.get(timeout=PATIENCE_SECONDS) == f"{there}/x"
        assert client.state == KazooState.SUSPENDED


@pytest.mark.parametrize("looks", [0, 1])
def test_a_write_on_its_way_is_not_sent_when_trust_ends(
    make: Maker, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the caller's look and the sending the process may be stopped: it is
    looked again before a batch is put together, and when it leaves."""
    client = make()
    _, _, there = two_directories(client)
    path, sessions = f"{there}/first", client._sessions
    version, looked = client.get(path)[1].version, []

    def trusted(at: float | None = None) -> bool:
        if at is not None:  # the connection looks
            looked.append(at)
        return len(looked) <= looks

    monkeypatch.setattr(sessions, "trusted", trusted)
    with pytest.raises(ConnectionLoss, match=None if looks else "was not sent to"):
        client.set(path, b"late")
    monkeypatch.undo()
    wait_until(lambda: client.connected, "it is connected again")
    assert client.get(path)[1].version == version
    assert client.set(path, b"in time").version == version + 1


def test_an_answer_proves_only_when_its_request_was_sent() -> None:
    """It may have lain in the socket while the process was stopped."""
    proof = Proof()
    proof.connecting()
    proof.connected(20.0)
    assert proof.until <= now() + 20
    proof.sending(7, 100.0)
    proof.sending(8, 200.0)  # the one before it is still under way
    proof.at = 50.0
    proof.answered()
    assert proof.at == 100.0
    proof.sending(9, 300.0)
    assert (proof.probe, proof.at) == (9, 100.0)
    proof.connecting()
    assert proof.probe == 0  # its answer will never come


# -- the whole of it, beside Kazoo ---------------------------------------------------


@pytest.fixture
def members() -> Iterator[list[Ensemble]]:
    """The lock's, whose sessions are short, and that of what the lock guards."""
    with ExitStack() as stack:
        started = []
        for options in (Options(), LONG_SESSION):
            started += start_ensembles(1, options=options)
            stack.callback(started[-1].close)
        yield started


def late_writes(
    kind: str, client: Any, hosts: str, locks: list[str], nodes: str
) -> list[str]:
    """How the writes of stopped holders ended, after another one took over."""
    outcomes = []
    with ExitStack() as stack:
        victims = []
        for number, lock in enumerate(locks):
            client.ensure_path(f"{nodes}/{number}")
            words = (kind, hosts, lock, f"{nodes}/{number}")
            victims.append(stack.enter_context(Stopped("holder.py", words, "", 0)))
        for number, lock in enumerate(locks):
            client.Lock(lock, "next").acquire(timeout=PATIENCE_SECONDS)
            client.set(f"{nodes}/{number}", b"next")
        for victim in victims:
            victim.continues()
        for number, victim in enumerate(victims):
            assert victim.process.wait(PATIENCE_SECONDS) == 0, victim.told()
            outcome = victim.facts()["outcome"]
            kept = client.get(f"{nodes}/{number}")[0] == b"next"
            assert kept == (outcome != "accepted"), victim.told()
            outcomes.append(outcome)
    return outcomes


def directories_on(client: ParKazooClient, ensemble: str) -> Iterator[str]:
    """Paths of directories whose children are there."""
    assert client.table is not None
    for number in itertools.count():
        shard = client._layout.buckets(f"/lock{number}")[0].shard
        if client.table.owners[shard] == ensemble:
            yield f"/lock{number}"


def test_no_late_write_of_a_paused_holder_is_accepted(members: list[Ensemble]) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in members)
    with started(hosts, timeout=60) as client:
        name = next(n for n, h in client.table.ensembles.items()
                    if h == members[0].hosts)  # fmt: skip
        other = next(n for n in client.table.ensembles if n != name)
        locks = list(itertools.islice(directories_on(client, name), TRIALS))
        nodes = directory_on(client, other)
        ours = late_writes("parkazoo", client, hosts, locks, nodes)
    with running(KazooClient(members[0].hosts, timeout=60)) as client:
        theirs = late_writes("kazoo", client, members[0].hosts, locks, "/kazoo")
    print(f"parkazoo: {sorted(ours)}; kazoo: {sorted(theirs)}")
    assert theirs.count("accepted") == ours.count("accepted") == 0
