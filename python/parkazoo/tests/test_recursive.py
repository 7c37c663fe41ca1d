"""Recursive deletes that are refused, or meet ensembles that are away.

What is refused must leave nothing that deletes anything later; what may have been done
in part must be finished by somebody, also while its client lives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory, Maker, started
from parkazoo import ParKazooClient, PooledClient, failpoints, remove
from parkazoo.check import Checker
from parkazoo.layout import INTENTS
from servers import PATIENCE_SECONDS, Ensemble, wait_until

ALICE = [("digest", "alice:pw")]
ALL_ALICE = [make_digest_acl("alice", "pw", all=True)]


def intents_left(client: Any) -> list[str]:
    sessions = client._sessions.by_name.values()
    return [name for session in sessions for name in session.get_children(INTENTS)]


def owner_of_children(client: Any, path: str) -> str:
    return str(client.table.owners[client._layout.buckets(path)[0].shard])


def all_on(client: Any, name: str) -> str:
    """A path that is, with all below it for one level, on one ensemble."""
    return next(
        f"/t{n}/r{m}"
        for n in range(1000)
        if owner_of_children(client, f"/t{n}") == name
        for m in range(100)
        if owner_of_children(client, f"/t{n}/r{m}") == name
    )


@contextlib.contextmanager
def one_away(client: Any, taken: list[Ensemble]) -> Iterator[str]:
    """One ensemble of those taken is away; a path that is on another one."""
    away, *_, last = client._sessions.by_name
    path = all_on(client, last)
    client.ensure_path(path)
    broken = next(e for e in taken if e.hosts == client.table.ensembles[away])
    broken.kill()
    try:
        wait_until(lambda: client.state == KazooState.SUSPENDED, "suspended")
        yield path
    finally:
        broken.start()
    wait_until(lambda: client.connected, "it is back")


def protect(alice: Any, path: str) -> None:
    """A node below `path` that only alice may delete the children of."""
    alice.create(f"{path}/protected", makepath=True)
    alice.set_acls(f"{path}/protected", ALL_ALICE)
    alice.create(f"{path}/protected/secret", acl=ALL_ALICE)


def test_what_is_refused_is_not_done_by_somebody_with_more_rights(make: Maker) -> None:
    """Its intent stayed, and whoever came by finished it, with the rights he had."""
    alice, low = make(auth_data=ALICE), make()
    protect(alice, "/x")
    with pytest.raises(NoAuthError):
        low.delete("/x", recursive=True)
    assert intents_left(alice) == []
    alice.create("/x/since")
    assert remove.roll_forward(alice) == []
    assert alice.exists("/x/protected/secret") and alice.exists("/x/since")
    home = alice._layout.node("/x")
    session = alice._sessions.session(alice.table.owners[home.shard])  # type: ignore[union-attr]
    assert [n for n in session.get_children(home.path) if n.startswith("i")] == []
    assert list(Checker(alice).run()) == []


def test_what_is_refused_is_over_when_that_is_told(make: Maker) -> None:
    """Deletions were still under way when the caller heard of the first refusal."""
    alice, low = make(auth_data=ALICE), make()
    for number in range(60):  # each takes several steps, since it has had a child
        alice.create(f"/x/{number}/y", makepath=True)
        alice.delete(f"/x/{number}/y")
    first = alice.get_children("/x")[0]
    alice.set_acls(f"/x/{first}", [*ALL_ALICE, make_acl("world", "anyone", read=True)])
    seen: list[str] = []

    def hook(label: str, when: str) -> None:
        if label.startswith("delete."):
            seen.append(when)

    failpoints.hook = hook
    try:
        with pytest.raises(NoAuthError):
            low.delete("/x", recursive=True)
        assert seen.count(failpoints.BEFORE) == seen.count(failpoints.AFTER) > 0
    finally:
        failpoints.hook = None


def test_who_may_not_create_in_a_directory_deletes_it_as_with_kazoo(
    make: Maker,
) -> None:
    """The mark was refused, which Kazoo does not need."""
    alice, low = make(auth_data=ALICE), make()
    alice.create(
        "/p", acl=[*ALL_ALICE, make_acl("world", "anyone", read=True, delete=True)]
    )
    alice.create("/p/x")
    assert low.delete("/p", recursive=True) is None
    assert alice.exists("/p") is None
    assert intents_left(alice) == []
    assert list(Checker(alice).run()) == []


def test_who_does_not_know_whether_a_delete_was_begun_takes_it_back(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client owned the intent for as long as it lived, and others did it then."""
    client, other = make(), make()
    client.create("/x/y", makepath=True)
    declare = remove._declare

    def unanswered(*given: Any) -> Any:
        yield from declare(*given)
        raise ConnectionLoss

    with monkeypatch.context() as patched:
        patched.setattr(remove, "_declare", unanswered)
        with pytest.raises(ConnectionLoss):
            client.delete("/x", recursive=True)
    wait_until(lambda: not intents_left(other), "it is taken back")
    assert other.exists("/x/y") is not None
    assert list(Checker(other).run()) == []


