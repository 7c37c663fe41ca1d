"""One client asks without waiting: transactions, ACLs and recursive deletes keep their
place among its other requests, whichever of them take several steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, UnimplementedError
from kazoo.protocol.serialization import SetACL
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from conftest import EnsembleFactory, Maker, started
from parkazoo import ParKazooClient, PooledClient, failpoints
from servers import PATIENCE_SECONDS, Ensemble
from test_order_fuzz import moving

TIMES = 10


@pytest.fixture(params=["", "session_order", "pooled", "one ensemble"])
def client(
    request: pytest.FixtureRequest, ensembles: EnsembleFactory
) -> Iterator[ParKazooClient | PooledClient]:
    count = 1 if request.param == "one ensemble" else 3
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(count))
    if request.param == "pooled":
        pooled = PooledClient(hosts, timeout=30)
        pooled.start(PATIENCE_SECONDS)
        yield pooled
        pooled.stop()
        return
    with started(hosts, session_order=request.param == "session_order") as made:
        yield made


def answers(asked: list[Any]) -> list[Any]:
    return [result.get(timeout=PATIENCE_SECONDS) for result in asked]


def test_a_transaction_waits_for_the_first_child_before_it(client: Any) -> None:
    for n in range(TIMES):
        client.create(f"/t{n}")
        first = client.create_async(f"/t{n}/a", b"1")
        transaction = client.transaction()
        transaction.set_data(f"/t{n}/a", b"2")
        _, results = answers([first, transaction.commit_async()])
        assert not isinstance(results[0], Exception), repr(results)
        assert client.get(f"/t{n}/a")[0] == b"2"


def test_a_transaction_that_makes_a_first_child_is_not_overtaken(client: Any) -> None:
    for n in range(TIMES):
        client.create(f"/u{n}")
        transaction = client.transaction()
        transaction.create(f"/u{n}/a", b"1")
        asked = [transaction.commit_async()]
        asked.append(client.set_async(f"/u{n}/a", b"2", 0))
        asked.append(client.get_async(f"/u{n}/a"))
        asked.append(client.get_children_async(f"/u{n}"))
        _, _, (value, _), names = answers(asked)
        assert (value, names) == (b"2", ["a"])


def test_a_recursive_delete_waits_for_what_was_asked_before(client: Any) -> None:
    for n in range(TIMES):
        client.create(f"/r{n}")
        transaction = client.transaction()
        transaction.create(f"/r{n}/b")
        asked = [client.create_async(f"/r{n}/a", b"1"), transaction.commit_async()]
        asked.append(client.set_async(f"/r{n}/a", b"2"))
        asked.append(client.get_children_async(f"/r{n}"))
        client.delete(f"/r{n}", recursive=True)
        assert sorted(answers(asked)[-1]) == ["a", "b"]
        assert client.exists(f"/r{n}") is None


APPENDED_ONLY = [make_acl("world", "anyone", read=True, admin=True, create=True)]
FULL = [make_acl("world", "anyone", read=True, admin=True, delete=True, write=True)]
# Each depends on the ACLs that were set before it, or must not feel those behind it.
AROUND_ACLS: list[tuple[Any, ...]] = [
    ("create", "/acl/leaf/first"),
    ("set_acls", "/acl/leaf", FULL),
    ("create", "/acl/leaf/second"),
    ("create", "/acl/x", b"1"),
    ("set_acls", "/acl/x", APPENDED_ONLY, 0),
    ("get_acls", "/acl/x"),
    ("set", "/acl/x", b"2"),
    ("create", "/acl/x/y"),
    ("set_acls", "/acl/x", FULL, 1),
    ("set", "/acl/x", b"3"),
    ("create", "/acl/x/z"),
    ("delete", "/acl/x/y"),
    ("delete", "/acl/x"),
    ("get_acls", "/acl/x"),
    ("create", "/acl/before"),
    ("set_acls", "/acl", FULL),
    ("create", "/acl/behind"),
    ("delete", "/acl/before"),
    ("set_acls", "/acl", APPENDED_ONLY),
    ("delete", "/acl/old"),
    ("create", "/acl/last"),
    ("get_acls", "/acl"),
    ("set_acls", "/acl", OPEN_ACL_UNSAFE),
    ("set_acls", "/acl/leaf", OPEN_ACL_UNSAFE, 7),
    ("delete", "/acl/old"),
    ("get_children", "/acl"),
]


def around_acls(client: Any, waiting: bool = False) -> list[Any]:
    """The answers, as far as two servers give the same ones."""
    for path in ("/acl", "/acl/old", "/acl/leaf"):
        client.create(path)
    asked = []
    for name, *arguments in AROUND_ACLS:
        asked.append(getattr(client, f"{name}_async")(*arguments))
        if waiting:
            asked[-1].wait(PATIENCE_SECONDS)
    found: list[Any] = []
    for result in asked:
        try:
            answer = result.get(timeout=PATIENCE_SECONDS)
        except KazooException as error:
            answer = type(error)
        if type(answer) is tuple:
            answer = answer[0], answer[1].aversion
        if type(answer) is list:
            answer.sort()
        found.append(getattr(answer, "aversion", answer))
    client.delete("/acl", recursive=True)
    return found


def in_plain_zookeeper(client: Any) -> list[Any]:
    """One after the other: a server judges what it is sent without waiting by the ACL
    that it has committed."""
    plain = KazooClient(next(iter(client.table.ensembles.values())))
    plain.start(PATIENCE_SECONDS)
    try:
        plain.create("/plain")
        plain.chroot = "/plain"
        found = around_acls(plain, waiting=True)
    finally:
        plain.stop()
        plain.close()
    assert found.count(NoAuthError) == 5, found
    return found


def test_acls_keep_their_place_as_in_plain_zookeeper(client: Any) -> None:
    wanted = in_plain_zookeeper(client)
    for _ in range(TIMES):
        assert around_acls(client) == wanted


def test_acls_keep_their_place_while_shards_move(make: Maker) -> None:
    client, mover = make(), make()
    wanted = in_plain_zookeeper(client)
    with moving(mover) as moved:
        for _ in range(2 * TIMES):
            assert around_acls(client) == wanted
    assert moved[0]


def test_an_acl_that_is_set_holds_nothing_else_up(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make()
    client.create("/acl/x", makepath=True)
    client.create("/acl/y")
    assert client.table is not None
    owner = client.table.owners[client._layout.node("/acl/x").shard]
    ensemble = client._sessions.by_name[owner]
    submit, kept = ensemble.submit, threading.Event()
    sent: list[Any] = []

    def keep(request: Any, reply: Any) -> None:
        if isinstance(request, SetACL):
            sent.append((request, reply))
            kept.set()
        else:
            submit(request, reply)

    monkeypatch.setattr(ensemble, "submit", keep)
    asked = [client.set_acls_async("/acl/x", FULL), client.get_acls_async("/acl/x")]
    assert kept.wait(PATIENCE_SECONDS)
    answers([client.set_async("/acl/y", b"1"), client.get_async("/acl")])
    assert not any(result.ready() for result in asked)
    submit(*sent[0])
    assert answers(asked)[1][0] == FULL
    assert not client._ordering.gates


def test_a_transaction_in_two_directories_is_not_overtaken_in_either(
    ensembles: EnsembleFactory,
) -> None:
    with started(ensembles(1)[0].hosts) as client:
        for n in range(TIMES):
            client.create(f"/a{n}")
            client.create(f"/b{n}")
            transaction = client.transaction()
            transaction.create(f"/a{n}/x", b"1")
            transaction.create(f"/b{n}/y", b"1")
            asked = [transaction.commit_async()]
            for path in (f"/a{n}/x", f"/b{n}/y"):
                asked += [client.set_async(path, b"2"), client.get_async(path)]
            results = answers(asked)
            assert [results[2][0], results[4][0]] == [b"2", b"2"]


@pytest.mark.parametrize("session_order", [False, True])
def test_who_waits_with_a_transaction_does_not_overtake_it_at_another_node(
    make: Maker, monkeypatch: pytest.MonkeyPatch, session_order: bool
) -> None:
    """It waits because of one node, behind the removal of a directory; what came after
    it was about the other, and found no gate."""
    client = make(session_order=session_order)
    client.create("/d/k/z", makepath=True)
    client.delete("/d/k/z")
    client.create("/d/x", b"0")
    closed, all_asked = threading.Event(), threading.Event()

    def wait_for_all(label: str, when: str) -> None:
        if (label, when) == ("delete.2.close", failpoints.BEFORE):
            closed.set()
            assert all_asked.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(failpoints, "hook", wait_for_all)
    asked = [client.delete_async("/d/k")]
    assert closed.wait(PATIENCE_SECONDS)
    transaction = client.transaction()
    transaction.create("/d/k", b"anew")
    transaction.set_data("/d/x", b"1")
    asked.append(transaction.commit_async())
    asked += [client.set_async("/d/x", b"2", 1), client.get_async("/d/k")]
    all_asked.set()
    results = answers(asked)
    assert not any(isinstance(result, Exception) for result in results[1])
    assert results[3][0] == b"anew"
    assert client.get("/d/x")[0] == b"2"


def test_a_read_of_a_directory_is_not_asked_again_behind_a_later_write(
    make: Maker,
) -> None:
    """It had its answer, and was asked again when the first child had been made; by
    then the write that was sent after it had had its effect."""
    client = make()
    for n in range(3 * TIMES):
        client.create(f"/w{n}", b"old")
        asked = [client.create_async(f"/w{n}/x"), client.get_async(f"/w{n}")]
        asked.append(client.set_async(f"/w{n}", b"new"))
        assert answers(asked)[1][0] == b"old"


def test_a_read_in_two_places_is_too_early_where_it_is(
    ensembles: EnsembleFactory,
) -> None:
    """The client takes a node for a directory, and asks for its children's part, too;
    that came when the first child was made, and with it the answer that it is not
    there, or that there is nothing to set."""
    taken = ensembles(3)
    with started(";".join(ensemble.hosts for ensemble in taken)) as client:
        d = _whose_child_has_its_children_elsewhere(client)
        slow = _of(client, taken, f"{d}/x")
        client.create(d)
        client._layout.learn(f"{d}/x", True)
        slow.pause()
        asked = [
            client.create_async(f"{d}/x", b"1"),
            client.get_async(f"{d}/x"),
            client.exists_async(f"{d}/x"),
            client.set_async(f"{d}/x", b"2"),
            client.get_async(f"{d}/x"),
        ]
        last = client.delete_async(f"{d}/x")
        assert last.get(timeout=PATIENCE_SECONDS)
        slow.resume()
        _, (first, _), stat, _, (second, _) = answers(asked)
        assert (first, stat.version, second) == (b"1", 0, b"2")


def _of(client: ParKazooClient, taken: list[Ensemble], path: str) -> Ensemble:
    """The ensemble that holds the children of a node."""
    assert client.table is not None
    hosts = client.table.ensembles[_owner(client, path)]
    return next(ensemble for ensemble in taken if ensemble.hosts == hosts)


def _owner(client: ParKazooClient, path: str) -> str:
    assert client.table is not None
    return client.table.owners[client._layout.buckets(path)[0].shard]


def _whose_child_has_its_children_elsewhere(client: ParKazooClient) -> str:
    return next(
        d
        for d in (f"/p{number}" for number in range(1000))
        if _owner(client, f"{d}/x") not in (_owner(client, d), _owner(client, "/"))
    )


def test_nothing_is_left_under_way(make: Maker) -> None:
    """A recursive delete would wait for it for ever."""
    client = make()
    answers([client.create_async("/e"), client.create_async("/e/x")])
    with pytest.raises(UnimplementedError):
        client._call(_Unknown(), client.handler.async_result())
    assert client._ordering.under_way == set()
    client.delete("/e", recursive=True)
    assert client._ordering.waiting_for == {}


class _Unknown:
    path = "/e"


def test_a_recursive_delete_waits_for_nothing_elsewhere(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make()
    client.create("/f/x", makepath=True)
    client.create("/g")
    held, go = threading.Event(), threading.Event()

    def hold(label: str, when: str) -> None:
        if (label, when) == ("create.0.child", failpoints.BEFORE):
            held.set()
            assert go.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(failpoints, "hook", hold)
    thread = threading.Thread(target=client.create, args=("/g/x",))
    thread.start()
    assert held.wait(PATIENCE_SECONDS)
    client.delete("/f", recursive=True)
    assert thread.is_alive()
    go.set()
    thread.join(PATIENCE_SECONDS)
    assert client.exists("/g/x")
