"""Fenced writes against a real server: what they return, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, Create2, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from conftest import EnsembleFactory
from parkazoo.connection import BatchingClient
from parkazoo.steps import MultiFailed
from parkazoo.wire import FENCE, FencedMulti, fence_bytes


@pytest.fixture
def client(ensembles: EnsembleFactory) -> Iterator[BatchingClient]:
    client = BatchingClient(ensembles(1)[0].hosts)
    client.start(15)
    client.create("/fence")
    yield client
    client.stop()
    client.close()


def send(client: BatchingClient, fence: int | None, *operations: Any) -> list[Any]:
    result = client.handler.async_result()
    check = b"" if fence is None else fence_bytes("/fence", fence)
    client._call(FencedMulti(check, operations), result)
    reply: list[Any] = result.get(10)
    return reply


def create(path: str, flags: int = 0) -> Create:
    return Create(path, b"v", OPEN_ACL_UNSAFE, flags)


@pytest.mark.parametrize("fence", [0, None])
def test_each_kind_of_operation_has_its_result(
    client: BatchingClient, fence: int | None
) -> None:
    path, (path2, stat2), numbered, stat, deleted = send(
        client,
        fence,
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
    (failed,) = send(client, 0, create("/a"))
    assert isinstance(failed, MultiFailed)
    assert (failed.index, type(failed.error)) == (FENCE, BadVersionError)
    assert client.exists("/a") is None
    assert send(client, 1, create("/a")) == ["/a"]


def test_a_fence_that_is_gone_refuses_everything(client: BatchingClient) -> None:
    client.delete("/fence")
    (failed,) = send(client, 0, create("/a"))
    assert (failed.index, type(failed.error)) == (FENCE, NoNodeError)


def test_the_operation_that_was_refused_is_named(client: BatchingClient) -> None:
    client.create("/there")
    operations = (create("/a"), create("/b"), create("/there"), create("/c"))
    (failed,) = send(client, 0, *operations)
    assert (failed.index, type(failed.error)) == (2, NodeExistsError)
    assert client.exists("/a") is None


def test_a_reply_is_found_among_pipelined_ones(client: BatchingClient) -> None:
    results = []
    for number in range(500):
        result = client.handler.async_result()
        operations = (create(f"/n{number}"),)
        client._call(FencedMulti(fence_bytes("/fence", 0), operations), result)
        results.append(result)
        results.append(client.exists_async(f"/n{number}"))
    assert results[998].get(20) == ["/n499"]
    assert all(result.get(20) for result in results)
