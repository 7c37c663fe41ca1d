"""ZooKeeper's own subtree, `/zookeeper`: all of it is at the seat, on no shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from conftest import Maker
from parkazoo import CrossShardTransaction, ParKazooClient, PooledClient, cli
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, wait_until

QUOTA = "/zookeeper/quota"


@pytest.fixture
def plain(make: Maker) -> Iterator[KazooClient]:
    """Kazoo at the seat; takes away what a test has left there."""
    table = make().table
    assert table is not None
    client = KazooClient(table.ensembles[table.seat], timeout=30)
    client.start(PATIENCE_SECONDS)
    yield client
    for name in client.get_children(QUOTA):
        client.delete(f"{QUOTA}/{name}", recursive=True)
    client.stop()
    client.close()


@pytest.fixture(params=["own sessions", "shared sessions", "a chroot"])
def client(make: Maker, request: Any) -> Iterator[Any]:
    hosts = ";".join(make().bootstrap)
    kind = PooledClient if request.param == "shared sessions" else ParKazooClient
    chroot = "/zookeeper" if request.param == "a chroot" else ""
    client = kind(hosts + chroot, timeout=30)
    client.start(PATIENCE_SECONDS)
    yield client
    client.stop()
    client.close()


def seen(client: Any, path: str) -> str:
    """A path of the whole namespace, as this client names it."""
    return path.removeprefix(client.chroot or "") or "/"


def test_what_is_below_it_is_deleted_with_its_children(
    plain: KazooClient, client: Any
) -> None:
    """It was looked for in the namespace, not found, and said to be gone."""
    plain.create(f"{QUOTA}/app/x/y", makepath=True)
    client.delete(seen(client, f"{QUOTA}/app"), recursive=True)
    assert plain.get_children(QUOTA) == []


def test_a_transaction_there_is_as_with_kazoo(plain: KazooClient, client: Any) -> None:
    """It was sought in the namespace: no node."""
    path = seen(client, f"{QUOTA}/t")
    transaction = client.transaction()
    transaction.create(path, b"1")
    transaction.create(f"{path}/x")
    transaction.delete(f"{path}/x")
    transaction.check(path, 0)
    assert transaction.commit() == [path, f"{path}/x", True, True]
    assert plain.get(f"{QUOTA}/t")[0] == b"1"
    transaction = client.transaction()
    transaction.delete(path)
    transaction.delete(f"{path}/none")
    assert [type(result) for result in transaction.commit()][1:] == [NoNodeError]


@pytest.mark.parametrize("cross_shard", ["refuse", "intent"])
def test_a_transaction_there_names_no_other_nodes(
    make: Maker, cross_shard: str
) -> None:
    client = make(cross_shard=cross_shard)
    transaction = client.transaction()
    transaction.create(f"{QUOTA}/t")
    transaction.create("/t")
    with pytest.raises(CrossShardTransaction, match="/zookeeper"):
        transaction.commit()
    assert client.exists("/t") is None and client.exists(f"{QUOTA}/t") is None


def test_where_and_tree_say_that_it_is_at_the_seat(
    make: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    """They named shards, their ensembles, and paths that were not there."""
    table = make().table
    assert table is not None
    hosts = ";".join(table.ensembles.values())
    assert cli.main(["--hosts", hosts, "--json", "where", QUOTA]) == 0
    found = json.loads(capsys.readouterr().out)
    place = {"shard": None, "ensemble": table.seat, "physical": QUOTA}
    assert {name: found[name] for name in place} == place
    assert found["children"] == [place]
    assert cli.main(["--hosts", hosts, "where", QUOTA]) == 0
    said = capsys.readouterr().out
    assert f"node      on the seat, {table.seat} (" in said and said.count(QUOTA) == 3
    assert cli.main(["--hosts", hosts, "tree", "/zookeeper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(f"[{table.seat}]" in line for line in lines)


def hears(client: ParKazooClient, shard: int, owner: str) -> bool:
    return client.table is not None and client.table.owners[shard] == owner


def test_a_watch_of_zookeepers_own_subtree_hears_of_no_move(make: Maker) -> None:
    """It was told DELETED when the shard moved to which its path would hash."""
    client, other = make(), make()
    told: list[Any] = []
    assert client.table is not None
    for path in "/zookeeper/quota", "/zookeeper":
        client.get_children(path, watch=told.append)
    for path in "/zookeeper/quota", "/zookeeper":
        shard = client._layout.buckets(path)[0].shard
        owner = client.table.owners[shard]
        target = next(name for name in client.table.ensembles if name != owner)
        Mover(other).move({shard: target})
        heard = partial(hears, client, shard, target)
        wait_until(heard, "it is heard")
    client.sync("/")
    assert told == []
