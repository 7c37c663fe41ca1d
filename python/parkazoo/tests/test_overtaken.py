"""Who changes the table and is overtaken changes nothing of what others have done.

Each is the short form, in one process, of what `test_stopped_commands.py` does to a
real process at every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.connection import _SESSION_EXPIRED
from kazoo.security import make_digest_acl

from conftest import EnsembleFactory, empty, started
from parkazoo import (
    MoveFailed,
    NamespaceMismatch,
    ParKazooClient,
    cli,
    failpoints,
)
from parkazoo.check import Checker
from parkazoo.errors import Unmovable
from parkazoo.failpoints import BEFORE
from parkazoo.layout import CONFIG
from parkazoo.mapping import Table
from parkazoo.membership import FAREWELL
from parkazoo.move import Mover
from parkazoo.seat import ADMIN
from servers import PATIENCE_SECONDS, wait_until
from test_client import Maker, nothing_wrong


def overtaken(label: str, mover: Mover, others: Callable[[], Any]) -> Any:
    """A hook: at this step the mover's record is gone, and others are at work."""
    begun: list[str] = []

    def hook(reached: str, when: str) -> None:
        if (reached, when) == (label, BEFORE) and not begun:
            begun.append(reached)
            mover._at(mover.table.seat).delete(ADMIN)
            others()

    return hook


