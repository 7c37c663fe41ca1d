"""`ParKazooClient` on three real ensembles: what Kazoo's own suite does not ask."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.protocol.connection import _SESSION_EXPIRED
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl, make_digest_acl

import parkazoo.aio
from conftest import EnsembleFactory, Maker, running
from parkazoo import (
    CrossShardTransaction,
    NotInitialized,
    ParKazooClient,
    Rules,
    WeakSequence,
    check,
    failpoints,
    intents,
    remove,
)
from parkazoo.check import Checker
from parkazoo.layout import INTENTS
from servers import PATIENCE_SECONDS, four_letter_word, wait_until
from victim import finish


def nothing_wrong(client: ParKazooClient) -> bool:
    return list(Checker(client).run()) == []


def leave_behind(client: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a recursive delete, and stop short when its intent is written."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(remove, "_delete_all", die)
        patched.setattr(remove.Record, "leave", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            client.delete(path, recursive=True)


def test_directories_are_spread_and_look_like_one_tree(make: Maker) -> None:
    client = make()
    for number in range(12):
        client.create(f"/d{number}/x", b"1", makepath=True)
    table, layout = client.table, client._layout
    assert table is not None
    owners = {table.owners[layout.node(f"/d{n}/x").shard] for n in range(12)}
    assert owners == {"e0", "e1", "e2"}
    names = client.get_children("/")
    assert sorted(names) == sorted([f"d{n}" for n in range(12)] + ["zookeeper"])
    assert client.exists("/d3").numChildren == 1
    assert client.get("/d3/x")[1].numChildren == 0
    with pytest.raises(NotEmptyError):
        client.delete("/d3")
    assert nothing_wrong(client)


def test_a_second_client_needs_one_ensemble_to_find_the_others(make: Maker) -> None:
    first = make()
    first.create("/here")
    hosts = first.bootstrap[2]
    second = ParKazooClient(hosts, auto_init=False)
    second.start(PATIENCE_SECONDS)
    assert second.exists("/here") is not None
    assert set(second._sessions.by_name) == {"e0", "e1", "e2"}
    second.stop()
    second.close()


def test_data_of_somebody_else_is_not_hidden(ensembles: EnsembleFactory) -> None:
    hosts = ensembles(1)[0].hosts
    plain = KazooClient(hosts)
    plain.start(PATIENCE_SECONDS)
    plain.create("/precious")
    plain.stop()
    plain.close()
    client = ParKazooClient(hosts)
    with pytest.raises(NotInitialized, match="/precious"):
        client.start(PATIENCE_SECONDS)


def test_no_children_below_ephemerals(make: Maker) -> None:
    client = make()
    client.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemeralsError):
        client.create("/e/x")
    with pytest.raises(NoNodeError):
        client.create("/none/x")
    assert nothing_wrong(client)


def test_stats_of_directories_count_children_and_not_links(make: Maker) -> None:
    client = make()
    client.create("/s")
    assert client.exists("/s").cversion == 0
    client.create("/s/a")
    client.create("/s/b")
    client.delete("/s/a")
    stat = client.exists("/s")
    assert (stat.numChildren, stat.cversion) == (1, 3)
    assert client.set("/s", b"v").numChildren == 1
    names, listed = client.get_children("/s", include_data=True)
    assert (names, listed.numChildren) == (["b"], 1)


def test_a_directory_made_anew_is_empty_and_counts_from_zero(make: Maker) -> None:
    client = make()
    client.create("/n/x", makepath=True)
    client.delete("/n", recursive=True)
    client.create("/n")
    assert client.get_children("/n") == []
    assert client.create("/n/s-", sequence=True) == "/n/s-0000000000"


def test_child_watches_of_directories_that_come_and_go(make: Maker) -> None:
    watcher, actor = make(), make()
    actor.create("/w")
    seen: list[str] = []

    def watch(event: Any) -> None:
        seen.append(event.type)

    assert watcher.get_children("/w", watch=watch) == []
    actor.set("/w", b"changed")  # no business of a child watch
    actor.create("/w/x")
    wait_until(lambda: seen == ["CHILD"], "a first child is told")
    actor.delete("/w/x")
    assert watcher.get_children("/w", watch=watch) == []
    actor.delete("/w")
    wait_until(lambda: seen == ["CHILD", "DELETED"], "the removal is told")
    with pytest.raises(NoNodeError):
        watcher.get_children("/w")


def test_requests_sent_without_waiting_keep_their_order(make: Maker) -> None:
    client = make(session_order=True)
    client.create("/o")
    for number in range(10):
        d = f"/o/{number}"
        asked = [
            client.create_async(d),
            client.create_async(f"{d}/x", b"1"),
            client.set_async(f"{d}/x", b"2", 0),
            client.get_async(f"{d}/x"),
            client.create_async(f"{d}/y"),
            client.get_children_async(d),
            client.delete_async(f"{d}/x"),
            client.delete_async(f"{d}/y"),
            client.delete_async(d),
            client.create_async(d),
            client.get_children_async(d),
        ]
        answers = [result.get(timeout=PATIENCE_SECONDS) for result in asked]
        assert answers[3][0] == b"2"
        assert sorted(answers[5]) == ["x", "y"]
        assert answers[-1] == []


def test_one_shard_stays_in_order_without_being_asked_to(make: Maker) -> None:
    client = make()
    for number in range(10):
        d = f"/p{number}"
        client.create(d)
        asked = [client.create_async(f"{d}/x"), client.set_async(f"{d}/x", b"1", 0)]
        asked += [client.set_async(f"{d}/x", b"2", 1), client.get_async(f"{d}/x")]
        assert [result.get(timeout=PATIENCE_SECONDS) for result in asked][-1][0] == b"2"


def test_the_acl_of_a_directory_guards_its_children(make: Maker) -> None:
    owner, stranger = make(), make()
    owner.add_auth("digest", "me:secret")
    own = [
        make_digest_acl("me", "secret", all=True),
        make_acl("world", "anyone", read=True),
    ]
    owner.create("/a", acl=own)
    owner.create("/a/x")
    with pytest.raises(KazooException):
        stranger.create("/a/y")
    with pytest.raises(KazooException):
        stranger.delete("/a/x")
    owner.set_acls("/a", [make_acl("world", "anyone", all=True)])
    stranger.create("/a/y")
    assert nothing_wrong(owner)


def test_who_may_not_read_a_directory_hears_that_it_was_changed(make: Maker) -> None:
    """The Stat of its children's part could not be read, and that was the answer."""
    client, owner = make(), make(auth_data=[("digest", "me:secret")])
    owner.create("/w/x", makepath=True)
    unread = [make_acl("world", "anyone", write=True, admin=True)]
    own = make_digest_acl("me", "secret", all=True)
    assert owner.set_acls("/w", unread).numChildren == 1
    for version in (1, 2):
        stat = client.set("/w", b"1")
        assert (stat.version, stat.numChildren) == (version, 1)
    acls, stat = client.get_acls("/w")
    assert (acls, stat.numChildren) == (unread, 1)
    only_write = [make_acl("world", "anyone", write=True), own]
    assert client.set_acls("/w", only_write).aversion == 2
    assert client.set("/w", b"3").version == 3
    assert owner.get("/w")[0] == b"3"
    assert nothing_wrong(owner)


