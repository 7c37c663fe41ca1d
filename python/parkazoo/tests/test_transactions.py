"""Transactions over shards and ACLs, their limits, and what is told of them, on real
servers. That they are whole whoever dies is seen in `test_killed_clients.py`."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadArgumentsError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory, Maker
from parkazoo import ParKazooClient, failpoints, intents, remove
from parkazoo.errors import NotUndone
from parkazoo.layout import INTENTS
from servers import wait_until

ALICE = [("digest", "alice:secret")]
ALL_ALICE = [make_digest_acl("alice", "secret", all=True)]
READ_ALL = make_acl("world", "anyone", read=True)


@pytest.fixture(autouse=True)
def nobody_looks_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work left behind is finished when a test says so."""
    monkeypatch.setattr(remove, "watchman", lambda *_: None)


def intents_left(client: Any) -> list[str]:
    return [
        name
        for ensemble in client._sessions.by_name.values()
        for name in ensemble.get_children(INTENTS)
    ]


def finished_by(client: Any) -> list[str]:
    """What `client` finishes, once those who may not have let it go: they do so
    behind their callers' backs."""
    finished: list[str] = []
    wait_until(
        lambda: finished.extend(remove.roll_forward(client)) or finished, "let go"
    )
    return finished


def in_two_directories(client: Any, acl: Any) -> None:
    for directory in ("/p", "/q"):
        client.create(directory)
        client.create(f"{directory}/n", b"old", acl=acl)


def die_half_way(client: Any, transaction: Any, monkeypatch: Any) -> None:
    """Commit, and end without a word when one shard has done its part."""

    def hook(label: str, when: str) -> None:
        if (label, when) == ("intent.3.apply", failpoints.AFTER):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        with pytest.raises(KeyboardInterrupt):
            intents.commit(client, transaction.operations, None)
    client.stop()


