"""A client while one of its ensembles is down: by default it waits, and with
`degraded` it goes on with the others."""

from __future__ import annotations

from kazoo.protocol.states import KazooState
from kazoo.security import make_digest_acl

from conftest import EnsembleFactory
from parkazoo import ParKazooClient
from parkazoo.check import Checker
from servers import PATIENCE_SECONDS, Ensemble, wait_until

DIRECTORIES = [f"/d{number}" for number in range(12)]


def break_one(
    client: ParKazooClient, taken: list[Ensemble]
) -> tuple[Ensemble, list[str], list[str]]:
    """Kill an ensemble that does not hold the root's children. Returns it, and the
    directories whose children it does not hold, and does."""
    table, layout = client.table, client._layout
    assert table is not None
    root = table.owners[layout.buckets("/")[0].shard]
    name = next(name for name in table.ensembles if name != root)
    broken = next(e for e in taken if e.hosts == table.ensembles[name])
    well, gone = [], []
    for path in DIRECTORIES:
        here = table.owners[layout.buckets(path)[0].shard]
        (gone if here == name else well).append(path)
    assert well and gone
    broken.kill()
    return broken, well, gone


def test_degraded_clients_go_on_where_they_can(ensembles: EnsembleFactory) -> None:
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    degraded = ParKazooClient(hosts, timeout=40, degraded=True)
    strict = ParKazooClient(hosts, timeout=40)
    clients = (degraded, strict)
    for client in clients:
        client.start(PATIENCE_SECONDS)
    for path in DIRECTORIES:
        degraded.create(f"{path}/x", b"old", makepath=True)
    lost: list[str] = []
    for client in clients:
        client.add_listener(lambda s: lost.append(s) if s == KazooState.LOST else None)
    broken, well, gone = break_one(degraded, taken)
    for client in clients:
        wait_until(lambda c=client: c.state == KazooState.SUSPENDED, "it is suspended")

    # Nothing that needs the ensemble can be answered; what does not, is.
    waiting = [degraded.set_async(f"{path}/x", b"new") for path in gone]
    for path in well:
        assert degraded.get(f"{path}/x")[0] == b"old"
        assert degraded.set(f"{path}/x", b"new").version == 1
        assert degraded.create(f"{path}/y") == f"{path}/y"
    patient = [strict.set_async(f"{path}/x", b"newer") for path in well]
    assert not any(result.ready() for result in [*waiting, *patient])
    assert degraded.state == KazooState.SUSPENDED

    broken.start()
    for result in waiting:
        assert result.get(timeout=PATIENCE_SECONDS).version == 1
    for result in patient:
        assert result.get(timeout=PATIENCE_SECONDS).version == 2
    for client in clients:
        wait_until(lambda c=client: c.state == KazooState.CONNECTED, "it is back")
    assert lost == []
    assert list(Checker(strict).run()) == []
    for client in clients:
        client.stop()
        client.close()


def test_credentials_are_answered_by_those_that_are_there(
    ensembles: EnsembleFactory,
) -> None:
    """`add_auth` waited for the ensemble that was away, and `command_all` failed."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    client = ParKazooClient(hosts, timeout=40, degraded=True)
    client.start(PATIENCE_SECONDS)
    for path in DIRECTORIES:
        client.ensure_path(path)
    assert sorted(client.command_all()) == ["e0", "e1"]
    broken, well, gone = break_one(client, taken)
    wait_until(lambda: client.state == KazooState.SUSPENDED, "it is suspended")
    assert client.add_auth_async("digest", "alice:pw").get(timeout=PATIENCE_SECONDS)
    assert list(client.command_all().values()) == ["imok"]
    mine = [make_digest_acl("alice", "pw", all=True)]
    client.create(f"{well[0]}/mine", b"here", acl=mine)
    assert client.get(f"{well[0]}/mine")[0] == b"here"
    waiting = client.create_async(f"{gone[0]}/mine", b"there", acl=mine)
    broken.start()
    waiting.get(timeout=PATIENCE_SECONDS)
    assert client.get(f"{gone[0]}/mine")[0] == b"there"
    client.stop()
    client.close()


def test_a_lazy_client_asks_commands_of_those_it_is_connected_to(
    ensembles: EnsembleFactory,
) -> None:
    taken = ensembles(2)
    full = ParKazooClient(";".join(e.hosts for e in taken), timeout=40)
    full.start(PATIENCE_SECONDS)
    assert full.table is not None
    lazy = ParKazooClient(full.table.ensembles["e0"], timeout=40, lazy=True)
    lazy.start(PATIENCE_SECONDS)
    assert lazy.command_all() == {"e0": "imok"}
    for path in DIRECTORIES:
        lazy.ensure_path(f"{path}/x")
    assert lazy.command_all() == {"e0": "imok", "e1": "imok"}
    for client in (full, lazy):
        client.stop()
        client.close()