def test_transactions_of_one_shard_are_native(make: Maker) -> None:
    client = make()
    client.create("/t")
    with client.transaction() as transaction:
        transaction.create("/t/a", b"1")
        transaction.create("/t/b")
    assert sorted(client.get_children("/t")) == ["a", "b"]
    transaction = client.transaction()
    transaction.set_data("/t/a", b"2", 0)
    transaction.check("/t/b", 5)
    results = transaction.commit()
    assert [type(result) for result in results] == [RolledBackError, BadVersionError]
    client.create("/t/b/deep")
    client.delete("/t/b/deep")
    transaction = client.transaction()
    transaction.delete("/t/b")  # it has a bucket elsewhere
    assert transaction.commit() == [True]
    assert nothing_wrong(client)


def test_transactions_over_shards_are_refused_or_recorded(make: Maker) -> None:
    strict, lenient = make(), make(cross_shard="intent")
    strict.ensure_path("/x/a")
    strict.ensure_path("/x/b")
    transaction = strict.transaction()
    transaction.create("/x/a/1")
    transaction.create("/x/b/1")
    with pytest.raises(CrossShardTransaction, match="co-location"):
        transaction.commit()
    transaction = lenient.transaction()
    transaction.create("/x/a/1", b"v")
    transaction.create("/x/b/1")
    assert transaction.commit() == ["/x/a/1", "/x/b/1"]
    transaction = lenient.transaction()
    transaction.delete("/x/a/1")
    transaction.create("/x/a/2")
    transaction.create("/x/b/1")
    results = transaction.commit()
    assert all(isinstance(result, Exception) for result in results)
    assert strict.get("/x/a/1")[0] == b"v"
    assert strict.exists("/x/a/2") is None
    assert nothing_wrong(strict)


