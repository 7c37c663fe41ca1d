"""What arrives late must do nothing: answers after a session was lost, and the work
of a client that was overtaken by others."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.exceptions import SessionExpiredError
from kazoo.protocol.connection import _SESSION_EXPIRED
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory
from parkazoo import ParKazooClient, failpoints, record, remove
from parkazoo.copying import Copier
from parkazoo.layout import INTENTS
from parkazoo.mapping import Table
from parkazoo.move import Mover
from parkazoo.requests import _sync
from servers import PATIENCE_SECONDS, wait_until
from test_client import Maker, leave_behind, nothing_wrong


def directory_on(client: ParKazooClient, ensemble: str) -> str:
    """A directory whose children are on an ensemble; it is made, with its bucket."""
    table, layout = client.table, client._layout
    assert table is not None
    for number in range(10**6):
        path = f"/on{number}"
        if table.owners[layout.buckets(path)[0].shard] == ensemble:
            client.create(f"{path}/first", makepath=True)
            return path
    raise AssertionError


def test_nothing_is_acknowledged_after_a_session_was_lost(
    ensembles: EnsembleFactory,
) -> None:
    """A request to one ensemble is under way when the session with another is lost.
    Its session is closed then, so an answer must not be taken for a lock that is
    held: nobody would tell its owner again that it is gone."""
    taken = ensembles(2)
    client = ParKazooClient(";".join(e.hosts for e in taken), timeout=40)
    client.start(PATIENCE_SECONDS)
    try:
        lost = threading.Event()
        client.add_listener(lambda s: lost.set() if s == KazooState.LOST else None)
        assert client.table is not None
        hosts = client.table.ensembles["e1"]
        slow = next(e for e in taken if e.hosts == hosts)
        path = directory_on(client, "e1")
        for server in slow.servers:
            server.pause()
        made = client.create_async(f"{path}/lock", ephemeral=True)
        client._sessions.by_name["e0"]._call(_SESSION_EXPIRED, None)
        assert lost.wait(PATIENCE_SECONDS)
        for server in slow.servers:
            server.resume()
        with pytest.raises(SessionExpiredError):
            made.get(timeout=PATIENCE_SECONDS)
        wait_until(lambda: client.connected, "all sessions are renewed")
        assert client.exists(f"{path}/lock") is None
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("when", ["listed", "held"])
def test_a_new_life_is_not_deleted_by_who_finishes_the_work_of_another(
    make: Maker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It had seen the mark and listed the children; then all was deleted and made
    anew, with the same names."""
    client, other, third = make(), make(), make()
    client.create("/r/d/x", makepath=True)
    leave_behind(client, "/r", monkeypatch)
    again: list[str] = []

    def make_anew() -> None:
        if not again:
            for path in ("/r/d/x", "/r/d", "/r"):
                third.delete(path)
            again.append(third.create("/r/d/x", makepath=True))

    bears_mark, sweep = remove._bears_mark, remove.sweep
    looks = []

    def late_to_look(*arguments: Any) -> bool:
        found = bears_mark(*arguments)
        looks.append(found)
        if when == "held" and len(looks) > 1:
            make_anew()
        return found

    def late_to_sweep(*arguments: Any) -> None:
        if when == "listed":
            make_anew()
        sweep(*arguments)

    monkeypatch.setattr(remove, "_bears_mark", late_to_look)
    monkeypatch.setattr(remove, "sweep", late_to_sweep)
    client.stop()
    wait_until(lambda: bool(remove.roll_forward(other)) or bool(again), "taken over")
    assert again and third.exists("/r/d/x") is not None
    wait_until(lambda: nothing_wrong(other) or remove.roll_forward(other), "all ended")
    assert third.exists("/r/d/x") is not None


