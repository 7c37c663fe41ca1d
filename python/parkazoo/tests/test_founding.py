"""A comma for a semicolon is noticed before it joins two ensembles to one, and a
semicolon for a comma before it makes one ensemble two members."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient

from conftest import EnsembleFactory, empty, running, started
from parkazoo import NamespaceMismatch, ParKazooClient, cli, failpoints, namespace
from parkazoo.ensemble import EnsembleClient
from parkazoo.layout import CONFIG
from parkazoo.mapping import Rules, Table
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, wait_until

Said = pytest.CaptureFixture[str]


def holds(hosts: str) -> list[str]:
    """What of ours an ensemble has."""
    client = KazooClient(hosts, timeout=30)
    client.start(PATIENCE_SECONDS)
    try:
        if client.exists("/parkazoo") is None:
            return []
        return [str(name) for name in client.get_children("/parkazoo")]
    finally:
        client.stop()
        client.close()


def test_two_servers_that_run_alone_are_not_taken_for_one_ensemble(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """Whoever met the one server first had a tree there, and whoever met the other had
    another; both were CONNECTED, and had the same lock."""
    one, other = (ensemble.hosts for ensemble in ensembles(2))
    joined = f"{one},{other}"
    for _ in range(3):  # which of them is met first is chance
        client = ParKazooClient(joined, timeout=30)
        with pytest.raises(NamespaceMismatch, match="semicolon"):
            client.start(PATIENCE_SECONDS)
        assert cli.main(["--hosts", joined, "init"]) == 2
        said = capsys.readouterr().err
        assert f"{one};{other}" in said or f"{other};{one}" in said
    assert (holds(one), holds(other)) == ([], [])
    assert cli.main(["--hosts", f"{one};{other}", "init"]) == 0


def test_a_server_that_runs_alone_beside_one_that_is_away_is_no_ensemble(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    well, away = ensembles(2)
    away.kill()
    joined = f"{well.hosts},{away.hosts}"
    assert cli.main(["--hosts", joined, "init"]) == 2
    assert "runs alone" in capsys.readouterr().err
    assert holds(well.hosts) == []


def test_an_ensemble_one_of_whose_servers_is_away_becomes_a_namespace(
    ensembles: EnsembleFactory,
) -> None:
    (three,) = ensembles(1, 3)
    three.followers()[0].kill()
    with started(three.hosts) as client:
        client.create("/a/b", makepath=True)
        assert client.table is not None and len(client.table.ensembles) == 1
    assert not [name for name in holds(three.hosts) if name.startswith("mark")]


def test_an_ensemble_that_joins_is_one(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    first, one, other = (ensemble.hosts for ensemble in ensembles(3))
    assert cli.main(["--hosts", first, "init"]) == 0
    assert cli.main(["--hosts", first, "add-ensemble", f"{one},{other}"]) == 2
    assert "semicolon" in capsys.readouterr().err
    assert (holds(one), holds(other)) == ([], [])


def test_check_finds_a_server_that_is_not_of_its_member(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """Two of three servers were away when a namespace was made on what was thought to
    be one ensemble, so nobody noticed the comma."""
    well, other, stranger = (ensemble.hosts for ensemble in ensembles(3))

    def check(code: int) -> str:
        capsys.readouterr()
        assert cli.main(["--hosts", other, "check"]) == code
        return capsys.readouterr().out

    with started(f"{well};{other}") as client:
        assert client.table is not None
        name = next(n for n, h in client.table.ensembles.items() if h == well)
        mover = Mover(client)
        with mover.alone():
            known = mover.table.ensembles
            joined = {**known, name: f"{well},{stranger}"}
            mover.publish(replace(mover.table, ensembles=joined))
        found = check(1)
        assert f"{stranger} holds no namespace" in found and "set-hosts" in found
        assert cli.main(["--hosts", other, "set-hosts", name, well]) == 0
        check(0)
        client.create("/a/b", makepath=True)


def refused(hosts: str, capsys: Said, *words: str) -> None:
    """Neither `init` nor a program makes a namespace there, and both say why."""
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "init"]) == 2
    said = capsys.readouterr().err
    client = ParKazooClient(hosts, timeout=30)
    with pytest.raises(NamespaceMismatch) as caught:
        client.start(PATIENCE_SECONDS)
    for word in words:
        assert word in said and word in str(caught.value)


def test_the_servers_of_one_ensemble_are_not_taken_for_several(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """Each held all of the namespace under another's name, which `check --repair` took
    for what had been left behind there: it deleted every node."""
    (three,) = ensembles(1, 3)
    servers = sorted(server.address for server in three.servers)
    refused(";".join(servers), capsys, "are one ensemble", f"`{','.join(servers)}`")
    assert holds(three.hosts) == []
    assert cli.main(["--hosts", three.hosts, "init"]) == 0


def test_one_server_under_two_names_is_not_taken_for_two_ensembles(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    one, other = ensembles(2)
    port = one.servers[0].client_port
    twice = f"127.0.0.1:{port};{other.hosts};localhost:{port}"
    refused(twice, capsys, "are one ensemble", f"127.0.0.1:{port},localhost:{port}")
    assert (holds(one.hosts), holds(other.hosts)) == ([], [])


def one_under_several_names(hosts: str) -> None:
    """Make of a namespace on one ensemble what was made of semicolons for commas."""
    plain = KazooClient(hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    try:
        table = Table.deserialize(plain.get("/parkazoo/config")[0])
        names = {f"e{n}": one for n, one in enumerate(hosts.split(","))}
        several = Table.initial(names, table.rules)
        several = replace(several, namespace=table.namespace, generation=2)
        plain.set("/parkazoo/config", several.serialize())
    finally:
        plain.stop()
        plain.close()


def tree(hosts: str) -> set[str]:
    client = KazooClient(hosts, timeout=30)
    client.start(PATIENCE_SECONDS)
    try:
        found, level = set(), ["/parkazoo"]
        while level:
            found |= set(level)
            asked = [(path, client.get_children_async(path)) for path in level]
            level = [f"{p}/{name}" for p, names in asked for name in names.get()]
        return found
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--repair"),
        ("check", "--repair", "--delete-orphans"),
        ("remove-ensemble", "e2"),
        ("rebalance", "--among", "e0,e1"),
    ],
    ids=["check", "orphans", "remove", "rebalance"],
)
def test_no_command_deletes_what_one_ensemble_holds_under_another_name(
    ensembles: EnsembleFactory, capsys: Said, words: tuple[str, ...]
) -> None:
    (three,) = ensembles(1, 3)
    with started(three.hosts) as client:
        for number in range(12):
            client.create(f"/d{number}/x", b"ours", makepath=True)
    one_under_several_names(three.hosts)
    before = tree(three.hosts)
    hosts = three.hosts.replace(",", ";")
    assert cli.main(["--hosts", hosts, *words]) == (1 if words[0] == "check" else 2)
    out, err = capsys.readouterr()
    assert "says that it is e0" in out + err
    assert tree(three.hosts) == before
    client = ParKazooClient(hosts, timeout=30, auto_init=False)
    with pytest.raises(NamespaceMismatch, match="says that it is e0"):
        client.start(PATIENCE_SECONDS)


def test_check_waits_until_each_member_has_been_looked_at(
    ensembles: EnsembleFactory, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stranger's session was being shut, it was not among those that are
    needed; if another had been refused already, the command ended with that."""
    (three,) = ensembles(1, 3)
    with started(three.hosts) as client:
        client.create("/d/x", b"ours", makepath=True)
    one_under_several_names(three.hosts)
    first, second, third = three.hosts.split(",")
    met: dict[str, EnsembleClient] = {}

    def until(condition: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            wait_until(condition, "the others are as far", 5)

    made, stop = EnsembleClient.connection_made, EnsembleClient.stop

    def make(session: EnsembleClient) -> None:
        met[session.hosts_string] = session
        if session.hosts_string == first:  # after the second, of which all is known
            until(lambda: second in met and met[second].connected)
        if session.hosts_string == third:  # when it is known who it should be
            until(lambda: session._is_known)
        made(session)

    def stop_late(session: EnsembleClient) -> None:
        if session is met.get(second) and session.connected:
            until(lambda: third in met and met[third].refused is not None)
            time.sleep(0.5)
        stop(session)

    monkeypatch.setattr(EnsembleClient, "connection_made", make)
    monkeypatch.setattr(EnsembleClient, "stop", stop_late)
    hosts = three.hosts.replace(",", ";")
    assert cli.main(["--hosts", hosts, "check"]) == 1
    out = capsys.readouterr().out
    assert "stranger   e1: " in out and "stranger   e2: " in out


def test_who_makes_a_namespace_sees_that_another_has_begun_there(
    ensembles: EnsembleFactory, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had given the ensemble a name already, and was killed."""
    first, second, third = sorted(e.hosts for e in ensembles(3))

    def die(label: str, when: str) -> None:
        if label == "init.3.names":
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hook", die)
    assert cli.main(["--hosts", f"{second};{third}", "init"]) == 2
    monkeypatch.setattr(failpoints, "hook", None)
    refused(f"{first};{second}", capsys, f"{second} says that it is e0")
    assert "config" not in holds(first) + holds(second)
    assert cli.main(["--hosts", f"{second};{third}", "init"]) == 0


def test_init_finds_a_namespace_by_any_of_its_members(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """After it had grown, its first hosts were said to be another namespace's."""
    one, two, three, four = (ensemble.hosts for ensemble in ensembles(4))
    assert cli.main(["--hosts", f"{one};{two}", "init"]) == 0
    assert cli.main(["--hosts", one, "add-ensemble", three, "--no-rebalance"]) == 0
    for given in (f"{one};{two}", f"{three};{two};{one}", one, f"{three};{one}"):
        capsys.readouterr()
        assert cli.main(["--hosts", given, "init"]) == 0
        said = capsys.readouterr().out
        assert "over 3 ensembles was there already" in said
        assert one in said and two in said and three in said
    for given in (f"{one};{two};{three};{four}", f"{one};{four}"):
        assert cli.main(["--hosts", given, "init"]) == 2
        assert "add-ensemble" in capsys.readouterr().err
        assert holds(four) == []
    assert cli.main(["--hosts", f"{one},{two}", "init"]) == 2
    assert "a semicolon" in capsys.readouterr().err
    port = one.partition(":")[2]
    assert cli.main(["--hosts", f"{one};localhost:{port}", "init"]) == 2
    assert "and so does" in capsys.readouterr().err


def test_a_namespace_is_told_from_one_that_was_there_before(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """Its number followed from the hosts, so that the data of one that had been wiped,
    brought back from a backup on one member, was taken for a part of the new one."""
    one, other = ensembles(2)
    numbers = []
    for _ in range(2):
        empty(one)
        empty(other)
        with started(f"{one.hosts};{other.hosts}") as client:
            assert client.table is not None
            numbers.append(client.table.namespace)
    assert len(set(numbers)) == 2


def test_all_who_make_a_namespace_at_once_make_the_same(
    ensembles: EnsembleFactory,
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    clients = [ParKazooClient(hosts, timeout=30) for _ in range(6)]
    for client in clients:
        client.start_async()
    for client in clients:
        client.start(PATIENCE_SECONDS)
    assert len({client.table.namespace for client in clients if client.table}) == 1
    for client in clients:
        client.stop()
        client.close()


@pytest.mark.parametrize("first", ["import", "beside"])
def test_an_import_and_one_who_leaves_data_aside_agree(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """One copy of the table said that data was to be brought in, and the other not."""
    taken = sorted(ensemble.hosts for ensemble in ensembles(2))
    turns = {True: threading.Event(), False: threading.Event()}
    second_there = threading.Event()
    importing = first == "import"
    me = threading.local()
    made: dict[bool, Table] = {}

    def hook(label: str, when: str) -> None:
        # Both know of no copy. The first one writes its first, the second one all.
        if label == "init.0.founded" and me.importing != importing:
            second_there.set()
            turns[me.importing].wait(PATIENCE_SECONDS)
        elif label == "init.0.founded":
            second_there.wait(PATIENCE_SECONDS)
        elif label == "init.4.table" and not turns[not importing].is_set():
            turns[not importing].set()
            turns[importing].wait(PATIENCE_SECONDS)

    def make(imports: bool) -> None:
        me.importing = imports
        with ExitStack() as stack:
            plain = {h: KazooClient(h, timeout=30) for h in taken}
            clients = {h: stack.enter_context(running(c)) for h, c in plain.items()}

            def visit(server: str) -> Any:
                return running(KazooClient(server, timeout=30))

            made[imports] = namespace.initialize(
                clients, Rules(), visit, adopt_foreign=True, importing=imports
            )
        turns[not imports].set()

    monkeypatch.setattr(failpoints, "hook", hook)
    threads = [threading.Thread(target=make, args=(b,)) for b in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    copies = []
    for hosts in taken:
        with running(KazooClient(hosts, timeout=30)) as plain:
            copies.append(Table.deserialize(plain.get(CONFIG)[0]))
    assert [copy.importing for copy in copies] == [importing, importing]
    assert {each.importing for each in made.values()} == {importing}
