"""A degraded client starts while one of its ensembles is down."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, started
from parkazoo import (
    NamespaceMismatch,
    NotInitialized,
    ParKazooClient,
    PooledClient,
    cli,
)
from servers import PATIENCE_SECONDS, wait_until
from test_degraded import DIRECTORIES, break_one


@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_a_degraded_client_starts_without_an_ensemble(
    kind: Any, ensembles: EnsembleFactory
) -> None:
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    first = ParKazooClient(hosts, timeout=40)
    first.start(PATIENCE_SECONDS)
    for path in DIRECTORIES:
        first.create(f"{path}/x", b"old", makepath=True)
    broken, well, gone = break_one(first, taken)

    client = kind(hosts, timeout=40, degraded=True)
    states: list[str] = []
    client.add_listener(states.append)

    def starts() -> bool:
        try:
            client.start(5)
        except KazooTimeoutError:  # even the others were too slow
            return False
        return True

    wait_until(starts, "it starts with the others")
    for path in well:
        assert client.get(f"{path}/x")[0] == b"old"
        assert client.set(f"{path}/x", b"new").version == 1
    waiting = [client.get_async(f"{path}/x") for path in gone]
    assert client.state == KazooState.SUSPENDED
    broken.start()
    for result in waiting:
        assert result.get(timeout=PATIENCE_SECONDS)[0] == b"old"
    wait_until(lambda: client.state == KazooState.CONNECTED, "it is whole")
    assert states[-3:] == ["CONNECTED", "SUSPENDED", "CONNECTED"]
    for one in (client, first):
        one.stop()
        one.close()


def test_a_lazy_client_starts_without_an_ensemble_that_it_does_not_need(
    ensembles: EnsembleFactory,
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts) as first:
        for path in DIRECTORIES:
            first.create(f"{path}/x", b"old", makepath=True)
        broken, well, gone = break_one(first, taken)
        with started(hosts, lazy=True) as client:
            assert client.state == KazooState.CONNECTED
            for path in well:
                assert client.get(f"{path}/x")[0] == b"old"
            assert client.state == KazooState.CONNECTED
            waiting = client.get_async(f"{gone[0]}/x")
            broken.start()
            assert waiting.get(timeout=PATIENCE_SECONDS)[0] == b"old"


def test_status_says_which_ensemble_is_away(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    assert cli.main(["--hosts", hosts, "init"]) == 0
    taken[1].kill()
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "--json", "--timeout", "10", "status"]) == 1
    found = json.loads(capsys.readouterr().out)["ensembles"].values()
    connected = {entry["hosts"]: entry["connected"] for entry in found}
    assert connected == {taken[0].hosts: True, taken[1].hosts: False}


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_hosts_of_two_namespaces_are_refused_whoever_answers_first(
    kind: Any, ensembles: EnsembleFactory
) -> None:
    one, other = ensembles(2)
    namespaces = {}
    for ensemble in (one, other):
        with started(ensemble.hosts) as first:
            assert first.table is not None
            namespaces[ensemble.hosts] = first.table.namespace
    for hosts in (f"{one.hosts};{other.hosts}", f"{other.hosts};{one.hosts}"):
        for _ in range(3):
            client = kind(hosts, timeout=40)
            with pytest.raises(NamespaceMismatch) as refused:
                client.start(PATIENCE_SECONDS)
            for its, namespace in namespaces.items():
                assert f"{its} {namespace}" in str(refused.value)
            client.stop()
            client.close()


def test_a_start_in_vain_says_who_did_not_answer(ensembles: EnsembleFactory) -> None:
    """It named the hosts given, of which the one was up."""
    one, other = ensembles(2)
    with started(f"{one.hosts};{other.hosts}") as client:
        assert client.table is not None
        listed = client.table.ensembles.items()
        name = next(n for n, hosts in listed if hosts == other.hosts)
    other.kill()
    late = ParKazooClient(one.hosts)
    with pytest.raises(KazooTimeoutError, match=f"from {name} .{other.hosts}. within"):
        late.start(8)
    other.start()


def test_where_tree_and_check_do_what_they_can_while_an_ensemble_is_away(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts) as first:
        for path in DIRECTORIES:
            first.create(f"{path}/x", b"old", makepath=True)
        table, layout = first.table, first._layout
    assert table is not None
    root = {table.owners[layout.node("/").shard], *(
        table.owners[bucket.shard] for bucket in layout.buckets("/"))}  # fmt: skip
    away = next(name for name in table.ensembles if name not in root)
    broken = next(e for e in taken if e.hosts == table.ensembles[away])
    broken.kill()

    def run(*words: str, code: int) -> Any:
        arguments = ["--hosts", hosts, "--json", "--timeout", "10", *words]
        assert cli.main(arguments) == code
        return json.loads(capsys.readouterr().out or "null")

    nodes = {node["path"]: node for node in run("tree", code=1)}
    for path in DIRECTORIES:
        needed = {table.owners[layout.buckets(path)[0].shard]}
        found = nodes[path]
        if away in needed:
            assert found["unreachable"] == [away] and found["children"] is None
            assert f"{path}/x" not in nodes
        else:
            assert found["unreachable"] == [] and found["children"] == 1
            assert nodes[f"{path}/x"]["bytes"] == 3
    assert any(node["unreachable"] for node in nodes.values())
    gone = next(p for p in DIRECTORIES if nodes[p]["unreachable"])
    there = next(p for p in DIRECTORIES if not nodes[p]["unreachable"])
    assert run("where", gone, code=1)["unreachable"] == [away]
    assert run("where", there, code=0)["exists"] is True
    findings = run("check", code=1)
    assert [(f["kind"], f["where"]) for f in findings] == [("unreachable", away)]
    run("check", "--repair", code=2)
    broken.start()


@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
@pytest.mark.parametrize("made", ["one", "two", "half"])
def test_a_comma_where_a_semicolon_belongs_is_refused_by_name(
    kind: Any, made: str, ensembles: EnsembleFactory
) -> None:
    """Two ensembles of one namespace, of two, and one beside an empty server."""
    one, other = (ensemble.hosts for ensemble in ensembles(2))
    for hosts in {"one": [f"{one};{other}"], "two": [one, other], "half": [one]}[made]:
        with started(hosts):
            pass
    for hosts in (f"{one},{other}", f"{other},{one}"):
        client = kind(hosts, timeout=40, auto_init=False, randomize_hosts=False)
        with pytest.raises((NamespaceMismatch, NotInitialized)) as refused:
            client.start(PATIENCE_SECONDS)
        if isinstance(refused.value, NamespaceMismatch):
            assert "semicolon" in str(refused.value)
            assert f"`{hosts.replace(',', ';')}`" in str(refused.value)
        else:
            assert (made, hosts) == ("half", f"{other},{one}")
        client.stop()
        client.close()
