"""GET, SET and their family, through the client library and byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from raw import Raw

Fresh = Callable[[], str]

OK = b"+OK\r\n"
SYNTAX = b"-ERR syntax error\r\n"
NO_INTEGER = b"-ERR value is not an integer or out of range\r\n"


def test_a_key_that_was_set_is_there_and_one_that_was_not_is_not(raw: Raw, key: str, null: bytes) -> None:
    assert raw.ask("GET", key) == null
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask("GET", key) == b"$1\r\nv\r\n"
    assert raw.ask("SET", key, "other") == OK
    assert raw.ask("get", key) == b"$5\r\nother\r\n"


def test_a_write_through_one_node_is_read_through_another(
    client: redis.Redis, elsewhere: redis.Redis, fresh: Fresh
) -> None:
    for round_ in range(50):
        key, value = fresh(), f"round {round_}".encode()
        assert client.set(key, value)
        assert elsewhere.get(key) == value
        assert elsewhere.delete(key) == 1
        assert client.get(key) is None


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00", b"\r\n", b"$3\r\nabc\r\n", bytes(range(256)), "žluťoučký kůň".encode(), b"x" * 65_537],
    ids=["empty", "zero", "crlf", "resp", "all bytes", "utf-8", "64 KiB and one"],
)
def test_any_bytes_come_back_as_they_were(client: redis.Redis, key: str, value: bytes) -> None:
    assert client.set(key, value)
    assert client.get(key) == value
    assert client.strlen(key) == len(value)


@pytest.mark.parametrize(
    "suffix",
    [b" ", b"\x00", b"\r\n", b"*1\r\n", bytes(range(256)), "klíč".encode(), b"{a}", b"k" * 2000],
    ids=["space", "zero", "crlf", "resp", "all bytes", "utf-8", "braces", "2000 bytes"],
)
def test_any_bytes_make_a_key(client: redis.Redis, key: str, suffix: bytes) -> None:
    name = key.encode() + suffix
    assert client.set(name, b"v")
    assert client.get(name) == b"v"
    assert client.get(key) is None, "a longer key is another key"
    assert client.delete(name) == 1


@pytest.mark.parametrize("megabytes", [1, 15])
def test_big_values_come_back_whole(
    client: redis.Redis, elsewhere: redis.Redis, key: str, megabytes: int
) -> None:
    value = os.urandom(megabytes << 20)
    assert client.set(key, value)
    assert elsewhere.get(key) == value
    assert client.delete(key) == 1


def test_nx_writes_only_what_is_absent_and_xx_only_what_is_there(raw: Raw, key: str, null: bytes) -> None:
    assert raw.ask("SET", key, "1", "XX") == null
    assert raw.ask("GET", key) == null
    assert raw.ask("SET", key, "2", "NX") == OK
    assert raw.ask("SET", key, "3", "nx") == null
    assert raw.ask("GET", key) == b"$1\r\n2\r\n"
    assert raw.ask("SET", key, "4", "xx") == OK
    assert raw.ask("GET", key) == b"$1\r\n4\r\n"


def test_set_with_get_answers_what_was_there(raw: Raw, key: str, null: bytes) -> None:
    assert raw.ask("SET", key, "1", "GET") == null
    assert raw.ask("SET", key, "2", "GET") == b"$1\r\n1\r\n"
    assert raw.ask("SET", key, "3", "XX", "GET") == b"$1\r\n2\r\n"
    assert raw.ask("GET", key) == b"$1\r\n3\r\n"


@pytest.mark.parametrize(
    ("options", "reply"),
    [
        (["NX", "XX"], SYNTAX),
        (["EX"], SYNTAX),
        (["EX", "10", "PX", "10"], SYNTAX),
        (["EX", "10", "KEEPTTL"], SYNTAX),
        (["BOGUS"], SYNTAX),
        (["EX", "ten"], NO_INTEGER),
        (["EX", "1.5"], NO_INTEGER),
        (["PX", "99999999999999999999"], NO_INTEGER),
        (["EX", "0"], b"-ERR invalid expire time in 'set' command\r\n"),
        (["PX", "-1"], b"-ERR invalid expire time in 'set' command\r\n"),
        (["EX", "9223372036854775807"], b"-ERR invalid expire time in 'set' command\r\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_make_no_sense_are_refused_and_nothing_is_written(
    raw: Raw, key: str, null: bytes, options: list[str], reply: bytes
) -> None:
    assert raw.ask("SET", key, "v", *options) == reply
    assert raw.ask("GET", key) == null


def test_del_unlink_and_exists_count_keys(raw: Raw, fresh: Fresh) -> None:
    a, b, missing = fresh(), fresh(), fresh()
    assert raw.ask("MSET", a, "1", b, "2") == OK
    assert raw.ask("EXISTS", a, b, missing) == b":2\r\n"
    assert raw.ask("EXISTS", a, a) == b":2\r\n", "EXISTS counts a key as often as it is named"
    assert raw.ask("DEL", a, missing, a) == b":1\r\n"
    assert raw.ask("EXISTS", a) == b":0\r\n"
    assert raw.ask("UNLINK", b, missing) == b":1\r\n"
    assert raw.ask("UNLINK", b) == b":0\r\n"


def test_a_deleted_key_can_be_set_again(client: redis.Redis, key: str) -> None:
    for value in (b"1", b"2", b"3"):
        assert client.set(key, value, nx=True)
        assert client.get(key) == value
        assert client.delete(key) == 1
        assert client.get(key) is None


def test_mget_answers_in_the_order_asked(raw: Raw, fresh: Fresh, null: bytes) -> None:
    a, b, missing = fresh(), fresh(), fresh()
    assert raw.ask("MSET", a, "1", b, "") == OK
    assert raw.ask("MGET", b, missing, a, b) == b"*4\r\n$0\r\n\r\n" + null + b"$1\r\n1\r\n$0\r\n\r\n"


def test_mset_with_a_key_twice_keeps_the_last(client: redis.Redis, key: str) -> None:
    assert client.execute_command("MSET", key, "1", key, "2")
    assert client.get(key) == b"2"


def test_a_thousand_keys_at_once(client: redis.Redis, elsewhere: redis.Redis, fresh: Fresh) -> None:
    values = {fresh(): f"value {index}".encode() for index in range(1000)}
    assert client.mset(values)
    assert elsewhere.mget(list(values)) == list(values.values())
    assert elsewhere.exists(*values) == 1000
    assert client.delete(*values) == 1000
    assert elsewhere.mget(list(values)) == [None] * 1000


def test_of_two_clients_that_delete_a_key_one_has_deleted_it(
    client: redis.Redis, elsewhere: redis.Redis, fresh: Fresh
) -> None:
    keys = [fresh() for _ in range(200)]
    for _ in range(5):
        assert client.mset(dict.fromkeys(keys, "v"))
        with ThreadPoolExecutor(2) as threads:
            deleted = list(threads.map(lambda each: each.delete(*keys), (client, elsewhere)))
        assert sum(deleted) == len(keys)
        assert elsewhere.mget(keys) == [None] * len(keys)


def test_keys_whose_values_fill_more_than_one_answer_are_deleted(client: redis.Redis, fresh: Fresh) -> None:
    keys = [fresh() for _ in range(5)]
    for key in keys:
        assert client.set(key, b"x" * (15 << 20))
    assert client.exists(*keys) == 5
    assert client.delete(*keys, *keys) == 5
    assert client.exists(*keys) == 0


def test_strlen_counts_bytes(raw: Raw, key: str) -> None:
    assert raw.ask("STRLEN", key) == b":0\r\n"
    assert raw.ask("SET", key, "čtyři".encode()) == OK
    assert raw.ask("STRLEN", key) == b":7\r\n"


@pytest.mark.only("tontine")
def test_a_value_at_the_limit_is_kept_and_one_over_it_is_refused(client: redis.Redis, key: str) -> None:
    limit = 16 << 20
    assert client.set(key, b"x" * limit)
    assert client.strlen(key) == limit
    with pytest.raises(redis.ResponseError, match="limit"):
        client.set(key, b"x" * (limit + 1))
    assert client.strlen(key) == limit, "what was refused changed nothing, and the connection goes on"
    assert client.delete(key) == 1


@pytest.mark.only("tontine")
def test_a_key_at_the_limit_is_kept_and_one_over_it_is_refused(client: redis.Redis, key: str) -> None:
    at_limit = key.ljust(4096, "k")
    assert client.set(at_limit, b"v")
    assert client.get(at_limit) == b"v"
    for refused in (
        lambda: client.set(at_limit + "k", b"v"),
        lambda: client.get(at_limit + "k"),
        lambda: client.delete(at_limit + "k"),
        lambda: client.mget(key, at_limit + "k"),
        lambda: client.mset({key: b"v", at_limit + "k": b"v"}),
    ):
        with pytest.raises(redis.ResponseError, match="limit"):
            refused()
    assert client.get(key) is None, "a refused MSET wrote nothing"
    assert client.get(at_limit) == b"v"


@pytest.mark.only("tontine")
def test_the_empty_key_is_refused(client: redis.Redis) -> None:
    for refused in (lambda: client.set("", b"v"), lambda: client.get("")):
        with pytest.raises(redis.ResponseError, match="empty"):
            refused()
    assert client.ping()
