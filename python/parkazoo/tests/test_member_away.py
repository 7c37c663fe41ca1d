"""A member goes away while shards move: the command ends, and its work can be ended.

The source, the target or the seat stands still or dies in the middle of a copy, in use
or frozen. The command says so and ends while that member is still away; when it is
back, the same command, given again, gets it done.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.connection import _CONNECTION_DROP

from conftest import EnsembleFactory, started
from parkazoo import MoveFailed, cli, failpoints, patience
from parkazoo.check import Checker
from parkazoo.copying import Copier
from parkazoo.errors import MemberAway
from parkazoo.move import Mover
from parkazoo.seat import ADMIN
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_client import Maker, nothing_wrong
from test_moves import elsewhere

SESSION_SECONDS = 4.0
AWAY_SECONDS = 3.0
# An answer that does not come is noticed, waited for, and the session is closed.
END_SECONDS = SESSION_SECONDS + AWAY_SECONDS + 15
DIRECTORIES = 12
Said = pytest.CaptureFixture[str]


def fill(client: Any) -> None:
    for number in range(DIRECTORIES):
        for name in ("a", "b", "c"):
            client.create(f"/d{number}/{name}", b"kept", makepath=True)


def whole(client: Any) -> None:
    for number in range(DIRECTORIES):
        assert sorted(client.get_children(f"/d{number}")) == ["a", "b", "c"]
        assert client.get(f"/d{number}/c")[0] == b"kept"
        client.set(f"/d{number}/a", b"kept")


def run(capsys: Said, hosts: str, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["--hosts", hosts, *words])
    return (code, *capsys.readouterr())


def given(capsys: Said, hosts: str, *words: str) -> tuple[int, str, str]:
    """The command, while the session of the one before may still live."""
    last: Any = None

    def went() -> bool:
        nonlocal last
        last = run(capsys, hosts, *words)
        return "somebody else is changing" not in last[2]

    wait_until(went, "the session of the one before has ended")
    assert last[0] == 0, last
    return last  # type: ignore[no-any-return]


def breaking(monkeypatch: Any, who: str, frozen: bool, away: Any) -> list[str]:
    """As the first node of a fitting shard is brought over, a member goes away."""
    copy, bring = Copier.copy, Copier._bring
    begun: list[str] = []

    def copying(self: Copier, last: bool = False, **named: bool) -> int:
        self.last = named.get("frozen", last)  # type: ignore[attr-defined]
        return copy(self, self.last)  # type: ignore[attr-defined]

    def bringing(self: Copier, *arguments: Any) -> None:
        fits = who == "target" or self.source.name == who
        if fits and self.last == frozen and not begun:  # type: ignore[attr-defined]
            begun.append((self.target if who == "target" else self.source).name)
            away(begun[0])
        bring(self, *arguments)

    monkeypatch.setattr(Copier, "copy", copying)
    monkeypatch.setattr(Copier, "_bring", bringing)
    return begun


@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize(
    "who",
    [
        pytest.param("target", id="target"),
        pytest.param("e0", id="seat"),
        pytest.param("e1", id="source"),
    ],
)
@pytest.mark.parametrize("frozen", [False, True], ids=["in use", "frozen"])
def test_a_move_whose_member_goes_away_ends_and_is_ended_when_that_is_back(
    ensembles: EnsembleFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Said,
    frozen: bool,
    who: str,
    how: str,
) -> None:
    taken = ensembles(3)
    one, two, three = (ensemble.hosts for ensemble in taken)
    hosts = f"{one};{two}"
    monkeypatch.setattr(cli, "SESSION_SECONDS", SESSION_SECONDS)
    assert run(capsys, hosts, "init")[0] == 0
    with started(hosts) as client:
        fill(client)
    assert run(capsys, hosts, "add-ensemble", three, "--no-rebalance")[0] == 0
    status = json.loads(run(capsys, hosts, "--json", "status")[1])
    where = {entry["hosts"]: name for name, entry in status["ensembles"].items()}
    by_name = {where[ensemble.hosts]: ensemble for ensemble in taken}
    gone: list[float] = []

    def away(name: str) -> None:
        gone.append(time.monotonic())
        ensemble: Ensemble = by_name[name]
        ensemble.pause() if how == "stop" else ensemble.kill()

    with monkeypatch.context() as patched:
        patched.setattr(patience, "AWAY_SECONDS", AWAY_SECONDS)
        begun = breaking(patched, who, frozen, away)
        code, _, err = run(capsys, hosts, "rebalance")
    assert begun, "it never got there"
    seconds = time.monotonic() - gone[0]
    assert code == 2 and f"ensemble {begun[0]} cannot be reached" in err, err
    assert "left unfinished" in err and "rebalance --abort" in err
    assert seconds < END_SECONDS
    by_name[begun[0]].start()
    wait_until(lambda: run(capsys, hosts, "status")[0] != 2, "all are there")
    given(capsys, hosts, "rebalance")
    document = json.loads(given(capsys, hosts, "--json", "status")[1])
    sizes = sorted(e["shards"] for e in document["ensembles"].values())
    assert sizes == [341, 341, 342]
    with started(hosts) as client:
        whole(client)
        assert list(Checker(client).run()) == []


def test_a_connection_that_is_lost_while_a_shard_is_frozen_thaws_it(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once while it is copied, once more while that is undone."""
    client, other = make(), make()
    client.create("/f/x", b"1", makepath=True)
    moves = elsewhere(client, "/f/x")
    target = client._sessions.by_name[next(iter(moves.values()))]
    lost: list[str] = []

    def lose(label: str, when: str) -> None:
        if label in ("move.3.freeze", "abort.1.clear") and label not in lost:
            lost.append(label)
            target._call(_CONNECTION_DROP, None)
            raise ConnectionLoss  # of what was on the wire

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", lose)
        with pytest.raises(MoveFailed, match="connection to a member was lost"):
            Mover(client).move(moves)
    assert lost == ["move.3.freeze", "abort.1.clear"]
    other.create("/f/y")
    assert nothing_wrong(other)
    Mover(client).move(moves)
    assert sorted(other.get_children("/f")) == ["x", "y"]