def copy_at(hosts: str) -> Table:
    plain = KazooClient(hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    try:
        return Table.deserialize(plain.get(CONFIG)[0])
    finally:
        plain.stop()
        plain.close()


def test_an_add_that_was_overtaken_does_not_bring_back_an_old_table(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ensemble.hosts for ensemble in ensembles(2))
    with started(first) as client, started(first) as other:
        late, mover = Mover(client), Mover(other)
        mover.add_ensemble(second)  # it had been a member: there is word to write over
        mover.remove_ensemble("e1")
        hook = overtaken("add.1.furnish", late, lambda: mover.add_ensemble(second))
        with monkeypatch.context() as patched:
            patched.setattr(failpoints, "hook", hook)
            with pytest.raises(MoveFailed, match="somebody else"):
                late.add_ensemble(second)
        assert copy_at(second) == mover.table
        assert nothing_wrong(other)


def test_a_farewell_that_comes_late_does_not_put_a_member_out(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = make(), make()
    assert client.table is not None
    hosts = client.table.ensembles["e2"]
    late, mover = Mover(client), Mover(other)
    hook = overtaken("remove.4.farewell", late, lambda: mover.add_ensemble(hosts))
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        late.remove_ensemble("e2")
    assert hosts in mover.table.ensembles.values()
    assert copy_at(hosts) == mover.table
    assert nothing_wrong(other)


@pytest.mark.parametrize("now", ["another", "of the same hosts", "unreadable"])
def test_a_farewell_is_not_said_to_who_has_become_another(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    """Who removed it was killed before its word; it was wiped, and is in use again."""
    stays, goes = ensembles(2)
    # Its number is another one even if it is made of the same hosts.
    first = goes.hosts if now == "of the same hosts" else f"{stays.hosts};{goes.hosts}"
    client = ParKazooClient(first, timeout=30)
    client.start(PATIENCE_SECONDS)
    mover = Mover(client)
    if now == "of the same hosts":
        mover.add_ensemble(stays.hosts)
    named = {hosts: name for name, hosts in mover.table.ensembles.items()}

    def die(label: str, when: str) -> None:
        if (label, when) == ("remove.4.farewell", BEFORE):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", die)
        with pytest.raises(KeyboardInterrupt):
            mover.remove_ensemble(named[goes.hosts])
    empty(goes)
    stranger = ParKazooClient(goes.hosts, timeout=30)
    stranger.start(PATIENCE_SECONDS)
    home = stranger._home
    assert home is not None and stranger.table is not None
    assert stranger.table.namespace != mover.table.namespace
    if now == "unreadable":
        home.set(CONFIG, b"what is this")
    before = home.get(CONFIG)[0]
    mover.abort()
    assert home.get(CONFIG)[0] == before
    assert mover._at(mover.table.seat).exists(FAREWELL) is None, "it is tried once"
    for one in (client, stranger):
        one.stop()
        one.close()


@pytest.mark.parametrize("used", [False, True], ids=["wiped", "used by others"])
@pytest.mark.parametrize("which", [0, 1], ids=["seat", "member"])
def test_nothing_is_written_over_what_is_no_member_any_more(
    ensembles: EnsembleFactory, which: int, used: bool
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    client = ParKazooClient(hosts, timeout=30)
    client.start(PATIENCE_SECONDS)
    client.create("/d/x", makepath=True)
    assert client.table is not None
    name = list(client.table.ensembles)[which]
    gone = next(e for e in taken if e.hosts == client.table.ensembles[name])
    empty(gone)
    stranger = ParKazooClient(gone.hosts, timeout=30)
    if used:
        stranger.start(PATIENCE_SECONDS)
        for number in range(20):
            stranger.create(f"/mine{number}/x", makepath=True)
        before = copy_at(gone.hosts)
    mover = Mover(client)
    for work in (
        mover.abort,
        mover.rebalance,
        lambda: mover.publish(client.table),
        lambda: mover.remove_ensemble(name),
    ):
        with pytest.raises(NamespaceMismatch, match=f"{name} .*set-hosts"):
            work()
    other = next(e.hosts for e in taken if e is not gone)
    assert cli.main(["--hosts", other, "check", "--repair", "--delete-orphans"]) == 1
    found = {(f.kind, f.where) for f in Checker(client).run()}
    assert ("stranger", name) in found
    if used:
        assert copy_at(gone.hosts) == before
        for number in range(20):
            assert stranger.exists(f"/mine{number}/x") is not None
        assert nothing_wrong(stranger)
        stranger.stop()
    else:
        with pytest.raises(NoNodeError):
            copy_at(gone.hosts)
    stranger.close()
    client.stop()
    client.close()


def test_a_mover_whose_session_has_ended_does_not_go_on_in_the_next(
    make: Maker,
) -> None:
    client = make()
    mover = Mover(client)
    with mover.alone():
        table = mover.table
        before = client.client_ids
        client._sessions.by_name[table.seat]._call(_SESSION_EXPIRED, None)
        wait_until(
            lambda: client.connected and not set(client.client_ids.values())
            & set(before.values()),
            "all sessions are renewed",
        )  # fmt: skip
        with pytest.raises(MoveFailed, match="session has ended"):
            mover.publish(table)
    # Kazoo's hook ends a session for the client only.
    client._sessions.by_name[table.seat].delete(ADMIN)
    assert mover.abort() == [], "it may begin anew"
    assert mover.table == table


def test_an_owner_that_meets_a_table_of_yesterday_adopts_all_the_same(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target of a move had been taken out between one look and the next; the
    routine ended there for ever, and every later move waited in vain."""
    client, owner = make(), make()
    client.create("/o")
    owner.create("/o/e", b"mine", ephemeral=True)
    session = owner._sessions.session
    failed = threading.Event()

    def stale(name: str, *rest: Any, **named: Any) -> Any:
        if owner.table is not None and owner.table.moving and not failed.is_set():
            failed.set()
            raise KeyError(name)
        return session(name, *rest, **named)

    monkeypatch.setattr(owner._sessions, "session", stale)
    table, node = client.table, client._layout.node("/o/e")
    assert table is not None
    target = next(n for n in table.ensembles if n != table.owners[node.shard])
    Mover(client).move({node.shard: target})
    assert failed.is_set()
    assert client.get("/o/e")[0] == b"mine"
    assert nothing_wrong(client)


def test_a_mover_whose_ensemble_has_left_says_so(make: Maker) -> None:
    """It had published the ensemble, and somebody took it out again."""
    with pytest.raises(MoveFailed, match="somebody else has taken e9 out"):
        Mover(make())._at("e9")


def test_who_lost_the_session_does_not_go_on_past_a_node_that_keeps_its_shard(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest was moved by somebody who was on no record, beside whom others might
    move, and undo."""
    client, other = make(), make()
    for number in range(24):
        client.create(f"/open/d{number}/x", makepath=True)
    client.create("/shut/d/x", makepath=True)
    client.set_acls("/shut/d/x", [make_digest_acl("bob", "pw", all=True)])
    paths = [*(f"/open/d{number}/x" for number in range(24)), "/shut/d/x"]
    shut = client._layout.node("/shut/d/x").shard
    mover = Mover(client)
    table = mover.table
    due = {
        shard: next(name for name in table.ensembles if name != table.owners[shard])
        for shard in sorted({client._layout.node(path).shard for path in paths})
    }
    seat = other._sessions.by_name[table.seat]
    ended: list[str] = []

    def hook(label: str, when: str) -> None:
        assert client.table is not None
        if label == "move.1.plan" and not ended and shut in client.table.planned:
            ended.append(label)
            before = set(client.client_ids.values())
            client._sessions.by_name[table.seat]._call(_SESSION_EXPIRED, None)
            wait_until(
                lambda: (
                    client.connected and not set(client.client_ids.values()) & before
                ),
                "it has new sessions",
            )
            seat.delete(ADMIN)  # the one that was lost lives on for the server
        elif ended:
            ended.append(label)

    monkeypatch.setattr(failpoints, "hook", hook)
    with pytest.raises(MoveFailed) as why:
        mover.move(due)
    assert not isinstance(why.value, Unmovable)
    assert ended and "move.3.freeze" not in ended
    assert list(Checker(other).run()) == []