def test_a_transaction_that_was_taken_over_is_not_acknowledged(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client did every part, but another, who had looked before the last one was
    done, had decided to undo it; and a third found all parts done."""
    slow, other, third = make(cross_shard="intent"), make(), make()
    paths = [f"/taken-over/{name}/x" for name in "abc"]
    for path in paths:
        other.ensure_path(path[:-2])
    done: list[str] = []
    held: list[Any] = []

    def take_over(label: str, when: str) -> None:
        if (label, when) != ("intent.3.apply", failpoints.AFTER):
            return
        done.append(label)
        if len(done) < len(paths):
            return
        for ensemble in other._sessions.by_name.values():
            for name in ensemble.get_children(INTENTS):
                intent = f"{INTENTS}/{name}"
                ensemble.delete(f"{intent}/owner")
                taken = record.take(other, ensemble, intent)
                assert taken is not None
                held.append((ensemble, intent))
                assert record.decide_undone(ensemble, intent, *taken) is not None

    transaction = slow.transaction()
    for path in paths:
        transaction.create(path)
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", take_over)
        with pytest.raises(SessionExpiredError):
            transaction.commit()
    assert len(held) == 1
    ensemble, intent = held[0]
    assert ensemble.exists(intent) is not None, "it is not its client's to take away"
    record.release(other, ensemble, intent)
    wait_until(
        lambda: remove.roll_forward(third) or ensemble.exists(intent) is None, "undone"
    )
    assert [other.exists(path) for path in paths] == [None, None, None]


def test_a_node_made_anew_while_its_shard_moves_has_its_own_acl(make: Maker) -> None:
    """Data and version were the same, so the copy of the old one was kept."""
    client = make()
    client.create("/anew/x", acl=[make_acl("world", "anyone", all=True)], makepath=True)
    table, layout = client.table, client._layout
    assert table is not None
    node = layout.node("/anew/x")
    owner = table.owners[node.shard]
    target = next(name for name in table.ensembles if name != owner)
    sessions = client._sessions
    copier = Copier(node.shard, sessions.session(owner), sessions.session(target))
    copier.look()
    copier.prepare()
    copier.copy()
    client.delete("/anew/x")
    own = [make_acl("world", "anyone", read=True)]
    client.create("/anew/x", acl=own)
    copier.copy()
    assert copier.target.get_acls(node.path)[0] == own


def test_an_ephemeral_of_a_copied_nodes_name_is_not_taken_for_it(make: Maker) -> None:
    """A persistent node had been copied, and was made anew as an ephemeral before the
    shard was switched: the old one arrived, and a lock would never have gone."""
    client = make()
    client.create("/anew/x", b"old", makepath=True)
    table, layout = client.table, client._layout
    assert table is not None
    node = layout.node("/anew/x")
    owner = table.owners[node.shard]
    target = next(name for name in table.ensembles if name != owner)
    started = threading.Event()

    def hook(label: str, _: Any) -> None:
        if label == "move.2.copy" and not started.is_set():
            started.set()
            client.delete("/anew/x")
            client.create("/anew/x", b"lock", ephemeral=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        Mover(client).move({node.shard: target})
    assert started.is_set()
    data, stat = client.get("/anew/x")
    assert data == b"lock" and stat.ephemeralOwner


def test_a_child_that_is_made_anew_while_it_is_copied_counts_as_often_as_it_was_made(
    make: Maker,
) -> None:
    """The directory's number of changes, and the next number in it, ran ahead."""
    client = make()
    client.create("/count/x", b"old", makepath=True)
    table, layout = client.table, client._layout
    assert table is not None
    node = layout.node("/count/x")
    target = next(n for n in table.ensembles if n != table.owners[node.shard])
    copy, passes = Copier.copy, []

    def make_anew(copier: Copier, frozen: bool = False) -> int:
        if copier.shard == node.shard and len(passes) in (1, 2):
            client.delete("/count/x")
            client.create("/count/x", b"new%d" % len(passes))
        passes.append(frozen)
        return copy(copier, frozen)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Copier, "copy", make_anew)
        Mover(client).move({node.shard: target})
    assert passes == [False, False, False, True]
    stat = client.exists("/count")
    assert stat is not None
    assert (stat.cversion, stat.numChildren) == (5, 1)
    assert client.get("/count/x")[0] == b"new2"
    made = client.create("/count/n", sequence=True)
    assert made == "/count/n0000000003"


def test_who_may_only_create_can_create_the_first_child(make: Maker) -> None:
    only = [make_acl("world", "anyone", create=True)]
    client, other = make(), make()
    client.create("/drop", acl=only)
    assert other.create("/drop/x") == "/drop/x"
    client.create("/later")
    client.set_acls("/later", [make_acl("world", "anyone", create=True, admin=True)])
    client.set_acls("/later", only)
    assert other.create("/later/x") == "/later/x"


