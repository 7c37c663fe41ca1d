"""Hosts some of which hold another namespace than the others: what a program and a
command say of them does not depend on who answers first."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, started
from parkazoo import (
    NamespaceMismatch,
    NotInitialized,
    ParKazooClient,
    PooledClient,
    cli,
    finding,
)
from parkazoo.ensemble import EnsembleClient
from parkazoo.layout import CONFIG, IDENTITY
from parkazoo.mapping import Table
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_addresses import PATIENT
from test_founding import tree
from test_strangers import emptied, of

ORDERS = ["together", "theirs_late", "ours_late", "theirs_when_ours_are_used"]
Said = pytest.CaptureFixture[str]


def arrive(
    patch: pytest.MonkeyPatch, order: str, ours: set[str], theirs: set[str]
) -> None:
    """From now on a client hears of one side when it has the other side's tables."""
    late, early = (ours, theirs) if order == "ours_late" else (theirs, ours)
    made = EnsembleClient.connection_made

    def heard(session: Any) -> bool:
        sessions = session.owner
        if order == "theirs_when_ours_are_used":
            return sessions.table is not None
        known = [e for e in sessions.by_name.values() if e.hosts_string in early]
        return all(e.name in sessions.copies for e in known)

    def make(session: EnsembleClient) -> None:
        if session.owner is not None and session.hosts_string in late:
            with suppress(TimeoutError):
                wait_until(lambda: heard(session), "the others are as far", 10)
            time.sleep(0.6)
        made(session)

    if order != "together":
        patch.setattr(EnsembleClient, "connection_made", make)


def taken_over(taken: list[Ensemble]) -> tuple[str, Ensemble, set[str]]:
    """A namespace one of whose members others have made another one of: (hosts, that
    member, the numbers of both)."""
    hosts, gone = emptied(taken)
    numbers = set()
    for given in (next(e for e in taken if e is not gone).hosts, gone.hosts):
        with started(given, degraded=True) as client:
            assert client.table is not None
            numbers.add(client.table.namespace)
    assert len(numbers) == 2
    return hosts, gone, numbers