def test_what_nobody_waits_for_any_more_is_not_sent(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lives, and so does all that somebody else has asked meanwhile."""
    taken = ensembles(2)
    with started(";".join(e.hosts for e in taken)) as client:
        assert client.table is not None
        for number, name in enumerate(client.table.ensembles):
            mover = Mover(client)
            session, at = client._sessions.by_name[name], mover._at(name)
            gone = next(e for e in taken if e.hosts == client.table.ensembles[name])
            identity = session._session_id
            session.create("/late", b"before")
            session.create("/own", b"before")
            gone.kill()
            wait_until(lambda s=session: not s.connected, "it is gone")  # type: ignore[misc]
            monkeypatch.setattr(patience, "AWAY_SECONDS", 1.0)
            with pytest.raises(MemberAway, match="cannot be reached"):
                at.create("/made") if number else at.set("/late", b"late")
            own = session.set_async("/own", b"after")
            with pytest.raises(MemberAway):
                at.transaction().commit()
            gone.start()
            own.get(timeout=PATIENCE_SECONDS)
            assert session._session_id == identity
            assert session.get("/late")[0] == b"before"
            assert session.exists("/made") is None
            assert session.get("/own")[0] == b"after"
            monkeypatch.undo()


def test_who_ends_while_the_seat_is_away_leaves_it_to_others_later(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lives on, and the next command must not wait for its end."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts) as client, started(hosts) as other:
        mover = Mover(client)
        table = mover.table
        seat = client._sessions.by_name[table.seat]
        identity = seat._session_id
        gone = next(e for e in taken if e.hosts == table.ensembles[table.seat])
        monkeypatch.setattr(patience, "AWAY_SECONDS", 1.0)
        begun = time.monotonic()
        with mover.alone():
            gone.kill()
        assert time.monotonic() - begun < 15
        monkeypatch.undo()
        gone.start()
        wait_until(lambda: client.connected and other.connected, "all are back")
        session = other._sessions.by_name[table.seat]
        wait_until(lambda: session.exists(ADMIN) is None, "it has left")
        assert Mover(other).abort() == []
        assert seat._session_id == identity
