"""Transactions over shards and ACLs, their limits, and what is told of them, on real
servers. That they are whole whoever dies is seen in `test_killed_clients.py`."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    NoAuthError,
    NoChildrenForEphemeralsError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory, Maker
from parkazoo import ParKazooClient, failpoints, intents, remove
from parkazoo.errors import NotUndone
from parkazoo.layout import INTENTS

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
    with pytest.raises(NotUndone, match=r"/p/n \(NoAuthError\)"):
        remove.roll_forward(low)
    assert (alice.get("/p/n")[0], alice.get("/q/n")[0]) == (b"new", b"old")
    assert remove.roll_forward(alice) == ["/p/n", "/q/n"]
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
    assert remove.roll_forward(alice) == ["/log/entry", "/q/n"]
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