@pytest.mark.parametrize("order", ORDERS)
def test_a_member_of_another_namespace_is_a_stranger_whoever_answers_first(
    ensembles: EnsembleFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Said,
    order: str,
) -> None:
    """Where it had answered by then, a degraded client did not start, and `status` and
    `check` ended with an error; where it had answered alone, or later, not."""
    taken = ensembles(3)
    hosts, gone, numbers = taken_over(taken)
    arrive(monkeypatch, order, set(hosts.split(";")) - {gone.hosts}, {gone.hosts})
    for given in (hosts, ";".join(reversed(hosts.split(";")))):
        client = ParKazooClient(given, **PATIENT)
        with pytest.raises(NamespaceMismatch, match="holds another namespace") as said:
            client.start(PATIENCE_SECONDS)
        assert gone.hosts in str(said.value)
        assert all(number in str(said.value) for number in numbers)
        with started(given, degraded=True, **PATIENT) as client:
            here, elsewhere = of(client, gone)
            for path in elsewhere:
                assert client.get(f"{path}/x")[0] == b"ours"
            for path in here:
                with pytest.raises(NamespaceMismatch, match="holds another namespace"):
                    client.get_children(path)
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "--json", "status"]) == 1
    found = json.loads(capsys.readouterr().out)["ensembles"].values()
    assert [e["hosts"] for e in found if e["refused"]] == [gone.hosts]
    assert cli.main(["--hosts", hosts, "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("stranger")]
    assert f": {gone.hosts} holds another namespace" in line
    assert line.count(gone.hosts) == 1


def both(said: str, numbers: dict[str, str]) -> bool:
    return all(f"{hosts} {number}" in said for hosts, number in numbers.items())


def apart(taken: list[Ensemble]) -> dict[str, str]:
    """A namespace on each: their numbers."""
    numbers = {}
    for ensemble in taken:
        with started(ensemble.hosts) as client:
            assert client.table is not None
            numbers[ensemble.hosts] = client.table.namespace
    return numbers


def name_each_other(hosts: list[str]) -> None:
    """As when both were wiped and used anew, and then one of them got its backup."""
    for one, other in (hosts, hosts[::-1]):
        plain = KazooClient(one, timeout=30)
        plain.start(PATIENCE_SECONDS)
        table = Table.deserialize(plain.get(CONFIG)[0])
        table = replace(table, ensembles={"e0": one, "e1": other}, generation=2)
        plain.set(CONFIG, table.serialize())
        plain.stop()
        plain.close()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("order", ORDERS[:3])
@pytest.mark.parametrize("mutual", [False, True], ids=["strangers", "mutual"])
def test_where_nobody_can_tell_which_namespace_is_meant_all_refuse(
    ensembles: EnsembleFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Said,
    order: str,
    mutual: bool,
) -> None:
    """Where each names the other as a member, degraded clients, and commands, went by
    who answered first: some would have written to the one namespace, some to the
    other."""
    taken = ensembles(2)
    numbers = apart(taken)
    one, other = numbers
    if mutual:
        name_each_other([one, other])
    arrive(monkeypatch, order, {one}, {other})
    for degraded in (False, True):
        client = ParKazooClient(f"{one};{other}", degraded=degraded, **PATIENT)
        with pytest.raises(NamespaceMismatch) as refused:
            client.start(PATIENCE_SECONDS)
        assert both(str(refused.value), numbers)
    for command in ("status", "check"):
        capsys.readouterr()
        assert cli.main(["--hosts", f"{one};{other}", command]) == 2
        assert both(capsys.readouterr().err, numbers)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("degraded", [False, True], ids=["strict", "degraded"])
@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_requests_that_wait_fail_when_the_namespace_cannot_be_opened(
    ensembles: EnsembleFactory, kind: Any, degraded: bool
) -> None:
    """They hung, and so did those that were asked for later."""
    taken = ensembles(2)
    hosts = ";".join(e.hosts for e in taken)

    def fails(error: type[Exception], **options: Any) -> None:
        client = kind(hosts, degraded=degraded, **PATIENT, **options)
        client.start_async()
        try:
            waiting = [client.create_async(f"/n{n}") for n in range(4)]
            for each in waiting:
                with pytest.raises(error):
                    each.get(timeout=PATIENCE_SECONDS)
            later = client.get_children_async("/")
            assert later.ready()
            with pytest.raises(error):
                later.get()
            begun = time.monotonic()
            with pytest.raises(error):
                client.start(PATIENCE_SECONDS)
            assert time.monotonic() - begun < PATIENCE_SECONDS / 2
        finally:
            client.stop()
            client.close()

    fails(NotInitialized, auto_init=False)
    apart(taken)
    fails(NamespaceMismatch)


def test_of_a_stranger_its_namespace_is_said_before_its_name(
    ensembles: EnsembleFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has the name of another member, too, and connects after the tables were
    compared and before one is used."""
    hosts, gone, _ = taken_over(ensembles(3))
    made, name_by = EnsembleClient.connection_made, finding._name_by
    seen: list[EnsembleClient] = []
    naming: list[bool] = []

    def make(session: EnsembleClient) -> None:
        if session.hosts_string == gone.hosts:
            seen.append(session)
            with suppress(TimeoutError):
                wait_until(lambda: naming, "the others are being named", 10)
        made(session)

    def name(sessions: Any, table: Table) -> None:
        naming.append(True)
        with suppress(TimeoutError):
            wait_until(lambda: seen and seen[0].connected, "it is connected", 5)
        name_by(sessions, table)

    monkeypatch.setattr(EnsembleClient, "connection_made", make)
    monkeypatch.setattr(finding, "_name_by", name)
    for degraded in (True, False):
        caplog.clear()
        del seen[:], naming[:]
        client = ParKazooClient(hosts, degraded=degraded, **PATIENT)
        try:
            if degraded:
                client.start(PATIENCE_SECONDS)
            else:
                with pytest.raises(NamespaceMismatch, match="holds another namespace"):
                    client.start(PATIENCE_SECONDS)
        finally:
            client.stop()
            client.close()
        assert "holds another namespace" in caplog.text
        assert "says that it is" not in caplog.text


def test_why_a_member_is_refused_is_logged_once(
    ensembles: EnsembleFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kazoo told it at each attempt to connect, for as long as the member was one."""
    hosts, gone, _ = taken_over(ensembles(3))
    made = EnsembleClient.connection_made
    attempts: list[float] = []

    def make(session: EnsembleClient) -> None:
        if session.hosts_string == gone.hosts:
            attempts.append(time.monotonic())
        made(session)

    def logged(words: str) -> int:
        return sum(words in message for message in caplog.messages)

    monkeypatch.setattr(EnsembleClient, "connection_made", make)
    caplog.clear()
    with started(hosts, degraded=True, **PATIENT) as client:
        assert client.state == KazooState.SUSPENDED
        wait_until(lambda: len(attempts) > 4, "it was tried again")
        assert logged("holds another namespace") == 1
        wipe(gone)
        wait_until(lambda: logged("holds nothing of this"), "there is another reason")
        tried = len(attempts)
        wait_until(lambda: len(attempts) > tried + 3, "it was tried again")
        assert logged("holds nothing of this") == 1
        assert logged("holds another namespace") == 1


def wipe(ensemble: Ensemble) -> None:
    """All at once, so that nobody sees a part of it."""
    plain = KazooClient(ensemble.hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    transaction = plain.transaction()
    for path in (CONFIG, IDENTITY):
        transaction.delete(path)
    assert transaction.commit() == [True, True]
    plain.stop()
    plain.close()


@pytest.mark.parametrize("refused", ["bucket", "home"])
def test_a_first_child_that_needs_a_stranger_fails_at_once_and_leaves_nothing(
    ensembles: EnsembleFactory, refused: str
) -> None:
    """Of a directory whose node is on one ensemble and whose children are on another,
    one of which is refused."""
    taken = ensembles(3)
    hosts = ";".join(e.hosts for e in taken)
    with started(hosts, degraded=True, **PATIENT) as client:
        _, gone = emptied(taken)
        wait_until(lambda: client._sessions.refused, "it has noticed")
        table, layout = client.table, client._layout
        assert table is not None

        def fits(path: str) -> bool:
            home = table.ensembles[table.owners[layout.node(path).shard]]
            bucket = table.ensembles[table.owners[layout.buckets(path)[0].shard]]
            return home != bucket and gone.hosts == (
                bucket if refused == "bucket" else home
            )

        here, elsewhere = of(client, gone)
        above = (elsewhere if refused == "bucket" else here)[0]
        path = next(p for n in range(1000) if fits(p := f"{above}/{n}"))
        if refused == "bucket":
            client.create(path)
        before = everything(taken, gone)
        begun = time.monotonic()
        with pytest.raises(NamespaceMismatch, match="holds nothing of this"):
            client.create(f"{path}/x")
        assert time.monotonic() - begun < PATIENT["timeout"] / 2
        assert everything(taken, gone) == before


def everything(taken: list[Ensemble], but: Ensemble) -> dict[str, set[str]]:
    return {e.hosts: tree(e.hosts) for e in taken if e is not but}
