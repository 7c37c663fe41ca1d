"""The plain commands that programs and frameworks use every day, byte for byte as Redis answers them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis

from raw import Raw
from targets import Target

Fresh = Callable[[], str]

OK = b"+OK\r\n"
SYNTAX = b"-ERR syntax error\r\n"
NO_INTEGER = b"-ERR value is not an integer or out of range\r\n"
FAR_SECONDS = 4_102_444_800  # the year 2100


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def test_setnx_getset_and_getdel(raw: Raw, key: str, null: bytes) -> None:
    assert raw.ask("GETDEL", key) == null
    assert raw.ask("SETNX", key, "1") == b":1\r\n"
    assert raw.ask("SETNX", key, "2") == b":0\r\n"
    assert raw.ask("EXPIRE", key, "1000") == b":1\r\n"
    assert raw.ask("GETSET", key, "3") == bulk(b"1")
    assert raw.ask("TTL", key) == b":-1\r\n", "GETSET ends the time to live"
    assert raw.ask("GETDEL", key) == bulk(b"3")
    assert raw.ask("EXISTS", key) == b":0\r\n"
    assert raw.ask("GETSET", key, "4") == null


def test_getex_reads_and_changes_when_a_key_expires(raw: Raw, key: str, null: bytes) -> None:
    assert raw.ask("GETEX", key, "EX", "10") == null
    assert raw.ask("EXISTS", key) == b":0\r\n"
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask("GETEX", key) == bulk(b"v")
    assert raw.ask("TTL", key) == b":-1\r\n"
    assert raw.ask("GETEX", key, "ex", "100") == bulk(b"v")
    assert raw.ask("TTL", key) == b":100\r\n"
    assert raw.ask("GETEX", key, "PXAT", FAR_SECONDS * 1000 + 7) == bulk(b"v")
    assert raw.ask("PEXPIRETIME", key) == b":%d\r\n" % (FAR_SECONDS * 1000 + 7)
    assert raw.ask("GETEX", key, "PERSIST") == bulk(b"v")
    assert raw.ask("EXPIRETIME", key) == b":-1\r\n"
    assert raw.ask("GETEX", key, "EXAT", "1") == bulk(b"v")
    assert raw.ask("GET", key) == null, "what should have expired in 1970 is deleted"


@pytest.mark.parametrize(
    ("options", "reply"),
    [
        (["EX"], SYNTAX),
        (["EX", "10", "PERSIST"], SYNTAX),
        (["EX", "10", "PX", "10"], SYNTAX),
        (["NX"], SYNTAX),
        (["KEEPTTL"], SYNTAX),
        (["EX", "ten"], NO_INTEGER),
        (["EX", "0"], b"-ERR invalid expire time in 'getex' command\r\n"),
        (["PX", "-1"], b"-ERR invalid expire time in 'getex' command\r\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_of_getex_that_make_no_sense_are_refused(
    raw: Raw, key: str, options: list[str], reply: bytes
) -> None:
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask("GETEX", key, *options) == reply
    assert raw.ask("TTL", key) == b":-1\r\n"


def test_psetex_counts_in_milliseconds(raw: Raw, key: str) -> None:
    assert raw.ask("PSETEX", key, "100000", "v") == OK
    assert 99_000 < int(raw.ask("PTTL", key)[1:]) <= 100_000
    assert raw.ask("PSETEX", key, "0", "v") == b"-ERR invalid expire time in 'psetex' command\r\n"
    assert raw.ask("PSETEX", key, "ten", "v") == NO_INTEGER
    assert raw.ask("PSETEX", key, "10") == b"-ERR wrong number of arguments for 'psetex' command\r\n"


def test_a_key_expires_at_a_point_in_time(raw: Raw, key: str) -> None:
    assert raw.ask("EXPIREAT", key, FAR_SECONDS) == b":0\r\n"
    assert raw.ask("EXPIRETIME", key) == b":-2\r\n"
    assert raw.ask("PEXPIRETIME", key) == b":-2\r\n"
    assert raw.ask("SET", key, "v") == OK
    assert raw.ask("EXPIREAT", key, FAR_SECONDS, "XX") == b":0\r\n"
    assert raw.ask("EXPIREAT", key, FAR_SECONDS, "NX") == b":1\r\n"
    assert raw.ask("EXPIRETIME", key) == b":%d\r\n" % FAR_SECONDS
    assert raw.ask("PEXPIREAT", key, FAR_SECONDS * 1000 + 1, "LT") == b":0\r\n"
    assert raw.ask("PEXPIREAT", key, FAR_SECONDS * 1000 + 1, "GT") == b":1\r\n"
    assert raw.ask("PEXPIRETIME", key) == b":%d\r\n" % (FAR_SECONDS * 1000 + 1)
    assert raw.ask("EXPIREAT", key, "ten") == NO_INTEGER
    assert raw.ask("EXPIREAT", key, "9223372036854775807") == b"-ERR invalid expire time in 'expireat' command\r\n"
    assert raw.ask("PEXPIREAT", key, "1") == b":1\r\n"
    assert raw.ask("EXISTS", key) == b":0\r\n"


def test_type_touch_and_object_encoding(raw: Raw, fresh: Fresh, null: bytes) -> None:
    key, missing = fresh(), fresh()
    assert raw.ask("TYPE", missing) == b"+none\r\n"
    assert raw.ask("OBJECT", "ENCODING", missing) == null
    for value, encoding in [("12", b"int"), ("012", b"embstr"), ("x" * 44, b"embstr"), ("x" * 45, b"raw")]:
        assert raw.ask("SET", key, value) == OK
        assert raw.ask("OBJECT", "encoding", key) == bulk(encoding), value
    assert raw.ask("TYPE", key) == b"+string\r\n"
    assert raw.ask("TOUCH", key, missing, key) == b":2\r\n"
    assert raw.ask("OBJECT", "NOSUCH", key).startswith(b"-ERR unknown subcommand 'NOSUCH'")


@pytest.mark.parametrize("command", ["GETRANGE", "SUBSTR"])
def test_a_range_of_a_value(raw: Raw, key: str, command: str) -> None:
    assert raw.ask(command, key, "0", "-1") == bulk(b"")
    assert raw.ask("SET", key, "This is a string") == OK
    ranges = [(0, 3), (-3, -1), (0, -1), (10, 100), (5, 4), (-1, -3), (-100, 1), (-100, -100), (16, 20)]
    texts = [b"This", b"ing", b"This is a string", b"string", b"", b"", b"Th", b"T", b""]
    for (start, end), text in zip(ranges, texts, strict=True):
        assert raw.ask(command, key, start, end) == bulk(text), (start, end)
    assert raw.ask(command, key, "zero", "1") == NO_INTEGER


def test_time_is_the_time(client: redis.Redis) -> None:
    seconds, microseconds = client.time()
    assert abs(seconds + microseconds / 1e6 - time.time()) < 60
    assert 0 <= microseconds < 1_000_000


def test_settings_that_clients_ask_for_are_told(client: redis.Redis, raw: Raw) -> None:
    assert client.config_get("databases").keys() == {"databases"}
    assert client.config_get("maxmemory-p*")["maxmemory-policy"] == "noeviction"
    both = client.config_get("save", "appendonly")
    assert both["appendonly"] in ("yes", "no") and both["save"] == ""
    assert client.config_get("no-such-setting") == {}
    assert raw.ask("CONFIG", "GET") == b"-ERR wrong number of arguments for 'config|get' command\r\n"


def test_a_walk_meets_what_is_there_all_the_time_whoever_is_asked(
    target: Target, client: redis.Redis, elsewhere: redis.Redis, fresh: Fresh
) -> None:
    prefix = fresh()
    stays = {f"{prefix}:stays:{index}".encode() for index in range(3000)}
    client.mset(dict.fromkeys(stays, b"v"))
    met: list[bytes] = []
    cursor, pages, clients = 0, 0, [client, elsewhere]
    while True:
        # Another node goes on with the cursor of the one before, while keys come and go.
        cursor, page = clients[pages % 2].scan(cursor, match=f"{prefix}:*", count=100)
        met += page
        pages += 1
        assert 0 <= cursor < 1 << 64
        passing = f"{prefix}:passing:{pages}"
        client.set(passing, "v")
        if pages % 2:
            client.delete(passing)
        if cursor == 0:
            break
    assert stays <= set(met)
    assert all(key in stays or b":passing:" in key for key in met)
    if target.name == "tontine":
        assert len(met) == len(set(met)), "no key is met twice"
    assert sorted(client.scan_iter(match=f"{prefix}:stays:*", count=1000)) == sorted(stays)
    assert set(client.keys(f"{prefix}:stays:*")) == stays
    assert client.keys(f"{prefix}:stays:[12]") == client.keys(f"{prefix}:stays:[^03-9]")
    assert client.unlink(*stays) == len(stays)
    assert list(client.scan_iter(match=f"{prefix}:stays:*", count=1000)) == []


def test_a_walk_can_ask_for_a_type(client: redis.Redis, fresh: Fresh) -> None:
    key = fresh()
    client.set(key, "v")
    assert list(client.scan_iter(match=key, count=1000, _type="string")) == [key.encode()]
    assert list(client.scan_iter(match=key, count=1000, _type="list")) == []


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        (["x"], b"-ERR invalid cursor\r\n"),
        (["99999999999999999999999"], b"-ERR invalid cursor\r\n"),
        (["0", "COUNT", "0"], SYNTAX),
        (["0", "COUNT", "ten"], NO_INTEGER),
        (["0", "COUNT"], SYNTAX),
        (["0", "BOGUS", "1"], SYNTAX),
        ([], b"-ERR wrong number of arguments for 'scan' command\r\n"),
    ],
    ids=str,
)
def test_walks_that_make_no_sense_are_refused(raw: Raw, arguments: list[str], reply: bytes) -> None:
    assert raw.ask("SCAN", *arguments) == reply


def test_keys_are_counted_and_one_is_named_by_chance(client: redis.Redis, fresh: Fresh) -> None:
    client.mset({fresh(): "v" for _ in range(50)})
    # A node counts what it holds, and the last replica of a write may still be on its way.
    assert _eventually(lambda: client.dbsize() == len(set(client.scan_iter(count=10_000))))
    assert client.dbsize() >= 50
    named = client.randomkey()
    assert named is not None and client.exists(named) == 1
    assert len({client.randomkey() for _ in range(40)}) > 1


def test_info_counts_keys_and_what_expires(client: redis.Redis, fresh: Fresh) -> None:
    def expiring() -> int:
        return client.info("keyspace").get("db0", {}).get("expires", 0)

    before = expiring()
    client.set(fresh(), "v")
    client.mset({fresh(): "v" for _ in range(10)})
    for _ in range(20):
        client.set(fresh(), "v", ex=1000)
    assert _eventually(lambda: expiring() >= before + 10), "some of those before may have expired meanwhile"
    assert client.info("keyspace")["db0"]["keys"] >= expiring()
    assert client.info("keyspace")["db0"]["avg_ttl"] >= 0


def _eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
    return True


REFUSED = [
    ("INCR n", "counters"),
    ("LPUSH l v", "lists"),
    ("HSET h f v", "hashes"),
    ("SADD s m", "sets"),
    ("ZADD z 1 m", "sorted sets"),
    ("XADD s * f v", "streams"),
    ("EVAL x 0", "scripts"),
    ("PUBLISH c m", "messages"),
    ("FLUSHALL", "SCAN"),
    ("RENAME a b", "several keys as one"),
    ("APPEND k v", "whole"),
    ("WAIT 1 0", "W replicas"),
    ("CLUSTER SLOTS", "Any node"),
    ("MONITOR", "INFO"),
    ("SAVE", "durability"),
]


@pytest.mark.only("tontine", "Redis carries these out")
@pytest.mark.parametrize(("command", "reason"), REFUSED, ids=[command for command, _ in REFUSED])
def test_commands_that_are_refused_on_purpose_say_why(raw: Raw, command: str, reason: str) -> None:
    words = command.split()
    answer = raw.ask(*words).decode()
    assert answer.startswith(f"-ERR unknown command '{words[0]}'"), "clients take it for unknown"
    assert reason in answer, answer
    assert answer.count("\r\n") == 1
    assert raw.ask("PING") == b"+PONG\r\n"


@pytest.mark.only("tontine", "Redis has no bound")
@pytest.mark.timeout(240)
def test_keys_is_refused_in_a_store_with_too_many_and_names_scan(target: Target, fresh: Fresh) -> None:
    host, port = target.addresses[0]
    with redis.Redis(host=host, port=port, single_connection_client=True, socket_timeout=60) as client:
        client.execute_command("TONTINE.STORE", "siblings")
        prefix = fresh()
        keys = [f"{prefix}:{index}" for index in range(100_001)]
        groups = [keys[start : start + 2000] for start in range(0, len(keys), 2000)]
        for group in groups:
            client.mset(dict.fromkeys(group, "v"))
        with pytest.raises(redis.ResponseError, match="too-many-keys: KEYS looks at 100000 keys.*Use SCAN"):
            client.keys("*")
        assert abs(client.dbsize() - 100_001) < 3000
        for group in groups:
            client.unlink(*group)
