"""What cannot be put on the wire is refused to who asked for it, and nothing else ends.

Kazoo drops the connection, and with it what others wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import BadArgumentsError
from kazoo.security import ACL, Id

from conftest import EnsembleFactory, Maker
from parkazoo import ParKazooClient, PooledClient
from servers import PATIENCE_SECONDS

LONE = "\ud800"  # half a character, as json.loads and os.listdir give it
TOO_LARGE = 2**31


def checked(client: Any, path: str, version: int) -> Any:
    transaction = client.transaction()
    transaction.check(path, version)
    return transaction.commit()


def created(client: Any, path: str) -> Any:
    transaction = client.transaction()
    transaction.create(path)
    return transaction.commit()


UNSENDABLE: dict[str, Callable[[Any], Any]] = {
    "get": lambda c: c.get(f"/x{LONE}"),
    "get below": lambda c: c.get(f"/x{LONE}/y"),
    "exists": lambda c: c.exists(f"/x{LONE}"),
    "create": lambda c: c.create(f"/x{LONE}"),
    "create with its directories": lambda c: c.create(f"/y/x{LONE}/z", makepath=True),
    "list": lambda c: c.get_children(f"/x{LONE}"),
    "recursive delete": lambda c: c.delete(f"/x{LONE}", recursive=True),
    "version of a set": lambda c: c.set("/p", b"", TOO_LARGE),
    "version of a delete": lambda c: c.delete("/p", TOO_LARGE),
    "version of a check": lambda c: checked(c, "/p", TOO_LARGE),
    "transaction": lambda c: created(c, f"/x{LONE}"),
    "permissions": lambda c: c.create("/q", acl=[ACL("all", Id("world", "anyone"))]),
    "identity": lambda c: c.create("/q", acl=[ACL(31, Id("world", 5))]),
    "ACL": lambda c: c.set_acls("/p", [ACL("all", Id("world", "anyone"))]),
}


ASYNC: list[Callable[[Any], Any]] = [
    lambda c: c.get_async(f"/x{LONE}/y").get(PATIENCE_SECONDS),
    lambda c: created(c, f"/x{LONE}/y"),
]


def told(client: Any, call: Callable[[Any], Any]) -> None:
    states: list[Any] = []
    client.add_listener(states.append)
    before = client.client_id
    under_way = [client.get_async("/p") for _ in range(50)]
    with pytest.raises(BadArgumentsError):
        call(client)
    assert [each.get(PATIENCE_SECONDS)[0] for each in under_way] == [b"1"] * 50
    assert client.get("/p")[0] == b"1"
    assert states == [] and client.client_id == before


OPTIONS: list[dict[str, Any]] = [
    {},
    {"session_order": True},
    {"cross_shard": "intent"},
    {"lazy": True, "degraded": True, "strict_reads": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_neither_while_it_waits_nor_when_its_client_stops(
    ensembles: EnsembleFactory, options: dict[str, Any]
) -> None:
    """Asked before there was a connection, it ended that; and with `session_order` it
    was never over, so recursive deletes and `stop` waited for it."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    client = ParKazooClient(hosts, timeout=30, **options)
    client.start_async()
    asked = [client.handler.spawn(told_nothing_else, client, c) for c in ASYNC]
    for routine in asked:
        routine.join(PATIENCE_SECONDS)
    client.start(PATIENCE_SECONDS)
    client.create("/p", b"1")
    for call in UNSENDABLE.values():
        told(client, call)
    client.create("/d/x", makepath=True)
    client.delete("/d", recursive=True)
    begun = time.monotonic()
    client.stop()
    client.close()
    assert time.monotonic() - begun < 20


def told_nothing_else(client: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(BadArgumentsError):
        call(client)


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_be_sent_is_its_callers(make: Maker, name: str) -> None:
    client = make()
    client.create("/p", b"1")
    told(client, UNSENDABLE[name])


def test_one_member_of_a_pool_does_not_end_the_others(
    ensembles: EnsembleFactory,
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    clients = [PooledClient(hosts, timeout=30) for _ in range(2)]
    for client in clients:
        client.start(PATIENCE_SECONDS)
    try:
        clients[0].create("/p", b"1")
        for call in UNSENDABLE.values():
            told(clients[0], call)
        assert clients[1].get("/p")[0] == b"1" and clients[1].connected
    finally:
        for client in clients:
            client.stop()
            client.close()


def test_credentials_that_cannot_be_sent_are_not_kept(make: Maker) -> None:
    """They would be sent with each connection to come."""
    client = make()
    client.create("/p", b"1")
    told(client, lambda c: c.add_auth("digest", f"u:{LONE}"))
    assert client.auth_data == set()
    with pytest.raises(BadArgumentsError):
        make(auth_data=[("digest", f"u:{LONE}")])
