"""ParKazooClient while real servers stall and die, judged by recorded histories.

Every test runs callers against two or three real ensembles, breaks something, lets
things calm down, and then requires: no caller saw an error it should not see, one
order explains every directory with its nodes, no lock was held twice, nothing
acknowledged is missing, nothing deleted is back, and the namespace has no orphans.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.protocol.states import KazooState

from chaos import Chaos, final_state
from conftest import EnsembleFactory
from parkazoo import ParKazooClient
from proxy import Proxy
from servers import (
    PATIENCE_SECONDS,
    Ensemble,
    Options,
    four_letter_word,
    start_ensembles,
    wait_until,
)

pytestmark = pytest.mark.timeout(240)

# Short, so that the tests are; a starved machine needs longer ones.
SESSION_SECONDS = float(os.environ.get("PARKAZOO_SESSION_SECONDS", "4"))
DIRECTORIES = [f"/w/d{number}" for number in range(6)]
SEED = 20261121


def hosts_of(ensembles: list[Ensemble]) -> str:
    return ";".join(ensemble.hosts for ensemble in ensembles)


def connect_to(hosts: str, seconds: float = SESSION_SECONDS) -> ParKazooClient:
    client = ParKazooClient(hosts, timeout=seconds)
    client.start(120)
    return client


@pytest.fixture
def judge() -> Iterator[Callable[[str], ParKazooClient]]:
    """A client that is not part of the turmoil."""
    made: list[ParKazooClient] = []

    def connect(hosts: str) -> ParKazooClient:
        made.append(connect_to(hosts))
        return made[-1]

    yield connect
    for client in made:
        client.stop()
        client.close()


class Turmoil:
    """All kinds of callers at once, and the verdict on what they saw."""

    def __init__(
        self,
        judge: ParKazooClient,
        hosts: str,
        reads: bool,
        seconds: float = SESSION_SECONDS,
    ) -> None:
        self.judge = judge
        for path in ("/w", "/numbers/a", "/numbers/b", "/locks", "/queue"):
            judge.ensure_path(path)
        self.chaos = chaos = Chaos(lambda: connect_to(hosts, seconds), SEED, reads)
        chaos.start(chaos.nodes, 4, DIRECTORIES)
        chaos.start(chaos.directories, 2, DIRECTORIES)
        chaos.start(chaos.locks, 3, ["/locks/a", "/locks/b", "/locks/c"])
        chaos.start(chaos.leaders, 2, "/leader")
        chaos.start(chaos.puts, 2, "/queue")
        chaos.start(chaos.takes, 2, "/queue")
        chaos.start(chaos.numbers, 1, "/numbers/a")
        chaos.start(chaos.numbers, 1, "/numbers/b")

    def __enter__(self) -> Turmoil:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nobody goes on working in the next test's tree."""
        self.chaos.stop()

    def end(self, may_contend: bool = False) -> None:
        """Stop, and judge. Contention is a request's end only where shards may be
        frozen for longer than a move that goes on can take."""
        chaos = self.chaos
        chaos.stop()
        assert may_contend or not chaos.contended, "\n".join(chaos.contended)
        wait_until(lambda: self.judge.connected, "the judge is connected")
        chaos.drain(self.judge, "/queue")
        chaos.final = final_state(self.judge, DIRECTORIES)
        violations = chaos.history.violations(chaos.final)
        assert not violations, "\n".join(violations)
        assert not chaos.errors, "\n".join(chaos.errors)
        assert self.idle() == [], f"these never got anything done: {chaos.progress}"
        assert len(chaos.history.operations) > 200

    def idle(self) -> list[str]:
        threads = [thread.name for thread in self.chaos._threads]
        return [name for name in threads if not self.chaos.progress.get(name)]


def stall(ensemble: Ensemble, rng: random.Random) -> None:
    """Too short for a session to expire."""
    ensemble.pause()
    time.sleep(rng.uniform(0.3, 1.5))
    ensemble.resume()


def stall_long(ensemble: Ensemble, rng: random.Random) -> None:
    """Long enough that every client gives the connection up."""
    ensemble.pause()
    time.sleep(SESSION_SECONDS * 1.5)
    ensemble.resume()


def crash(ensemble: Ensemble, rng: random.Random) -> None:
    ensemble.kill()
    time.sleep(rng.uniform(0, 1))
    ensemble.start()


