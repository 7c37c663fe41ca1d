"""Fenced writes against a real server: what they return, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError
from kazoo.protocol.serialization import Create, Create2, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from conftest import EnsembleFactory
from parkazoo.connection import BatchingClient
from parkazoo.steps import MultiFailed
from parkazoo.wire import Fenced, ShardMoved, results_of
from servers import PATIENCE_SECONDS


@pytest.fixture
def client(ensembles: EnsembleFactory) -> Iterator[BatchingClient]:
    client = BatchingClient(ensembles(1)[0].hosts)
    client.start(PATIENCE_SECONDS)
    client.create("/fence")
    yield client
    client.stop()
    client.close()


def send(client: BatchingClient, fence: int, *operations: Any) -> list[Any]:
    result = client.handler.async_result()
    client._call(Fenced((("/fence", fence),), operations), result)
    return results_of(result.get(timeout=PATIENCE_SECONDS))


def create(path: str, flags: int = 0) -> Create:
    return Create(path, b"v", OPEN_ACL_UNSAFE, flags)


def test_each_kind_of_operation_has_its_result(client: BatchingClient) -> None:
    path, (path2, stat2), numbered, stat, deleted = send(
        client,
        0,
        create("/a"),
        Create2("/b", b"22", OPEN_ACL_UNSAFE, 0),
        create("/s-", 2),
        SetData("/a", b"333", 0),
        Delete("/b", -1),
    )
    assert (path, path2, deleted) == ("/a", "/b", True)
    assert numbered.startswith("/s-") and numbered[-10:].isdigit()
    assert (stat2.dataLength, stat.dataLength, stat.version) == (2, 3, 1)
    assert client.get("/a")[0] == b"333"
    assert client.exists("/b") is None


def test_a_passed_fence_refuses_everything(client: BatchingClient) -> None:
    client.set("/fence", b"")
    with pytest.raises(ShardMoved):
        send(client, 0, create("/a"))
    assert client.exists("/a") is None
    assert send(client, 1, create("/a")) == ["/a"]


def test_a_fence_that_is_gone_refuses_everything(client: BatchingClient) -> None:
    client.delete("/fence")
    with pytest.raises(ShardMoved):
        send(client, 0, create("/a"))
    assert client.exists("/a") is None


def test_the_operation_that_was_refused_is_named(client: BatchingClient) -> None:
    client.create("/there")
    operations = (create("/a"), create("/b"), create("/there"), create("/c"))
    with pytest.raises(MultiFailed) as refused:
        send(client, 0, *operations)
    assert refused.value.index == 2
    assert type(refused.value.error) is NodeExistsError
    assert client.exists("/a") is None


def test_a_reply_is_found_among_pipelined_ones(client: BatchingClient) -> None:
    results = []
    for number in range(500):
        result = client.handler.async_result()
        client._call(Fenced((("/fence", 0),), (create(f"/n{number}"),)), result)
        results.append(result)
        results.append(client.exists_async(f"/n{number}"))
    assert results_of(results[998].get(timeout=PATIENCE_SECONDS)) == ["/n499"]
    assert all(result.get(timeout=PATIENCE_SECONDS) for result in results)