def test_a_transaction_that_was_undone_is_not_done_late(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client lost the one session that its ownership hung on, and had not heard
    of it: it did the rest of the shards after another client had undone the first."""
    slow, other = make(cross_shard="intent"), make()
    paths = [f"/late/{name}/x" for name in "abc"]
    for path in paths:
        other.ensure_path(path[:-2])
    taken_over = threading.Event()

    def take_over(label: str, when: str) -> None:
        if (label, when) != ("intent.3.apply", failpoints.AFTER):
            return
        if not taken_over.is_set():
            taken_over.set()
            for ensemble in other._sessions.by_name.values():
                for name in ensemble.get_children(INTENTS):
                    ensemble.delete(f"{INTENTS}/{name}/owner")
            finish(other)

    transaction = slow.transaction()
    for path in paths:
        transaction.create(path)
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", take_over)
        with pytest.raises(SessionExpiredError):
            transaction.commit()
    assert taken_over.is_set()
    assert [other.exists(path) for path in paths] == [None, None, None]
    assert nothing_wrong(other)
    monkeypatch.setattr(check, "MARK_SECONDS", 0.0)
    assert {f.kind for f in Checker(other).run(repair=True)} == {"stray"}
    assert nothing_wrong(other)


def test_what_a_living_client_could_not_finish_is_finished_by_others(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ownership ended only with its session, which went on."""
    client, other = make(cross_shard="intent"), make()
    for name in "abc":
        client.ensure_path(f"/half/{name}")
    do = intents._do
    done: list[Any] = []

    def fail_at_the_second(*given: Any) -> Any:
        if done:
            raise ConnectionLoss
        done.append(do(*given))
        return done[0]

    transaction = client.transaction()
    for name in "abc":
        transaction.create(f"/half/{name}/x")
    with monkeypatch.context() as patched:
        patched.setattr(intents, "_do", fail_at_the_second)
        with pytest.raises(ConnectionLoss):
            transaction.commit()
    finish(other)
    assert len({other.exists(f"/half/{name}/x") is None for name in "abc"}) == 1

    def fail(*_: Any) -> None:
        raise ConnectionLoss

    with monkeypatch.context() as patched:
        patched.setattr(remove, "_delete_all", fail)
        with pytest.raises(ConnectionLoss):
            client.delete("/half", recursive=True)
    finish(other)
    assert other.exists("/half") is None
    assert nothing_wrong(other)


def test_a_namespace_of_one_ensemble_transacts_anywhere(
    ensembles: EnsembleFactory,
) -> None:
    client = ParKazooClient(ensembles(1)[0].hosts)
    client.start(PATIENCE_SECONDS)
    transaction = client.transaction()
    for path in ("/u", "/u/v", "/u/v/w"):
        transaction.create(path)
    assert transaction.commit() == ["/u", "/u/v", "/u/v/w"]
    transaction = client.transaction()
    for path in ("/u/v/w", "/u/v", "/u"):
        transaction.delete(path)
    assert transaction.commit() == [True, True, True]
    assert client.exists("/u") is None
    assert nothing_wrong(client)
    client.stop()
    client.close()


def test_a_recursive_delete_left_behind_is_finished_by_others(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = make(), make()
    for number in range(5):
        client.create(f"/r/{number}/x", makepath=True)
    leave_behind(client, "/r", monkeypatch)
    assert remove.roll_forward(other) == []  # its owner is still alive
    client.stop()
    wait_until(
        lambda: "/r" in remove.roll_forward(other) or not other.exists("/r"),
        "another client finishes it",
    )
    assert other.exists("/r") is None
    assert nothing_wrong(other)


def test_a_client_that_runs_finishes_what_others_left_behind(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "LOOK_SECONDS", 0.2)
    client, other = make(), make()
    client.create("/r/x", makepath=True)
    leave_behind(client, "/r", monkeypatch)
    client.stop()
    wait_until(lambda: not other.exists("/r"), "the other one finishes it by itself")


def test_a_new_life_is_not_deleted_by_an_old_intent(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = make(), make()
    client.create("/r/x", makepath=True)
    leave_behind(client, "/r", monkeypatch)
    other.delete("/r/x")
    other.delete("/r")
    other.create("/r/new", makepath=True)
    client.stop()
    wait_until(
        lambda: not list(Checker(other).run()) or remove.roll_forward(other),
        "the intent is dealt with",
    )
    remove.roll_forward(other)
    assert other.get_children("/r") == ["new"]


def test_one_lost_session_ends_all_and_all_are_renewed(make: Maker) -> None:
    client, other = make(), make()
    states: list[str] = []
    client.add_listener(states.append)
    for number in range(6):
        client.create(f"/l{number}/e", ephemeral=True, makepath=True)
    victim = next(e for n, e in client._sessions.by_name.items() if n == "e1")
    victim._call(_SESSION_EXPIRED, None)
    wait_until(lambda: states[-1:] == [KazooState.CONNECTED], "renewed")
    assert states[0] == KazooState.LOST
    table, layout = client.table, client._layout
    assert table is not None
    for number in range(6):
        path = f"/l{number}/e"
        if table.owners[layout.node(path).shard] != "e1":
            assert other.exists(path) is None, "the other sessions were closed"
    assert client.create("/after") == "/after"


def test_weak_directories_spread_their_children(make: Maker) -> None:
    client = make(rules=Rules(weak=(("/weak", 8),)))
    client.create("/weak")
    seen: list[str] = []
    client.get_children("/weak", watch=lambda event: seen.append(event.type))
    for number in range(20):
        client.create(f"/weak/{number}")
    wait_until(lambda: seen == ["CHILD"], "one event for one watch")
    assert sorted(map(int, client.get_children("/weak"))) == list(range(20))
    assert client.exists("/weak").numChildren == 20
    with pytest.raises(WeakSequence):
        client.create("/weak/s-", sequence=True)
    with pytest.raises(NotEmptyError):
        client.delete("/weak")
    client.delete("/weak", recursive=True)
    assert client.exists("/weak") is None
    assert nothing_wrong(client)


def test_lazy_clients_connect_when_they_must(make: Maker) -> None:
    make().create("/z/x", makepath=True)
    hosts = make().bootstrap[0]
    client = ParKazooClient(hosts, lazy=True)
    client.start(PATIENCE_SECONDS)
    assert len([e for e in client._sessions.by_name.values() if e.opened]) == 1
    for number in range(12):
        client.ensure_path(f"/lazy/{number}/x")
    assert all(e.opened for e in client._sessions.by_name.values())
    client.stop()
    client.close()


def test_a_lazy_client_keeps_one_connection_of_all_that_are_named(make: Maker) -> None:
    """It kept a session with each: a hosts string names them all, as a rule."""
    hosts = ";".join(make().bootstrap)
    with running(ParKazooClient(hosts, lazy=True, timeout=30)) as client:
        assert client.table is not None
        first = [n for n, e in client._sessions.by_name.items() if e.opened]
        assert len(first) == 1
        wait_until(lambda: sessions_at(client) == 1, "the others are let go")
        for number in range(12):
            client.ensure_path(f"/lazy/{number}/x")
        assert len(client.client_ids) == 3
        assert sessions_at(client) == 3


def sessions_at(client: ParKazooClient) -> int:
    """With how many ensembles it has a session by what the servers say: each has one
    of the client that made the namespace."""
    assert client.table is not None
    ports = [int(h.rpartition(":")[2]) for h in client.table.ensembles.values()]
    alive = [four_letter_word(port, "cons").count("sid=0x") for port in ports]
    return sum(alive) - len(ports)


def test_asyncio(make: Maker) -> None:
    hosts = ";".join(make().bootstrap)

    async def program() -> None:
        async with parkazoo.aio.Client(hosts) as client:
            told = asyncio.Event()

            async def watch(event: Any) -> None:
                told.set()

            await client.create("/aio")
            assert await client.get_children("/aio", watch=watch) == []
            creations = [client.create(f"/aio/{n}") for n in range(100)]
            await asyncio.gather(*creations)
            await asyncio.wait_for(told.wait(), PATIENCE_SECONDS)
            async with client.lock("/lock", "me") as lock:
                assert lock.is_acquired
                waiting = asyncio.create_task(
                    client.run(client.client.Lock("/lock").acquire, True, 0.5)
                )
                with pytest.raises(KazooException):
                    await waiting
            await client.delete("/aio", recursive=True)
            with pytest.raises(NoNodeError):
                await client.get("/aio")

    asyncio.run(program())
