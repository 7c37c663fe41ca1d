"""Creations as Kazoo's, without what Kazoo's own leave to the garbage collector."""

from __future__ import annotations

import gc
import logging

import pytest
from kazoo.exceptions import NodeExistsError
from kazoo.security import make_acl

from conftest import EnsembleFactory, Maker, running
from parkazoo import ParKazooClient, PooledClient
from servers import PATIENCE_SECONDS

CALLS = 200


@pytest.mark.parametrize("kind", [ParKazooClient, PooledClient])
def test_a_creation_leaves_nothing_to_the_garbage_collector(
    kind: type, ensembles: EnsembleFactory
) -> None:
    """Kazoo's `create_async` left 47 objects a call: ten threads that pipelined
    creations took 1.27 of Kazoo's CPU, most of it the collector's."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    with running(kind(hosts, timeout=30)) as client:
        client.ensure_path("/d/first")
        client.create_async("/d/second").get(timeout=PATIENCE_SECONDS)
        gc.collect()
        gc.disable()
        try:
            made = [client.create_async(f"/d/{number}") for number in range(CALLS)]
            for number, result in enumerate(made):
                assert result.get(timeout=PATIENCE_SECONDS) == f"/d/{number}"
            del made, result
            assert gc.collect() < CALLS
        finally:
            gc.enable()


def test_a_creation_answers_as_kazoos(make: Maker) -> None:
    client = make()
    client.create("/top/d", makepath=True)
    below = ParKazooClient(client.bootstrap[0] + "/top", timeout=30)
    with running(below):
        assert below.create("/d/plain", b"1") == "/d/plain"
        path, stat = below.create("/d/n-", b"2", sequence=True, include_data=True)
        assert path.startswith("/d/n-0") and stat.dataLength == 1
        assert below.create("d/relative") == "/d/relative"
        with pytest.raises(NodeExistsError):
            below.create("/d/plain")
        for wrong in ({"path": 1}, {"value": "text"}, {"acl": make_acl("world", "a")}):
            with pytest.raises(TypeError):
                below.create_async(**{"path": "/d/x", **wrong})  # type: ignore[arg-type]
        told = below.create_async("/d/../x")  # as Kazoo, which tells it by the result
        with pytest.raises(ValueError):
            told.get(timeout=PATIENCE_SECONDS)
        below.default_acl = [make_acl("world", "anyone", read=True)]
        below.create("/d/shut")
        assert below.get_acls("/d/shut")[0] == below.default_acl


def test_a_client_that_logs_everything_creates_a_first_child(
    make: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the connection's thread, and with that the client: what Kazoo does with
    the reply to a transaction it did with the refusal of the first step, too."""
    client = make()
    with caplog.at_level(logging.DEBUG):
        client.create("/d/first", makepath=True)
    assert client.get_children("/d") == ["first"]
    assert "Received response" in caplog.text
