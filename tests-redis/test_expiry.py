"""EXPIRE, TTL and their family. No test sleeps: it asks until the key is gone."""

from __future__ import annotations

import time

import pytest
import redis

from raw import Raw

OK = b"+OK\r\n"
GONE_SECONDS_MAX = 120.0


def await_gone(client: redis.Redis, key: str) -> None:
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while client.exists(key):
        assert time.monotonic() < deadline, f"{key} should have expired"
        time.sleep(0.005)


def test_a_key_without_expiry_and_a_missing_key_say_so(raw: Raw, key: str) -> None:
    assert raw.ask("TTL", key) == b":-2\r\n"
    assert raw.ask("PTTL", key) == b":-2\r\n"
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask("TTL", key) == b":-1\r\n"
    assert raw.ask("PTTL", key) == b":-1\r\n"


def test_every_way_to_set_an_expiry_is_seen_by_ttl_on_another_node(
    client: redis.Redis, elsewhere: redis.Redis, key: str
) -> None:
    ways = [
        lambda: client.set(key, b"v", ex=1000),
        lambda: client.set(key, b"v", px=1_000_000),
        lambda: client.execute_command("SETEX", key, 1000, b"v"),
        lambda: client.expire(key, 1000),
        lambda: client.pexpire(key, 1_000_000),
    ]
    for way in ways:
        assert way()
        assert 900 < elsewhere.ttl(key) <= 1000
        assert 900_000 < elsewhere.pttl(key) <= 1_000_000
        assert elsewhere.get(key) == b"v"


def test_a_key_expires_everywhere(client: redis.Redis, elsewhere: redis.Redis, key: str) -> None:
    assert client.set(key, b"v", px=50)
    await_gone(client, key)
    for node in (client, elsewhere):
        assert node.get(key) is None
        assert node.mget(key) == [None]
        assert node.ttl(key) == -2
        assert node.strlen(key) == 0
        assert node.delete(key) == 0


def test_an_expired_key_counts_as_absent_for_nx_xx_and_get(client: redis.Redis, key: str) -> None:
    assert client.set(key, b"old", px=20)
    await_gone(client, key)
    assert client.set(key, b"new", xx=True) is None
    assert client.set(key, b"new", nx=True, get=True) is None
    assert client.get(key) == b"new"
    assert client.ttl(key) == -1, "a new value does not inherit the old expiry"


def test_a_plain_set_takes_the_expiry_away_and_keepttl_keeps_it(client: redis.Redis, key: str) -> None:
    assert client.set(key, b"1", ex=1000)
    assert client.set(key, b"2", keepttl=True)
    assert client.get(key) == b"2"
    assert 900 < client.ttl(key) <= 1000
    assert client.set(key, b"3")
    assert client.ttl(key) == -1
    assert client.set(key, b"4", keepttl=True)
    assert client.ttl(key) == -1


def test_mset_takes_the_expiry_away(client: redis.Redis, key: str) -> None:
    assert client.set(key, b"1", ex=1000)
    assert client.mset({key: b"2"})
    assert client.ttl(key) == -1


def test_persist_takes_the_expiry_away_once(raw: Raw, key: str) -> None:
    assert raw.ask("PERSIST", key) == b":0\r\n"
    assert raw.ask("SET", key, "v", "EX", 1000) == OK
    assert raw.ask("PERSIST", key) == b":1\r\n"
    assert raw.ask("PERSIST", key) == b":0\r\n"
    assert raw.ask("TTL", key) == b":-1\r\n"
    assert raw.ask("GET", key) == b"$1\r\nv\r\n"


def test_expire_of_a_missing_key_does_nothing(raw: Raw, key: str) -> None:
    assert raw.ask("EXPIRE", key, 100) == b":0\r\n"
    assert raw.ask("PEXPIRE", key, 100) == b":0\r\n"
    assert raw.ask("EXISTS", key) == b":0\r\n"


@pytest.mark.parametrize("command", ["EXPIRE", "PEXPIRE"])
@pytest.mark.parametrize("past", [0, -1, -1000])
def test_an_expiry_in_the_past_removes_the_key(
    raw: Raw, key: str, null: bytes, command: str, past: int
) -> None:
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask(command, key, past) == b":1\r\n"
    assert raw.ask("GET", key) == null


@pytest.mark.parametrize("command", ["EXPIRE", "PEXPIRE"])
def test_an_expiry_that_is_no_time_is_refused(raw: Raw, key: str, command: str) -> None:
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask(command, key, "soon") == b"-ERR value is not an integer or out of range\r\n"
    refused = f"-ERR invalid expire time in '{command.lower()}' command\r\n".encode()
    assert raw.ask(command, key, (1 << 63) - 1) == refused
    assert raw.ask("TTL", key) == b":-1\r\n"


def test_setex_refuses_what_is_no_time(raw: Raw, key: str, null: bytes) -> None:
    assert raw.ask("SETEX", key, 0, "v") == b"-ERR invalid expire time in 'setex' command\r\n"
    assert raw.ask("SETEX", key, -5, "v") == b"-ERR invalid expire time in 'setex' command\r\n"
    assert raw.ask("SETEX", key, "soon", "v") == b"-ERR value is not an integer or out of range\r\n"
    assert raw.ask("GET", key) == null


def test_ttl_rounds_to_the_nearest_second(client: redis.Redis, key: str) -> None:
    assert client.set(key, b"v", px=1_000_400)
    assert 900 < client.ttl(key) <= 1000, "1000.4 s round down; slow machines may see less, none sees 1001"