def test_who_may_not_undo_a_transaction_leaves_it_to_who_may(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusal was taken for somebody's change: half of it stayed for good."""
    dying, low = make(auth_data=ALICE, cross_shard="intent"), make()
    alice = make(auth_data=ALICE)
    in_two_directories(alice, ALL_ALICE)
    transaction = dying.transaction()
    transaction.set_data("/p/n", b"new")
    transaction.set_data("/q/n", b"new")
    die_half_way(dying, transaction, monkeypatch)
    with pytest.raises(NotUndone):
        remove.roll_forward(low)
    assert (alice.get("/p/n")[0], alice.get("/q/n")[0]) == (b"new", b"old")
    assert finished_by(alice) == ["/p/n", "/q/n"]
    assert (alice.get("/p/n")[0], alice.get("/q/n")[0]) == (b"old", b"old")
    assert intents_left(alice) == []


def test_a_refused_transaction_that_cannot_be_undone_says_so(make: Maker) -> None:
    """A creation in a directory in which its client may not delete: it was told that
    nothing had been done, and the new node stayed."""
    alice, low = make(auth_data=ALICE), make(cross_shard="intent")
    append = make_acl("world", "anyone", read=True, create=True)
    alice.create("/log", acl=[*ALL_ALICE, append])
    alice.create("/q")
    alice.create("/q/n", b"old", acl=[*ALL_ALICE, READ_ALL])
    transaction = low.transaction()
    transaction.create("/log/entry", b"new")
    transaction.set_data("/q/n", b"new")
    with pytest.raises(NotUndone, match="/log/entry"):
        transaction.commit()
    assert alice.get_children("/log") == ["entry"]
    assert finished_by(alice) == ["/log/entry", "/q/n"]
    assert alice.get_children("/log") == []
    assert intents_left(alice) == []


def test_what_could_not_be_made_again_is_not_deleted(make: Maker) -> None:
    """A deletion was undone with the ACL that its client saw: without the digests."""
    alice, low = make(auth_data=ALICE), make(cross_shard="intent")
    acl = [*ALL_ALICE, READ_ALL]
    in_two_directories(alice, acl)
    transaction = low.transaction()
    transaction.delete("/p/n")
    transaction.set_data("/q/n", b"new")
    first, second = transaction.commit()
    assert isinstance(first, NoAuthError) and "hidden" in str(first)
    assert isinstance(second, RuntimeInconsistency)
    assert alice.get_acls("/p/n")[0] == alice.get_acls("/q/n")[0]
    assert sorted(alice.get_acls("/p/n")[0]) == sorted(acl)
    assert alice.get("/q/n")[0] == b"old"
    assert intents_left(alice) == []


def test_who_may_not_read_a_node_is_answered_like_kazoo(make: Maker) -> None:
    alice, low = make(auth_data=ALICE), make(cross_shard="intent")
    in_two_directories(alice, ALL_ALICE)
    transaction = low.transaction()
    transaction.create("/p/m")
    transaction.set_data("/q/n", b"new")
    first, second = transaction.commit()
    assert isinstance(first, RolledBackError) and isinstance(second, NoAuthError)
    assert alice.get_children("/p") == ["n"]


def test_the_stat_of_a_directory_that_a_transaction_sets_is_that_of_its_children(
    make: Maker,
) -> None:
    """It was that of its own node, whose child is a link."""
    client = make()
    for number in range(5):
        client.create(f"/d/{number}", makepath=True)
    client.create("/leaf")
    for path, children in (("/d", 5), ("/leaf", 0)):
        transaction = client.transaction()
        transaction.set_data(path, b"1")
        (stat,) = transaction.commit()
        assert stat == client.exists(path) and stat.numChildren == children


def test_the_root_counts_its_children_as_it_lists_them(make: Maker) -> None:
    client = make()
    client.create("/x")
    names, stat = client.get_children("/", include_data=True)
    assert sorted(names) == ["x", "zookeeper"] and stat.numChildren == 2
    assert stat == client.exists("/") == client.get("/")[1] == client.get_acls("/")[1]
    assert client.set("/", b"").numChildren == 2


def test_a_transaction_that_may_not_take_a_directory_away_says_so(make: Maker) -> None:
    """It tried a hundred times, and said that it kept meeting others."""
    alice, low = make(auth_data=ALICE), make()
    alice.create("/p/d/x", makepath=True)
    alice.delete("/p/d/x")
    alice.set_acls("/p/d", [*ALL_ALICE, READ_ALL])
    transaction = low.transaction()
    transaction.delete("/p/d")
    (refusal,) = transaction.commit()
    assert isinstance(refusal, NoAuthError)
    assert alice.get_children("/p/d") == []


def test_an_ephemeral_and_its_child_are_refused_as_in_kazoo(
    ensembles: EnsembleFactory,
) -> None:
    (one,) = ensembles(1)
    answers = []
    for client in (KazooClient(one.hosts), ParKazooClient(one.hosts)):
        client.start()
        transaction = client.transaction()
        transaction.create("/e", ephemeral=True)
        transaction.create("/e/x")
        answers.append([type(result) for result in transaction.commit()])
        assert client.exists("/e") is None
        client.stop()
        client.close()
    assert answers[0] == answers[1] == [RolledBackError, NoChildrenForEphemeralsError]


def seen_by_anybody(hosts: str) -> bytes:
    """All there is to read of the records on an ensemble, and who may."""
    anybody = KazooClient(hosts)
    anybody.start()
    found = b""
    for name in anybody.get_children(INTENTS):
        for path in (f"{INTENTS}/{name}", f"{INTENTS}/{name}/before"):
            with contextlib.suppress(NoAuthError, NoNodeError):
                found += anybody.get(path)[0]
    anybody.stop()
    anybody.close()
    return found


def test_a_record_shows_nobody_what_he_may_not_read(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and ACLs from before were in it, for everybody to read meanwhile."""
    dying, low = make(auth_data=ALICE, cross_shard="intent"), make()
    alice = make(auth_data=ALICE)
    in_two_directories(alice, ALL_ALICE)
    alice.create("/p/open", b"old")
    transaction = dying.transaction()
    transaction.delete("/p/n")
    transaction.set_data("/q/n", b"new")
    transaction.set_data("/p/open", b"new")
    die_half_way(dying, transaction, monkeypatch)
    seen = seen_by_anybody(alice.table.ensembles[alice.table.seat])
    assert b"/p/n" in seen
    assert b"b2xk" not in seen and b"alice" not in seen  # "old", in base64
    assert alice.exists("/p/n") is None
    with pytest.raises(NotUndone, match="may not read"):
        remove.roll_forward(low)
    assert finished_by(alice) == ["/p/n", "/q/n", "/p/open"]
    assert alice.get("/p/n")[0] == alice.get("/p/open")[0] == b"old"
    assert alice.get_acls("/p/n")[0] == ALL_ALICE
    assert intents_left(alice) == []


@pytest.mark.parametrize("shown", [True, False])
def test_who_may_not_see_what_was_before_ends_what_is_done(
    make: Maker, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    dying, low = make(auth_data=ALICE, cross_shard="intent"), make()
    alice = make(auth_data=ALICE, cross_shard="intent")
    acl = [*ALL_ALICE, READ_ALL] if shown else ALL_ALICE
    in_two_directories(alice, acl)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    steps = [("set_data", path, b"new") for path in ("/p/n", "/q/n")]
    with monkeypatch.context() as patched:
        patched.setattr(intents, "forget", die)
        transaction = dying.transaction()
        for _, path, data in steps:
            transaction.set_data(path, data)
        with pytest.raises(KeyboardInterrupt):
            intents.commit(dying, transaction.operations, None)
    dying.stop()
    seat = alice.table.ensembles[alice.table.seat]
    assert (b"b2xk" in seen_by_anybody(seat)) == shown
    assert remove.roll_forward(low) == ["/p/n", "/q/n"]
    assert intents_left(alice) == []
    assert alice.get("/p/n")[0] == alice.get("/q/n")[0] == b"new"
    # One that ends well, and one that is refused, take theirs away, too.
    assert len(transact(alice, *steps)) == 2
    alice.create("/full/d/x", makepath=True)
    results = transact(alice, *steps, ("delete", "/full/d"))
    assert isinstance(results[-1], NotEmptyError)
    assert intents_left(alice) == []


def test_who_is_nobody_in_particular_records_for_everybody(make: Maker) -> None:
    """Of whom the servers know an address, and no more, there is no ACL to be made."""
    client = make(cross_shard="intent")
    here = [make_acl("ip", "127.0.0.1", all=True)]
    in_two_directories(client, here)
    assert transact(client, ("set_data", "/p/n", b"new"), ("delete", "/q/n"))[1] is True
    assert client.get("/p/n")[0] == b"new" and not client.exists("/q/n")
    assert intents_left(client) == []


def transact(client: Any, *operations: tuple[Any, ...]) -> list[Any]:
    transaction = client.transaction()
    for kind, *arguments in operations:
        getattr(transaction, kind)(*arguments)
    results: list[Any] = transaction.commit()
    return results


def test_a_transaction_over_shards_is_done_in_an_order_that_works(make: Maker) -> None:
    """Shard by shard, in the order of their first nodes, a directory was to go before
    its child."""
    client = make(cross_shard="intent")
    client.create("/status")
    client.create("/a/b", makepath=True)
    steps = ("set_data", "/status", b"done"), ("delete", "/a/b"), ("delete", "/a")
    results = transact(client, *steps)
    assert not any(isinstance(result, Exception) for result in results)
    assert client.exists("/a") is None and client.get("/status")[0] == b"done"
    made = ["/a", "/a/b", "/a/b/c"]
    assert transact(client, *(("create", path) for path in made)) == made
    # And back: what is refused last undoes them in the opposite order.
    client.set("/a/b/c", b"old")
    client.create("/full/d/x", makepath=True)
    steps = [("delete", path) for path in (*reversed(made), "/full/d")]
    results = transact(client, *steps)
    assert [type(result) for result in results] == [RolledBackError] * 3 + [
        NotEmptyError
    ]
    assert client.get("/a/b/c")[0] == b"old"
    steps = [("create", path) for path in ("/n", "/n/o", "/n/o/p")]
    results = transact(client, *steps, ("delete", "/full/d"))
    assert isinstance(results[-1], NotEmptyError)
    assert client.exists("/n") is None
    assert intents_left(client) == []


def test_an_order_that_cannot_work_shard_by_shard_is_refused(make: Maker) -> None:
    """Children that are made and that are deleted on one shard, directories, too."""
    client = make(cross_shard="intent")
    shards: dict[int, str] = {}
    for number in itertools.count():
        made, shard = f"/d{number}", client._layout.buckets(f"/d{number}")[0].shard
        old = shards.setdefault(shard, made)
        if old != made:
            break
    client.create(f"{old}/x", makepath=True)
    steps = [("create", made), ("create", f"{made}/x")]
    steps += [("delete", f"{old}/x"), ("delete", old)]
    with pytest.raises(BadArgumentsError, match="two transactions"):
        transact(client, *steps)
    assert client.exists(f"{old}/x") and not client.exists(made)
    assert len(transact(client, *steps[:2]) + transact(client, *steps[2:])) == 4


def test_a_transaction_whose_record_servers_would_not_take_is_refused(
    make: Maker,
) -> None:
    """The servers cut the connection, and the client was SUSPENDED."""
    client = make(cross_shard="intent")
    for directory in ("/p", "/q"):
        client.create(f"{directory}/n", b"z" * 500_000, makepath=True)
    states: list[str] = []
    client.add_listener(states.append)
    steps = [("set_data", f"{directory}/n", b"") for directory in ("/p", "/q")]
    with pytest.raises(BadArgumentsError, match=r"1333\d+ bytes, more than 1000000"):
        transact(client, *steps)
    assert states == [] and client.get("/p/n")[1].version == 0
    for directory in ("/p", "/q"):
        client.set(f"{directory}/n", b"z" * 374_000)
    client.create("/r/n", b"z" * 500_000, makepath=True)
    results = transact(client, *steps, ("check", "/r/n", 0))  # its data is not needed
    assert not any(isinstance(result, Exception) for result in results)
    assert states == []
