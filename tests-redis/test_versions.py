"""Our own commands for contexts and siblings, through an unmodified client library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from conftest import CLIENT_SECONDS_MAX
from targets import Address, Target

pytestmark = pytest.mark.only("tontine", "Redis keeps no siblings")

Fresh = Callable[[], str]


def connection_in(store: str, address: Address, protocol: int) -> redis.Redis:
    """One connection, because the store is chosen for each."""
    host, port = address
    client = redis.Redis(
        host=host,
        port=port,
        protocol=protocol,
        socket_timeout=CLIENT_SECONDS_MAX,
        single_connection_client=True,
    )
    assert client.execute_command("TONTINE.STORE", store) == b"OK"
    return client


@pytest.fixture
def alice(target: Target, protocol: int) -> Iterator[redis.Redis]:
    with connection_in("siblings", target.addresses[0], protocol) as client:
        yield client


@pytest.fixture
def bob(target: Target, protocol: int) -> Iterator[redis.Redis]:
    """Another writer, at another node."""
    with connection_in("siblings", target.addresses[-1], protocol) as client:
        yield client


def put(client: redis.Redis, key: str, context: bytes, value: str, *options: str) -> bytes:
    return client.execute_command("TONTINE.PUT", key, context, value, *options)


def seen(client: redis.Redis, key: str) -> tuple[bytes, list[bytes]]:
    context, *values = client.execute_command("TONTINE.GET", key)
    return context, sorted(values)


def test_writers_that_saw_nothing_of_each_other_are_both_kept_until_somebody_merges(
    alice: redis.Redis, bob: redis.Redis, key: str
) -> None:
    put(alice, key, b"", "milk")
    put(bob, key, b"", "eggs")
    context, values = seen(alice, key)
    assert values == [b"eggs", b"milk"]
    assert alice.get(key) == bob.get(key) in values, "a plain GET shows one, the same everywhere"
    merged = put(alice, key, context, "milk, eggs")
    assert seen(bob, key)[1] == [b"milk, eggs"]
    put(bob, key, merged, "milk, eggs, bread")
    assert seen(alice, key)[1] == [b"milk, eggs, bread"]
    put(bob, key, context, "tea")
    assert seen(alice, key)[1] == [b"milk, eggs, bread", b"tea"], "an old context replaces nothing newer"


def test_a_delete_with_a_context_takes_what_it_covers_and_nothing_else(
    alice: redis.Redis, bob: redis.Redis, key: str
) -> None:
    milk = put(alice, key, b"", "milk")
    put(bob, key, b"", "eggs")
    bob.execute_command("TONTINE.DELETE", key, milk)
    context, values = seen(alice, key)
    assert values == [b"eggs"]
    after = alice.execute_command("TONTINE.DELETE", key, context)
    assert seen(bob, key)[1] == []
    assert (bob.get(key), bob.exists(key)) == (None, 0)
    put(bob, key, after, "bread")
    assert seen(alice, key)[1] == [b"bread"]


def test_siblings_are_described_one_by_one(
    alice: redis.Redis, bob: redis.Redis, key: str, protocol: int
) -> None:
    put(alice, key, b"", "milk")
    put(bob, key, b"", "eggs", "EX", "1000")
    described = alice.execute_command("TONTINE.SIBLINGS", key)
    if protocol == 2:
        described = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in described]
    by_value = {version[b"value"]: version for version in described}
    assert by_value.keys() == {b"milk", b"eggs"}
    assert by_value[b"milk"][b"dot"] != by_value[b"eggs"][b"dot"]
    assert by_value[b"milk"][b"expires_ms"] is None
    lifetime = by_value[b"eggs"][b"expires_ms"] - by_value[b"eggs"][b"written_ms"]
    assert 990_000 < lifetime <= 1_010_000
    assert alice.execute_command("TONTINE.SIBLINGS", key + "x") == []


def test_where_the_last_write_wins_a_put_that_has_not_seen_it_is_obsolete(
    client: redis.Redis, elsewhere: redis.Redis, key: str
) -> None:
    client.set(key, "1")
    context, values = seen(elsewhere, key)
    assert values == [b"1"]
    elsewhere.set(key, "2")
    with pytest.raises(redis.ResponseError, match="^OBSOLETE "):
        put(client, key, context, "3")
    assert client.get(key) == b"2"
    context, _ = seen(client, key)
    put(client, key, context, "3")
    assert elsewhere.get(key) == b"3"


def test_a_context_that_is_none_and_options_that_make_no_sense_are_refused(
    alice: redis.Redis, key: str
) -> None:
    with pytest.raises(redis.ResponseError, match="the context is invalid: pass one from TONTINE.GET"):
        put(alice, key, b"nonsense", "v")
    for options in [("NX",), ("KEEPTTL",), ("EX",), ("EX", "ten"), ("GET",)]:
        with pytest.raises(redis.ResponseError, match="syntax error|not an integer"):
            put(alice, key, b"", "v", *options)
    assert seen(alice, key)[1] == []


def test_a_store_is_chosen_for_one_connection(alice: redis.Redis, client: redis.Redis, key: str) -> None:
    assert alice.execute_command("TONTINE.STORE") == b"siblings"
    assert client.execute_command("TONTINE.STORE") == b"default"
    with pytest.raises(redis.ResponseError, match='store "nope" does not exist; the stores are: default, siblings'):
        alice.execute_command("TONTINE.STORE", "nope")
    assert alice.execute_command("TONTINE.STORE") == b"siblings"
    alice.set(key, "there")
    assert client.get(key) is None
