"""The seat of the table, the ensemble whose copy decides, can be handed over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import EnsembleFactory
from parkazoo import ParKazooClient
from parkazoo.check import Checker
from parkazoo.layout import CONFIG, INTENTS
from parkazoo.mapping import EnsembleRemoved, Table
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, wait_until

Maker = Any


@pytest.fixture
def make(ensembles: EnsembleFactory) -> Iterator[Maker]:
    hosts = [ensemble.hosts for ensemble in ensembles(2)]
    made: list[ParKazooClient] = []

    def maker(only: int | None = None, **options: Any) -> ParKazooClient:
        named = ";".join(hosts) if only is None else hosts[only]
        client = ParKazooClient(named, timeout=30, **options)
        client.start(PATIENCE_SECONDS)
        made.append(client)
        return client

    yield maker
    for client in made:
        client.stop()
        client.close()


def copies(client: ParKazooClient) -> dict[str, Table]:
    assert client.table is not None
    return {
        name: Table.deserialize(client._sessions.session(name).get(CONFIG)[0])
        for name in client.table.ensembles
    }


def test_the_seat_can_be_removed_while_everybody_works(make: Maker) -> None:
    client, mover = make(cross_shard="intent"), make()
    for number in range(6):
        client.create(f"/d{number}/x", b"0", makepath=True)
    lock = client.Lock("/lock", "holder")
    assert lock.acquire(timeout=PATIENCE_SECONDS)
    leaving = client._sessions.by_name["e0"].hosts_string
    stopping, written, failures = threading.Event(), [0], []

    def work() -> None:
        while not stopping.is_set():
            transaction = client.transaction()
            for number in range(6):
                transaction.set_data(f"/d{number}/x", b"%d" % (written[0] + 1))
            results = transaction.commit()
            failures.extend(r for r in results if isinstance(r, Exception))
            written[0] += 1

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: written[0] > 0, "transactions go on")
    mover_of_all = Mover(mover, ephemeral_seconds=PATIENCE_SECONDS)
    try:
        mover_of_all.remove_ensemble("e0")
    finally:
        stopping.set()
        worker.join()
    wait_until(lambda: set(client._sessions.by_name) == {"e1"}, "the client follows")
    assert failures == []
    for number in range(6):
        assert client.get(f"/d{number}/x")[0] == b"%d" % written[0]
    assert lock.is_acquired and len(client.get_children("/lock")) == 1
    assert mover.table is not None and mover.table.seat == "e1"
    assert list(Checker(mover).run()) == []

    # Who still comes to it is told; it may come back as an ensemble like any other.
    late = ParKazooClient(leaving, auto_init=False)
    with pytest.raises(EnsembleRemoved):
        late.start(PATIENCE_SECONDS)
    name = Mover(mover).add_ensemble(leaving)
    Mover(mover, ephemeral_seconds=PATIENCE_SECONDS).rebalance()
    assert mover.table.seat == "e1" and len(mover.table.shards(name)) == 512
    assert list(Checker(mover).run()) == []
    lock.release()


def test_a_handover_that_broke_off_is_finished_by_the_next_who_changes_anything(
    make: Maker,
) -> None:
    broken, other = make(), make(only=1)
    mover = Mover(broken)
    before = mover.table
    ensembles = {"e1": before.ensembles["e1"], "e0": before.ensembles["e0"]}
    after = before.with_ensembles(ensembles).next()
    with mover.alone():  # as `publish` begins, and goes no further
        mover._write_copy(mover._at("e0"), before, after, [], True)
    wait_until(
        lambda: other.table is not None and other.table.seat == "e1",
        "the other client hears of it from the old seat",
    )
    assert {n: t.seat for n, t in copies(other).items()} == {"e0": "e1", "e1": "e0"}

    second = Mover(other)
    assert second.table.seat == "e1"
    assert second.abort() == []
    assert {t.seat for t in copies(other).values()} == {"e1"}
    assert second.rebalance().shards_moved == 0
    for session in other._sessions.by_name.values():
        assert session.get_children(INTENTS) == []
    assert list(Checker(other).run()) == []
