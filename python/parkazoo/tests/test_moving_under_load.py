"""Shards move while locks, queues, elections and plain nodes are in use.

A third ensemble joins, takes its share, and is emptied again, while callers that
know nothing of it go on; then the history they recorded is judged as after any
other fault. Nobody may even notice: no operation may fail.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import EnsembleFactory
from history import UNKNOWN
from parkazoo import ParKazooClient
from parkazoo.mapping import SHARDS
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_faults import Turmoil, connect_to, hosts_of
from test_moves import elsewhere

pytestmark = pytest.mark.timeout(900)

WHOLE = 3  # ensembles, when the third has joined
# No session is to end here, however busy the machine is.
LONG_SECONDS = 30.0
# A third of all shards moves while everybody is busy and the servers stall and die.
MOVE_SECONDS = 600.0
# One shard goes round and round, under requests of which so many pairs are in flight.
MOVES_OF_ONE, IN_FLIGHT = 12, 40


@pytest.fixture
def operator() -> Iterator[Callable[[str], ParKazooClient]]:
    """A client that changes who holds what."""
    made: list[ParKazooClient] = []

    def connect(hosts: str) -> ParKazooClient:
        made.append(connect_to(hosts, LONG_SECONDS))
        return made[-1]

    yield connect
    for client in made:
        client.stop()
        client.close()


def test_a_third_ensemble_joins_and_leaves_unnoticed(
    ensembles: EnsembleFactory, operator: Callable[[str], ParKazooClient]
) -> None:
    taken = ensembles(WHOLE)
    hosts = hosts_of(taken[:2])
    with Turmoil(operator(hosts), hosts, True, LONG_SECONDS) as turmoil:
        states: list[str] = []
        for client in turmoil.chaos._clients:
            client.add_listener(states.append)
        time.sleep(2)
        mover = Mover(operator(hosts))
        name = mover.add_ensemble(taken[2].hosts)
        moved = mover.rebalance()
        assert moved.shards_moved == moved.shards_total
        assert abs(moved.shards_moved - SHARDS / WHOLE) <= WHOLE
        time.sleep(3)
        back = mover.remove_ensemble(name)
        assert back.shards_moved == moved.shards_moved
        time.sleep(1)
        seen = list(states)  # before the callers stop, which says LOST
        turmoil.end()
        unsure = [o for o in turmoil.chaos.history.operations if o.outcome == UNKNOWN]
        assert unsure == [], "a move made an operation fail"
        assert seen == [], "a move disturbed a session"


def test_a_move_survives_an_ensemble_that_stalls_and_one_that_dies(
    ensembles: EnsembleFactory, operator: Callable[[str], ParKazooClient]
) -> None:
    """The mover may give up; then another finishes what it left."""
    taken = ensembles(WHOLE)
    hosts = hosts_of(taken[:2])
    with Turmoil(operator(hosts), hosts, True, LONG_SECONDS) as turmoil:
        time.sleep(1)
        Mover(operator(hosts)).add_ensemble(taken[2].hosts)
        ended, stopping = threading.Event(), threading.Event()
        begun, gave_up = time.monotonic(), []

        def keep_moving() -> None:
            while not stopping.is_set():
                client = connect_to(hosts_of(taken), LONG_SECONDS)
                try:
                    Mover(client).rebalance()
                    break
                except Exception as error:
                    at = f"{time.monotonic() - begun:.1f} s"
                    gave_up.append(f"{at}: {error!r}")
                    time.sleep(0.5)
                finally:
                    client.stop()
                    client.close()
            ended.set()

        threading.Thread(target=keep_moving, daemon=True).start()
        time.sleep(2)
        for ensemble in taken:
            disturb(ensemble)
        moved = ended.wait(MOVE_SECONDS)
        stopping.set()
        print(f"gave up {len(gave_up)} times:", *gave_up, sep="\n")
        assert moved, gave_up
        turmoil.end(may_contend=True)
        table = turmoil.judge.table
        assert table is not None and not table.moving
        # Which has the odd one depends on how far the mover was that gave up.
        shares = sorted(len(table.shards(n)) for n in table.ensembles)
        assert shares == [341, 341, 342], gave_up


def disturb(ensemble: Ensemble) -> None:
    ensemble.pause()
    time.sleep(1)
    ensemble.resume()
    time.sleep(2)
    ensemble.kill()
    ensemble.start()
    time.sleep(3)


def test_one_client_that_does_not_wait_sees_its_own_writes_in_their_order(
    ensembles: EnsembleFactory, operator: Callable[[str], ParKazooClient]
) -> None:
    """Reads were asked again behind later writes, and saw them."""
    hosts = hosts_of(ensembles(WHOLE))
    mover, client = operator(hosts), operator(hosts)
    client.create("/own/x", b"-1", makepath=True)
    ended, told, number = threading.Event(), deque[int](), 0

    def move() -> None:
        try:
            for _ in range(MOVES_OF_ONE):
                Mover(mover).move(elsewhere(mover, "/own/x"))
        finally:
            ended.set()

    thread = threading.Thread(target=move)
    thread.start()
    asked: deque[tuple[int, Any, Any]] = deque()

    def judge() -> None:
        number, read, write = asked.popleft()
        data, stat = read.get(timeout=PATIENCE_SECONDS)
        assert (int(data), stat.version) == (number - 1, number)
        assert write.get(timeout=PATIENCE_SECONDS).version == number + 1

    try:
        while not ended.is_set():
            read = client.get_async("/own/x")
            write = client.set_async("/own/x", b"%d" % number)
            for result, place in (read, 2 * number), (write, 2 * number + 1):
                result.rawlink(lambda _, place=place: told.append(place))
            asked.append((number, read, write))
            number += 1
            if len(asked) == IN_FLIGHT:
                judge()
        while asked:
            judge()
    finally:
        ended.wait()
        thread.join()
    assert number > MOVES_OF_ONE * IN_FLIGHT
    wait_until(lambda: len(told) == 2 * number, "all callers are told")
    assert list(told) == list(range(2 * number))
