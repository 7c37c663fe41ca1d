"""`PooledClient`: many logical clients of one process on one set of sessions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConfigurationError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
)
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import KazooState
from kazoo.recipe.cache import TreeCache

from conftest import EnsembleFactory
from parkazoo import ParKazooClient, PooledClient, SharedCredentials
from parkazoo.estates import Doubt
from servers import PATIENCE_SECONDS, Ensemble, four_letter_word, wait_until

Maker = Callable[..., PooledClient]


@pytest.fixture
def three(ensembles: EnsembleFactory) -> list[Ensemble]:
    return ensembles(3)


@pytest.fixture
def observer(three: list[Ensemble]) -> Iterator[ParKazooClient]:
    """A client with sessions of its own, to see what others see."""
    client = ParKazooClient(";".join(e.hosts for e in three), timeout=30)
    client.start(PATIENCE_SECONDS)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def pooled(three: list[Ensemble], observer: ParKazooClient) -> Iterator[Maker]:
    hosts = ";".join(e.hosts for e in three)
    made: list[PooledClient] = []

    def maker(chroot: str = "", **options: Any) -> PooledClient:
        client = PooledClient(hosts + chroot, timeout=30, **options)
        made.append(client)
        client.start(PATIENCE_SECONDS)
        return client

    yield maker
    for client in made:
        client.stop()
        client.close()


def connections(three: list[Ensemble]) -> list[int]:
    """How many clients each ensemble sees, we who ask not counted."""
    ports = [ensemble.servers[0].client_port for ensemble in three]
    words = [four_letter_word(port, "cons").splitlines() for port in ports]
    return [sum("sid=" in line for line in lines) for lines in words]


def only_observer(three: list[Ensemble]) -> None:
    """A server may still count who has gone just before."""
    wait_until(lambda: connections(three) == [1, 1, 1], "the observer is alone")


def end_session(client: PooledClient, name: str) -> None:
    """Take a shared session over with its id and password, and close it."""
    hosts = client._carrier._sessions.by_name[name].hosts_string
    thief = KazooClient(hosts, client_id=client.client_ids[name])
    thief.start(PATIENCE_SECONDS)
    thief.stop()
    thief.close()


def test_a_thousand_clients_need_one_connection_to_each_ensemble(
    pooled: Maker, three: list[Ensemble], observer: ParKazooClient
) -> None:
    only_observer(three)
    clients = [pooled() for _ in range(1000)]
    for number in (0, 499, 999):
        clients[number].create(f"/n{number}", b"v", ephemeral=True)
        assert observer.get(f"/n{number}")[0] == b"v"
    assert connections(three) == [2, 2, 2]


def test_a_client_that_stops_takes_its_ephemerals_and_nobody_elses(
    pooled: Maker, observer: ParKazooClient
) -> None:
    goes, stays = pooled(), pooled()
    goes.create("/a", ephemeral=True)
    stays.create("/b", ephemeral=True)
    goes.ensure_path("/numbers")
    numbered = goes.create("/numbers/n-", ephemeral=True, sequence=True)
    others = stays.create("/numbers/n-", ephemeral=True, sequence=True)
    with goes.transaction() as transaction:
        transaction.create("/numbers/t", ephemeral=True)
    goes.create("/plain")
    goes.stop()
    assert [observer.exists(p) for p in ("/a", numbered, "/numbers/t")] == [None] * 3
    for path in ("/b", others, "/plain"):
        assert observer.exists(path) is not None, path
    with pytest.raises(ConnectionClosedError):
        goes.create("/too-late", ephemeral=True)


def test_creations_under_way_when_a_client_stops_do_not_stay(
    pooled: Maker, observer: ParKazooClient
) -> None:
    goes, stays = pooled(), pooled()
    goes.ensure_path("/late")
    for number in range(200):
        goes.create_async(f"/late/{number}", ephemeral=True)
    goes.stop()
    assert observer.get_children("/late") == []
    assert stays.connected


def test_an_ephemeral_made_again_by_another_client_is_the_others(
    pooled: Maker, observer: ParKazooClient
) -> None:
    first, second = pooled(), pooled()
    first.create("/flag", ephemeral=True)
    with pytest.raises(NodeExistsError):
        second.create("/flag", ephemeral=True)
    second.delete("/flag")
    second.create("/flag", ephemeral=True)
    first.stop()
    assert observer.exists("/flag") is not None
    second.stop()
    assert observer.exists("/flag") is None


def test_an_ephemeral_of_another_session_is_left_alone(
    pooled: Maker, observer: ParKazooClient
) -> None:
    goes, _stays = pooled(), pooled()
    goes.create("/flag", ephemeral=True)
    observer.delete("/flag")
    observer.create("/flag", ephemeral=True)
    goes.stop()
    assert observer.exists("/flag") is not None


def test_a_lock_is_free_when_its_holder_stops(pooled: Maker) -> None:
    holder, waiter = pooled(), pooled()
    held, wanted = holder.Lock("/lock", "holder"), waiter.Lock("/lock", "waiter")
    assert held.acquire(timeout=PATIENCE_SECONDS)
    assert not wanted.acquire(blocking=False)
    told: list[str] = []
    holder.add_listener(told.append)
    taken = threading.Event()

    def wait() -> None:
        wanted.acquire()
        told.append("taken by the other")
        taken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    holder.stop()
    assert taken.wait(PATIENCE_SECONDS)
    waiting.join(PATIENCE_SECONDS)
    assert told == [KazooState.LOST, "taken by the other"]
    wanted.release()


def test_a_creation_whose_answer_was_lost_is_found_when_the_client_stops(
    pooled: Maker, observer: ParKazooClient
) -> None:
    """What the carrier heard nothing of is put into its books by hand."""
    goes, stays = pooled(), pooled()
    goes.ensure_path("/q")
    for path, numbered in (("/once", False), ("/q/u1-", True), ("/q/both-", True)):
        result = goes.handler.async_result()
        goes._carrier.create_async(path, b"", ephemeral=True, sequence=numbered).get()
        goes._carrier.estates.doubted(goes._estate, Doubt(path, numbered))
        result.set(None)
    # Both clients may have made this one: it stays until the second one goes.
    goes._carrier.estates.doubted(stays._estate, Doubt("/q/both-", True))
    mine = stays.create("/q/u1-", ephemeral=True, sequence=True)
    goes.stop()
    assert observer.exists("/once") is None
    assert sorted(observer.get_children("/q")) == ["both-0000000001", mine[3:]]
    stays.stop()
    assert observer.get_children("/q") == []


def test_what_a_client_leaves_while_an_ensemble_is_away_goes_later(
    pooled: Maker, three: list[Ensemble], observer: ParKazooClient
) -> None:
    goes, stays = pooled(), pooled()
    for number in range(6):
        goes.create(f"/dirs/d{number}/e", ephemeral=True, makepath=True)
    goes._session_timeout = 200  # how long `stop` waits; the sessions' time stays
    three[1].pause()
    try:
        goes.stop()
    finally:
        three[1].resume()
    wait_until(lambda: stays.connected, "connected again")
    paths = [f"/dirs/d{number}/e" for number in range(6)]

    def gone() -> bool:
        try:
            return all(stays.exists(path) is None for path in paths)
        except ConnectionLoss:
            return False

    wait_until(gone, "ephemerals gone")
    assert stays.state == KazooState.CONNECTED


def test_when_the_session_is_lost_every_client_hears_it_and_goes_on(
    pooled: Maker, observer: ParKazooClient
) -> None:
    clients = [pooled() for _ in range(3)]
    heard: list[list[str]] = [[], [], []]
    for client, states in zip(clients, heard, strict=True):
        client.add_listener(states.append)
        client.create(f"/e{id(client)}", ephemeral=True)
    end_session(clients[0], "e1")
    # The CONNECTED of the start may come to a listener that was added after it.
    wait_until(
        lambda: all(
            KazooState.LOST in s and s[-1] == KazooState.CONNECTED for s in heard
        ),
        "all have lost it, and are connected again",
    )
    for client in clients:
        assert observer.exists(f"/e{id(client)}") is None
        client.create(f"/e{id(client)}", ephemeral=True)
    assert clients[0]._estate.paths.keys() == {f"/e{id(clients[0])}"}


def test_who_asks_as_he_hears_of_the_connection_does_not_stop_the_pool(
    three: list[Ensemble], observer: ParKazooClient
) -> None:
    """A listener of one that joined asked something of an ensemble that was still to be
    connected to (a lazy client's), as a connection dropped: each of two threads held a
    lock that the other waited for, and no client of the pool was told of anything."""
    hosts = three[0].hosts  # the others are connected to when they are needed
    first, second = (PooledClient(hosts, timeout=30, lazy=True) for _ in range(2))
    first.start(PATIENCE_SECONDS)
    known = first._carrier._sessions.by_name.values()
    (opened,) = [ensemble for ensemble in known if ensemble.opened]
    asked: list[Any] = []

    def listener(state: str) -> None:
        if state == KazooState.CONNECTED and not asked:
            opened._call(_CONNECTION_DROP, None)
            time.sleep(0.5)  # for the connection's thread to tell of it
            asked.extend(second.exists_async(f"/{n}/x") for n in range(9))

    second.add_listener(listener)
    starting = threading.Thread(target=second.start_async, daemon=True)
    starting.start()
    starting.join(PATIENCE_SECONDS)
    assert not starting.is_alive()
    for answer in asked:
        answer.wait(PATIENCE_SECONDS)
    assert len(asked) == 9 and all(answer.ready() for answer in asked)
    for client in (first, second):
        client.stop()
        client.close()


def test_watches_are_each_clients_own(pooled: Maker) -> None:
    actor, one, two = pooled(), pooled("/app"), pooled()
    actor.ensure_path("/app/n")
    seen: dict[str, list[Any]] = {"one": [], "two": [], "gone": []}
    one.exists("/n", watch=seen["one"].append)
    two.exists("/app/n", watch=seen["two"].append)
    gone = pooled()
    gone.exists("/app/n", watch=seen["gone"].append)
    gone.stop()
    actor.set("/app/n", b"1")
    wait_until(lambda: seen["one"] and seen["two"], "events")
    assert [event.path for event in seen["one"]] == ["/n"]
    assert [event.path for event in seen["two"]] == ["/app/n"]
    assert seen["gone"] == []  # as with Kazoo: not called when it stops, nor after


def test_a_tree_cache_follows_and_lets_go(pooled: Maker) -> None:
    actor, reader = pooled(), pooled()
    actor.create("/t/a", b"1", makepath=True)
    cache = TreeCache(reader, "/t")
    cache.start()
    wait_until(
        lambda: (d := cache.get_data("/t/a")) is not None and d.data == b"1",
        "cache filled",
    )
    actor.delete("/t/a")
    wait_until(lambda: not cache.get_children("/t"), "child gone")
    actor.create("/t/a", b"2")
    wait_until(
        lambda: (d := cache.get_data("/t/a")) is not None and d.data == b"2",
        "child back",
    )
    cache.close()


def test_nodes_that_others_delete_are_forgotten(
    pooled: Maker, observer: ParKazooClient
) -> None:
    client = pooled()
    client.ensure_path("/many")
    estates = client._carrier.estates
    estates.pruned_at = 50
    for number in range(45):
        client.create(f"/many/{number}", ephemeral=True)
        observer.delete(f"/many/{number}")
    stays = client.create("/many/stays", ephemeral=True)
    for number in range(100, 120):
        client.create(f"/many/{number}", ephemeral=True)
        client.delete(f"/many/{number}")
    for number in range(45, 55):
        client.create(f"/many/{number}", ephemeral=True)
        observer.delete(f"/many/{number}")
    wait_until(lambda: len(estates.owners) < 40, "forgotten")
    assert stays in estates.owners


def test_the_last_one_ends_the_sessions_and_the_next_begins_new_ones(
    pooled: Maker, three: list[Ensemble], observer: ParKazooClient
) -> None:
    only_observer(three)
    one, two = pooled(), pooled()
    one.stop()
    two.create("/e", ephemeral=True)
    two.stop()
    assert observer.exists("/e") is None
    assert two._carrier._stopped.is_set()
    only_observer(three)
    two.start(PATIENCE_SECONDS)
    two.create("/e", ephemeral=True)
    assert observer.exists("/e") is not None


def test_a_client_shows_the_session_that_owns_what_it_makes_at_its_root(
    pooled: Maker, three: list[Ensemble]
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in three)
    seen = set()
    for number in range(8):
        client = PooledClient(f"{hosts}/root{number}", timeout=30)
        pooled().ensure_path(f"/root{number}")
        client.start(PATIENCE_SECONDS)
        client.create("/mine", ephemeral=True)
        owner = client.exists("/mine").ephemeralOwner
        assert client.client_id[0] == owner
        seen.add(owner)
        with pytest.raises(Exception, match="before it is stopped"):
            client.close()
        client.stop()
        client.close()
    assert len(seen) > 1, "the roots are on several ensembles"


def test_rights_are_not_shared_unasked(pooled: Maker) -> None:
    plain = pooled()
    with pytest.raises(SharedCredentials):
        plain.add_auth("digest", "user:secret")
    with pytest.raises(ConfigurationError):
        pooled(client_id=(1, b"x" * 16))
    known = pooled(auth_data=[("digest", "user:secret")])
    assert known._carrier is not plain._carrier
    assert known.add_auth("digest", "user:secret")
    assert pooled(pool="second")._carrier is not plain._carrier
    assert pooled()._carrier is plain._carrier


def test_recursive_delete_and_counters_work_pooled(pooled: Maker) -> None:
    client = pooled("/deep")
    client.ensure_path("/")
    client.create("/a/b/c", makepath=True)
    client.delete("/a", recursive=True)
    assert client.exists("/a") is None
    counter = client.Counter("/count")
    counter += 2
    assert counter.value == 2
