"""Whose an unfinished piece of work is when connections are lost.

Nobody may end another's ownership, keep what he does not go on with, or wait for a
member just to give something up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss
from kazoo.security import make_acl

from conftest import EnsembleFactory, Maker, started
from parkazoo import failpoints, remove
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_recursive import (
    ALICE,
    ALL_ALICE,
    intents_left,
    leave_behind,
    owner_of_children,
    protect,
)


@pytest.fixture(autouse=True)
def nobody_looks_by_chance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work left behind is finished when a test says so."""
    monkeypatch.setattr(remove, "watchman", lambda *_: None)
    yield
    failpoints.hook = None


def lose_answers(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of this session are done, or refused, and nobody hears which."""
    transaction = session.transaction

    def unanswered() -> Any:
        begun = transaction()
        commit = begun.commit

        def lost() -> None:
            commit()
            raise ConnectionLoss

        begun.commit = lost
        return begun

    monkeypatch.setattr(session, "transaction", unanswered)


def server_of_seat(taken: list[Ensemble], client: Any) -> Ensemble:
    hosts = client.table.ensembles[client.table.seat]
    return next(ensemble for ensemble in taken if ensemble.hosts == hosts)


def test_who_lost_an_answer_does_not_end_the_ownership_of_who_lives(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the owner away unseen: others, with other rights, went on with it."""
    owner, helper, alice = make(), make(), make(auth_data=ALICE)
    protect(alice, "/x")
    record = remove._record(owner, "/x")
    assert record is not None
    home = helper._sessions.session(record.home.name)
    with monkeypatch.context() as patched:
        lose_answers(home, patched)
        with pytest.raises(ConnectionLoss):
            remove.roll_forward(helper)
    time.sleep(1)  # it sees to it behind our back
    assert record.home.exists(f"{record.life.intent}/owner") is not None
    assert remove.roll_forward(alice) == []
    assert alice.exists("/x/protected/secret") is not None


def test_a_transaction_is_not_undone_for_a_finishers_lost_answer(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third undid it, and its client was told that it was away for too long."""
    client, helper, third = make(cross_shard="intent"), make(), make()
    for path in "/p/n", "/q/n":
        client.create(path, b"old", makepath=True)

    def hook(label: str, when: str) -> None:
        if (label, when) == ("intent.3.apply", failpoints.AFTER):
            failpoints.hook = None
            with monkeypatch.context() as patched:
                lose_answers(helper._sessions.seat(), patched)
                with pytest.raises(ConnectionLoss):
                    remove.roll_forward(helper)
            time.sleep(1)
            assert remove.roll_forward(third) == []

    transaction = client.transaction()
    for path in "/p/n", "/q/n":
        transaction.set_data(path, b"new")
    failpoints.hook = hook
    assert [stat.version for stat in transaction.commit()] == [1, 1]
    assert intents_left(third) == []


def test_who_may_not_finish_a_delete_leaves_nothing_of_his_own(make: Maker) -> None:
    """Each look left an ephemeral until the session's end, one every 45 s or so."""
    alice, helper = make(auth_data=ALICE), make()
    for path in "/x/a", "/x/b/c":
        alice.create(path, makepath=True)
    for path in "/x", "/x/b":
        alice.set_acls(path, [*ALL_ALICE, make_acl("world", "anyone", read=True)])
    leave_behind(alice, "/x")
    for _ in range(3):  # each is let go behind the helper's back
        wait_until(lambda: remove.finish(helper)[1], "it is refused")
    bucket = alice._layout.buckets("/x")[0]
    session = alice._sessions.session(owner_of_children(alice, "/x"))
    wait_until(
        lambda: [n for n in session.get_children(bucket.anchor) if n[0] == "t"] == [],
        "its claims are gone",
    )


@pytest.mark.parametrize("noticed", [False, True])
def test_a_transaction_is_answered_while_the_seat_is_away(
    ensembles: EnsembleFactory, noticed: bool
) -> None:
    """It gave its intent up on its caller's thread: the caller waited for the seat."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, timeout=40, cross_shard="intent") as client:
        for path in "/p/n", "/q/n":
            client.create(path, b"old", makepath=True)
        server = server_of_seat(taken, client)
        seen: list[str] = []

        def hook(label: str, when: str) -> None:
            if (label, when) == ("intent.3.apply", failpoints.AFTER):
                seen.append(label)
                if len(seen) == 2:
                    server.pause()
                    threading.Timer(1, server.kill).start()
                    if noticed:
                        seat = client._sessions.seat()
                        wait_until(lambda: not seat.connected, "its loss is noticed")

        transaction = client.transaction()
        for path in "/p/n", "/q/n":
            transaction.set_data(path, b"new")
        failpoints.hook = hook
        result = transaction.commit_async()
        try:
            result.wait(PATIENCE_SECONDS)
            assert isinstance(result.exception, ConnectionLoss)
        finally:
            server.start()
        wait_until(lambda: client.connected, "it is back")
        wait_until(
            lambda: remove.roll_forward(client) or not intents_left(client), "ended"
        )
        found = {client.get(path)[0] for path in ("/p/n", "/q/n")}
        assert len(found) == 1


def test_a_refused_transaction_whose_record_cannot_go_is_left_to_others(
    ensembles: EnsembleFactory,
) -> None:
    """The connection was lost as its record was to be taken away, after all had been
    undone: it stayed with its client for as long as that lived."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    both = started(hosts, timeout=40, cross_shard="intent"), started(hosts, timeout=40)
    with both[0] as client, both[1] as other:
        for path in "/p/n", "/q/n":
            client.create(path, b"old", makepath=True)
        server = server_of_seat(taken, client)
        seen: list[str] = []

        def hook(label: str, when: str) -> None:
            if (label, when) == ("intent.3.apply", failpoints.AFTER) and not seen:
                seen.append(label)
                for path in "/p/n", "/q/n":
                    other.set(path, b"theirs")
            if (label, when) == ("intent.5.undo", failpoints.AFTER):
                failpoints.hook = None
                seen.append(label)
                server.pause()
                threading.Timer(1, server.kill).start()
                threading.Timer(3, server.start).start()

        version = client.get("/q/n")[1].version
        transaction = client.transaction()
        transaction.set_data("/p/n", b"new")
        transaction.set_data("/q/n", b"new", version)
        failpoints.hook = hook
        results = transaction.commit()
        assert len(seen) == 2 and isinstance(results[1], BadVersionError)
        wait_until(lambda: client.connected and other.connected, "it is back")
        wait_until(
            lambda: remove.roll_forward(other) or not intents_left(other), "ended"
        )
        assert intents_left(other) == [] and client.connected


def test_what_is_refused_but_stays_on_record_is_not_told_as_refused(
    ensembles: EnsembleFactory,
) -> None:
    """The ensemble with the record was away, and the client stopped: others, with more
    rights, deleted what the caller had been told was not."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, timeout=30, auth_data=ALICE) as alice:
        root = owner_of_children(alice, "/")
        path = next(
            f"/r{n}" for n in range(100) if owner_of_children(alice, f"/r{n}") != root
        )
        alice.create(f"{path}/secret", makepath=True)
        may = make_acl("world", "anyone", read=True, create=True)
        alice.set_acls(path, [*ALL_ALICE, may])
        assert alice.table is not None
        server = next(e for e in taken if e.hosts == alice.table.ensembles[root])
        with started(hosts, timeout=6, degraded=True) as low:
            home = low._sessions.by_name[root]

            def hook(label: str, when: str) -> None:
                if (label, when) == ("delete.0.node", failpoints.BEFORE):
                    failpoints.hook = None
                    server.kill()
                    wait_until(lambda: not home.connected, "its loss is noticed")

            failpoints.hook = hook
            try:
                with pytest.raises(ConnectionLoss, match="refused"):
                    low.delete(path, recursive=True)
            finally:
                server.start()
            wait_until(lambda: alice.connected, "it is back")
            wait_until(lambda: not intents_left(alice), "it is taken back")
        assert alice.exists(f"{path}/secret") is not None