@pytest.mark.parametrize("across", [False, True])
def test_so_can_who_finds_a_node_that_a_transaction_made(
    make: Maker, across: bool
) -> None:
    own = [
        make_digest_acl("me", "secret", all=True),
        make_acl("world", "anyone", create=True),
    ]
    client = make(auth_data=[("digest", "me:secret")], cross_shard="intent")
    other = make()
    client.ensure_path("/beside")
    transaction = client.transaction()
    transaction.create("/drop", acl=own)
    transaction.create("/beside/y" if across else "/filled", acl=own)
    assert not any(isinstance(result, Exception) for result in transaction.commit())
    assert other.create("/drop/x") == "/drop/x"
    assert nothing_wrong(client)


def test_what_is_asked_for_while_the_queue_is_sent_waits_its_turn(make: Maker) -> None:
    client = make()
    client.create("/q")
    dispatch, order, first = client._dispatch, [], threading.Event()
    go_on = threading.Event()

    def slowly(request: Any, async_object: Any) -> None:
        if not first.is_set():
            first.set()
            assert go_on.wait(PATIENCE_SECONDS)
        order.append(request.path)
        dispatch(request, async_object)

    client._dispatch = slowly  # type: ignore[method-assign]
    client._queue.append((_create("/q/1"), client.handler.async_result()))
    flusher = threading.Thread(target=client._flush)
    flusher.start()
    assert first.wait(PATIENCE_SECONDS)
    result = client.handler.async_result()
    client._call(_create("/q/2"), result)
    go_on.set()
    flusher.join()
    assert result.get(timeout=PATIENCE_SECONDS) == "/q/2"
    assert order == ["/q/1", "/q/2"]


def _create(path: str) -> Any:
    from kazoo.protocol.serialization import Create
    from kazoo.security import OPEN_ACL_UNSAFE

    return Create(path, b"", OPEN_ACL_UNSAFE, 0)


def test_a_session_that_was_renewed_as_its_client_stopped_is_closed_with_it(
    make: Maker,
) -> None:
    client = make()
    client.stop()
    for ensemble in client._sessions.by_name.values():
        ensemble.open()
    client.close()
    assert not any(e.connected for e in client._sessions.by_name.values())


def test_sync_goes_to_ensembles_that_it_only_hears_of(make: Maker) -> None:
    client = make()
    newest = client.table
    assert newest is not None

    class Sessions:
        table = Table.initial({"e0": "h0:1", "e1": "h1:1"})

    class Fake:
        _sessions = Sessions()
        degraded = False

    class Request:
        path = "/x"

    machine = _sync(Fake(), Request())  # type: ignore[arg-type]
    assert len(next(machine)) == 2
    Sessions.table = newest
    calls = machine.send(["/", "/"])
    assert [newest.owners[call.shard] for call in calls] == ["e2"]
    with pytest.raises(StopIteration):
        machine.send(["/"])


def bucket_acl(client: ParKazooClient, path: str) -> Any:
    table, bucket = client.table, client._layout.buckets(path)[0]
    assert table is not None
    ensemble = client._sessions.by_name[table.owners[bucket.shard]]
    return ensemble.get_acls(bucket.path)[0]


def once(label: str, work: Any) -> Any:
    begun: list[str] = []

    def hook(reached: str, when: str) -> None:
        if (reached, when) == (label, failpoints.AFTER) and not begun:
            begun.append(reached)
            work()

    return hook


def test_a_directory_made_anew_under_its_first_child_has_its_own_acl(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ACL had been read in the earlier life; both had the version 0."""
    client, other = make(), make()
    own = [make_acl("world", "anyone", read=True, create=True)]
    other.create("/anew")

    def make_anew() -> None:
        other.delete("/anew")
        other.create("/anew", acl=own)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", once("create.1.claim", make_anew))
        client.create("/anew/x")
    assert bucket_acl(other, "/anew") == own


def test_an_acl_that_comes_late_does_not_stay_on_the_next_life(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version in that life was the same."""
    client, other = make(), make()
    everyone = [make_acl("world", "anyone", all=True)]
    own = [make_acl("world", "anyone", read=True, create=True, admin=True)]
    other.create("/late/x", makepath=True)

    def make_anew() -> None:
        other.delete("/late", recursive=True)
        other.create("/late/x", makepath=True)
        other.set_acls("/late", own)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", once("acl.1.home", make_anew))
        client.set_acls("/late", everyone)
    assert other.get_acls("/late")[0] == own
    assert bucket_acl(other, "/late") == own