def crash_leader(ensemble: Ensemble, rng: random.Random) -> None:
    leader = ensemble.leader()
    leader.kill()
    time.sleep(rng.uniform(0.5, 2))
    ensemble.start()


def stall_leader(ensemble: Ensemble, rng: random.Random) -> None:
    leader = ensemble.leader()
    leader.pause()
    time.sleep(SESSION_SECONDS * 1.5)
    leader.resume()
    ensemble.wait_serving()


@pytest.mark.parametrize("fault", [stall, stall_long, crash])
def test_an_ensemble_that_breaks_costs_nothing_but_time(
    ensembles: EnsembleFactory,
    judge: Callable[[str], ParKazooClient],
    fault: Callable[[Ensemble, random.Random], None],
) -> None:
    taken = ensembles(3)
    hosts = hosts_of(taken)
    with Turmoil(judge(hosts), hosts, reads=True) as turmoil:
        rng = random.Random(SEED)
        for ensemble in taken:
            time.sleep(2)
            fault(ensemble, rng)
        time.sleep(3)
        turmoil.end()


@pytest.mark.parametrize("fault", [crash_leader, stall_leader])
def test_a_leader_that_breaks_costs_nothing_but_time(
    judge: Callable[[str], ParKazooClient],
    fault: Callable[[Ensemble, random.Random], None],
) -> None:
    """Two ensembles of three servers each; reads go to followers and may be old,
    so only writes are ordered."""
    taken = start_ensembles(2, size=3, options=Options(tick_ms=500, sync_limit=4))
    try:
        hosts = hosts_of(taken)
        with Turmoil(judge(hosts), hosts, reads=False) as turmoil:
            rng = random.Random(SEED)
            for ensemble in taken:
                time.sleep(2)
                fault(ensemble, rng)
            time.sleep(4)
            turmoil.end()
    finally:
        for ensemble in taken:
            ensemble.close()


@pytest.mark.parametrize("number", range(3))
def test_a_session_lost_on_one_ensemble_frees_the_lock_held_on_another(
    ensembles: EnsembleFactory, number: int
) -> None:
    """The holder keeps its session where the lock is and loses one elsewhere. It
    must stop believing in the lock before anybody else gets it, and everybody must
    get it soon after, because the holder closes its other sessions itself."""
    taken = ensembles(3)
    other = connect_to(hosts_of(taken))
    path, where = lock_elsewhere(other, number)
    proxies = [Proxy(e.servers[0].client_port) for e in taken]
    holder = connect_to(";".join(proxy.address for proxy in proxies))
    states: list[tuple[float, Any]] = []
    holder.add_listener(lambda state: states.append((time.monotonic(), state)))
    wanted = other.Lock(path, "other")
    try:
        assert holder.Lock(path, "holder").acquire(timeout=PATIENCE_SECONDS)
        assert not wanted.acquire(blocking=False)
        session = holder._sessions.by_name[where]._session_id
        assert session_lives(taken[number], session)
        proxies[number].hold()
        # The server ends the session that it hears nothing from; nobody else does.
        wait_until(
            lambda: not session_lives(taken[number], session), "the session's end"
        )
        proxies[number].release()
        acquired = wanted.acquire(timeout=PATIENCE_SECONDS)
        at = time.monotonic()
        kinds = [state for _, state in states]
        assert acquired, f"holder saw {kinds}"
        assert KazooState.LOST in kinds, f"holder saw {kinds}"
        first = next(when for when, state in states if state != KazooState.CONNECTED)
        assert first < at, "the lock had two holders"
        wanted.release()
    finally:
        for proxy in proxies:
            proxy.release()
        for client in (holder, other):
            client.stop()
            client.close()
        for proxy in proxies:
            proxy.close()


def lock_elsewhere(client: ParKazooClient, number: int) -> tuple[str, str]:
    """A lock's path that ensemble `number` does not hold, and that one's name."""
    table, layout = client.table, client._layout
    assert table is not None
    servers = client.bootstrap[number]
    (name,) = (n for n, listed in table.ensembles.items() if listed == servers)
    for candidate in range(100):
        path = f"/lock{candidate}"
        if table.owners[layout.buckets(path)[0].shard] != name:
            return path, name
    raise AssertionError(f"{name} holds everything")


def session_lives(ensemble: Ensemble, session: int) -> bool:
    """Whether the server still keeps this session, as it says itself."""
    dump = four_letter_word(ensemble.servers[0].client_port, "dump")
    return f"0x{session & (1 << 64) - 1:x}" in dump