def test_who_lost_the_connection_of_a_delete_has_it_finished(
    ensembles: EnsembleFactory,
) -> None:
    """Its client kept the intent: nobody went on with it for as long as that lived."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, timeout=40) as client, started(hosts, timeout=40) as other:
        for number in range(5):
            client.create(f"/x/{number}", makepath=True)
        assert client.table is not None
        home = client.table.owners[client._layout.node("/x").shard]
        server = next(e for e in taken if e.hosts == client.table.ensembles[home])
        session = client.client_ids[home]
        killed: list[str] = []

        def hook(reached: str, when: str) -> None:
            first = (reached, when) == ("delete.0.node", failpoints.BEFORE)
            if first and not killed:
                killed.append(reached)
                server.pause()  # what is sent now gets no answer
                threading.Timer(1, server.kill).start()
                threading.Timer(3, server.start).start()

        failpoints.hook = hook
        try:
            with pytest.raises(ConnectionLoss):
                client.delete("/x", recursive=True)
        finally:
            failpoints.hook = None
        wait_until(lambda: client.connected and other.connected, "both are back")
        wait_until(
            lambda: remove.roll_forward(other) or not intents_left(other),
            "its client lets it go",
        )
        assert client.client_ids[home] == session
        assert other.exists("/x") is None
        assert intents_left(other) == []
        assert list(Checker(other).run()) == []


def test_who_is_interrupted_has_its_delete_finished(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the keyboard, or by gevent's time-out: its client kept the intent."""
    client, other = make(), make()
    client.create("/x/y", makepath=True)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(remove, "_delete_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.delete("/x", recursive=True)
    wait_until(
        lambda: remove.roll_forward(other) or not intents_left(other), "it lets it go"
    )
    assert other.exists("/x") is None
    assert intents_left(other) == []


def test_one_that_is_interrupted_as_it_is_recorded_is_taken_back(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The living client kept the record."""
    client, other = make(), make()
    client.create("/x/y", makepath=True)
    submit = ParKazooClient._submit

    def interrupt(self: ParKazooClient, call: Any, *rest: Any) -> None:
        submit(self, call, *rest)
        if call.label == "recursive.1.intent":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ParKazooClient, "_submit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.delete("/x", recursive=True)
    wait_until(lambda: not intents_left(other), "it is taken back")
    assert other.exists("/x/y") is not None


def test_an_ensemble_that_is_away_and_not_needed_holds_no_delete_up(
    ensembles: EnsembleFactory,
) -> None:
    """All was deleted, and then the call hung: it looked for its intent everywhere."""
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, timeout=40, degraded=True) as client:
        with one_away(client, taken) as path:
            client.create(f"{path}/x")
            done = threading.Event()

            def delete() -> None:
                client.delete(path, recursive=True)
                done.set()

            threading.Thread(target=delete, daemon=True).start()
            assert done.wait(PATIENCE_SECONDS)
            assert client.exists(path) is None
        assert intents_left(client) == []


def test_a_lazy_client_deletes_without_the_ensembles_it_does_not_need(
    make: Maker,
) -> None:
    """It was done, and the caller heard ConnectionClosedError."""
    full = make()
    assert full.table is not None
    root = owner_of_children(full, "/")
    others = [name for name in full.table.ensembles if name != root]
    for name in others:
        path = all_on(full, name)
        full.create(f"{path}/x", makepath=True)
        for boot in full.table.ensembles.values():
            with started(boot, lazy=True) as lazy:
                lazy.delete(path, recursive=True)
            assert full.exists(path) is None
            full.create(f"{path}/x", makepath=True)
    assert intents_left(full) == []


def test_a_lazy_pool_forgets_what_others_deleted(
    ensembles: EnsembleFactory, make: Maker
) -> None:
    """It asked ensembles that it had no session with, and gave up."""
    observer = make()
    assert observer.table is not None
    home = owner_of_children(observer, "/")
    path = all_on(observer, next(n for n in observer.table.ensembles if n != home))
    observer.ensure_path(path)
    client = PooledClient(observer.table.ensembles[home], timeout=30, lazy=True)
    client.start(PATIENCE_SECONDS)
    try:
        estates = client._carrier.estates
        for number in range(5):
            client.create(f"{path}/{number}", ephemeral=True)
            observer.delete(f"{path}/{number}")
        assert any(not e.opened for e in client._carrier._sessions.by_name.values())
        client._carrier.prune(estates.serial)
        assert not estates.owners
    finally:
        client.stop()
        client.close()


def leave_behind(client: ParKazooClient, path: str) -> None:
    """The intent of a delete that was begun, and whose client has let it go."""
    record = remove._record(client, path)
    assert record is not None
    record.leave()
    owner = f"{record.life.intent}/owner"
    wait_until(lambda: record.home.exists(owner) is None, "it is nobody's")


def test_what_somebody_may_not_finish_keeps_nothing_else_waiting(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first refusal ended the look, each time: what was behind it stayed."""
    monkeypatch.setattr(remove, "watchman", lambda *_: None)
    alice, helper = make(auth_data=ALICE), make()
    for number in range(6):
        protect(alice, f"/bad{number}")
        alice.create(f"/good{number}/x", makepath=True)
        leave_behind(alice, f"/bad{number}")
        leave_behind(alice, f"/good{number}")
    with pytest.raises(NoAuthError):
        remove.roll_forward(helper)
    assert [n for n in range(6) if alice.exists(f"/good{n}")] == []
    wait_until(  # each is let go behind the helper's back
        lambda: [f.kind for f in Checker(alice).run()] == ["unfinished"] * 6, "let go"
    )
    found = list(Checker(helper).run(repair=True))
    assert {(f.kind, f.repaired) for f in found} == {
        ("unfinished", False),
        ("unreadable", False),
    }
    assert sum("NoAuthError" in f.what for f in found) == 6
    wait_until(
        lambda: not remove.roll_forward(alice) and not intents_left(alice), "all"
    )
    assert [n for n in range(6) if alice.exists(f"/bad{n}")] == []
    assert list(Checker(alice).run()) == []
