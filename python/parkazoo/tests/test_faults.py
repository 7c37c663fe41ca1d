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
from servers import Ensemble, Options, start_ensembles, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]

# Short, so that the tests are; a starved machine needs longer ones.
SESSION_SECONDS = float(os.environ.get("PARKAZOO_SESSION_SECONDS", "4"))
DIRECTORIES = [f"/w/d{number}" for number in range(6)]
SEED = 20261121


def hosts_of(ensembles: list[Ensemble]) -> str:
    return ";".join(ensemble.hosts for ensemble in ensembles)


def connect_to(hosts: str) -> ParKazooClient:
    client = ParKazooClient(hosts, timeout=SESSION_SECONDS)
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

    def __init__(self, judge: ParKazooClient, hosts: str, reads: bool) -> None:
        self.judge = judge
        for path in ("/w", "/numbers/a", "/numbers/b", "/locks", "/queue"):
            judge.ensure_path(path)
        self.chaos = chaos = Chaos(lambda: connect_to(hosts), SEED, reads)
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

    def end(self) -> None:
        """Stop, and judge."""
        chaos = self.chaos
        chaos.stop()
        wait_until(lambda: self.judge.connected, 30, "the judge is connected")
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


@pytest.fixture
def proxies(ensembles: EnsembleFactory) -> Iterator[list[Proxy]]:
    """Three ensembles, each behind a network that can be held up."""
    made = [Proxy(e.servers[0].client_port) for e in ensembles(3)]
    yield made
    for proxy in made:
        proxy.close()


def test_a_session_lost_on_one_ensemble_frees_the_lock_held_on_another(
    proxies: list[Proxy],
) -> None:
    """The holder keeps its session where the lock is and loses one elsewhere. It
    must stop believing in the lock before anybody else gets it, and everybody must
    get it soon after, because the holder closes its other sessions itself."""
    hosts = ";".join(proxy.address for proxy in proxies)
    other = connect_to(hosts)
    other.ensure_path("/locks")
    for number, proxy in enumerate(proxies):
        before = {id(p): p.connections() for p in proxies}
        holder = connect_to(hosts)
        mine = {p: p.connections() - before[id(p)] for p in proxies}
        states: list[tuple[float, Any]] = []
        holder.add_listener(lambda s, log=states: log.append((time.monotonic(), s)))
        path = f"/locks/l{number}"
        assert holder.Lock(path, "holder").acquire(timeout=10)
        # Make sure every ensemble has a session of the holder to lose.
        for child in range(24):
            holder.exists(f"/touch{number}{child}/x")
        wanted = other.Lock(path, "other")
        assert not wanted.acquire(blocking=False)
        proxy.hold(mine[proxy] | (proxy.connections() - before[id(proxy)]))
        time.sleep(SESSION_SECONDS * 2)
        proxy.release()
        acquired = wanted.acquire(timeout=15)
        at = time.monotonic()
        kinds = [state for _, state in states]
        assert acquired, f"ensemble {number}: holder saw {kinds}"
        assert KazooState.LOST in kinds, f"ensemble {number}: holder saw {kinds}"
        first = next(when for when, state in states if state != KazooState.CONNECTED)
        assert first < at, "the lock had two holders"
        wanted.release()
        holder.stop()
        holder.close()
    other.stop()
    other.close()
