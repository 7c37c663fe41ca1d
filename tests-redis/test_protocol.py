"""Requests in every shape: pipelined, trickling, inline, refused, malformed, and many at once."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable

import pytest
import redis

from raw import Raw, encode
from targets import Target

OK = b"+OK\r\n"
PONG = b"+PONG\r\n"
Fresh = Callable[[], str]


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (["NOSUCH"], "unknown command 'NOSUCH', with args beginning with: "),
        (["NoSuch", "a", "b c"], "unknown command 'NoSuch', with args beginning with: 'a' 'b c' "),
        (["NOSUCH", "k", "v"], "unknown command 'NOSUCH', with args beginning with: 'k' 'v' "),
        (["GET"], "wrong number of arguments for 'get' command"),
        (["get", "a", "b"], "wrong number of arguments for 'get' command"),
        (["SET", "k"], "wrong number of arguments for 'set' command"),
        (["SETEX", "k", "1"], "wrong number of arguments for 'setex' command"),
        (["MSET", "k"], "wrong number of arguments for 'mset' command"),
        (["MSET", "k", "v", "l"], "wrong number of arguments for 'mset' command"),
        (["MGET"], "wrong number of arguments for 'mget' command"),
        (["DEL"], "wrong number of arguments for 'del' command"),
        (["UNLINK"], "wrong number of arguments for 'unlink' command"),
        (["EXISTS"], "wrong number of arguments for 'exists' command"),
        (["TTL"], "wrong number of arguments for 'ttl' command"),
        (["PTTL", "a", "b"], "wrong number of arguments for 'pttl' command"),
        (["EXPIRE", "k"], "wrong number of arguments for 'expire' command"),
        (["PERSIST"], "wrong number of arguments for 'persist' command"),
        (["STRLEN"], "wrong number of arguments for 'strlen' command"),
        (["ECHO"], "wrong number of arguments for 'echo' command"),
        (["SELECT"], "wrong number of arguments for 'select' command"),
        (["CLIENT"], "wrong number of arguments for 'client' command"),
        (["CLIENT", "SETNAME"], "wrong number of arguments for 'client|setname' command"),
        (["CLIENT", "NOSUCH"], "unknown subcommand 'NOSUCH'. Try CLIENT HELP."),
        (["COMMAND", "NOSUCH"], "unknown subcommand 'NOSUCH'. Try COMMAND HELP."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_refused_in_redis_own_words(raw: Raw, command: list[str], reply: str) -> None:
    assert raw.ask(*command) == f"-ERR {reply}\r\n".encode()
    assert raw.ask("PING") == PONG, "the connection goes on"


def test_an_unknown_command_with_long_arguments_is_quoted_in_part(raw: Raw) -> None:
    reply = raw.ask("NOSUCH", "a" * 10_000, "b" * 10_000)
    assert reply.startswith(b"-ERR unknown command 'NOSUCH', with args beginning with: 'aaa")
    assert len(reply) < 400
    long = raw.ask("N" * 10_000)
    assert long.startswith(b"-ERR unknown command 'NNN") and len(long) < 400


def test_an_unknown_command_cannot_forge_a_reply(raw: Raw) -> None:
    reply = raw.ask("NO\r\n+OK", "a\r\n+OK")
    assert reply.startswith(b"-ERR unknown command") and reply.count(b"\r\n") == 1
    assert raw.ask("PING") == PONG


def test_a_pipeline_of_a_thousand_is_answered_in_order(client: redis.Redis, fresh: Fresh) -> None:
    keys = [fresh() for _ in range(1000)]
    with client.pipeline(transaction=False) as pipeline:
        for index, key in enumerate(keys):
            pipeline.set(key, index)
        assert pipeline.execute() == [True] * 1000
        for key in keys:
            pipeline.get(key)
            pipeline.strlen(key)
        values = [str(index).encode() for index in range(1000)]
        assert pipeline.execute() == [part for value in values for part in (value, len(value))]


def test_an_error_in_a_pipeline_takes_one_place_only(client: redis.Redis, key: str) -> None:
    with client.pipeline(transaction=False) as pipeline:
        pipeline.set(key, "1").execute_command("NOSUCH").execute_command("GET").get(key).delete(key)
        done, unknown, arity, value, deleted = pipeline.execute(raise_on_error=False)
    assert (done, value, deleted) == (True, b"1", 1)
    assert isinstance(unknown, redis.ResponseError) and isinstance(arity, redis.ResponseError)


def test_a_pipeline_of_big_values_flows_both_ways_without_waiting_for_its_end(
    client: redis.Redis, fresh: Fresh
) -> None:
    keys, value = [fresh() for _ in range(64)], b"x" * (1 << 20)
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.set(key, value)
        for key in keys:
            pipeline.get(key)
        for key in keys:
            pipeline.delete(key)
        replies = pipeline.execute()
    assert replies == [True] * 64 + [value] * 64 + [1] * 64


def test_a_client_that_sends_for_long_before_it_reads_is_served(target: Target, key: str) -> None:
    commands = 20_000
    with Raw(target.addresses[0]) as raw:
        sender = threading.Thread(target=raw.send, args=(encode("SET", key, "v" * 100) * commands,))
        sender.start()
        for _ in range(commands):
            assert raw.reply() == OK
        sender.join()
        assert raw.ask("STRLEN", key) == b":100\r\n"


def test_requests_may_arrive_byte_by_byte(raw: Raw, key: str) -> None:
    for byte in encode("SET", key, "v\r\n") + encode("GET", key):
        raw.send(bytes([byte]))
    assert raw.reply() == OK
    assert raw.reply() == b"$3\r\nv\r\n\r\n"


def test_inline_commands_are_understood(raw2: Raw, key: str) -> None:
    raw2.send(f'SET {key} "a b\\x21\\n"\r\n'.encode())
    assert raw2.reply() == OK
    raw2.send(f"  get   {key}  \n".encode())
    assert raw2.reply() == b"$5\r\na b!\n\r\n"
    raw2.send(b"\r\n\r\nPING\r\n")
    assert raw2.reply() == PONG
    raw2.send(b"*0\r\n*-1\r\nPING\r\n")
    assert raw2.reply() == PONG, "empty commands are passed over"


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n$abc\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*2\r\n$3\r\nGET\r\n$99999999999\r\n", "invalid bulk length"),
        (b'SET k "open\r\n', "unbalanced quotes in request"),
        (b'SET k "a"b\r\n', "unbalanced quotes in request"),
        (b"x" * 70_000, "too big inline request"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_malformed_input_is_named_and_the_connection_closed(
    target: Target, sent: bytes, complaint: str
) -> None:
    with Raw(target.addresses[0]) as raw:
        raw.send(encode("PING") + sent)
        assert raw.reply() == PONG, "what came before it is answered"
        assert raw.reply() == f"-ERR Protocol error: {complaint}\r\n".encode()
        assert raw.rest() == b""
    with Raw(target.addresses[0]) as other:
        assert other.ask("PING") == PONG


@pytest.mark.only("tontine")
@pytest.mark.parametrize(
    "sent",
    [b"*1\r\n$4\r\nPINGxx", b"*100000000\r\n", b"*2\r\n$3\r\nGET\r\n$536870912\r\n"],
    ids=["no line end after a bulk", "too many arguments", "too long a bulk"],
)
def test_input_that_redis_would_bear_with_is_refused_at_once(target: Target, sent: bytes) -> None:
    with Raw(target.addresses[0]) as raw:
        raw.send(sent)
        assert raw.reply().startswith(b"-ERR Protocol error")
        assert raw.rest() == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500 + b"\r\n",
    ],
    ids=["http", "tls"],
)
def test_another_protocol_on_this_port_does_no_harm(target: Target, sent: bytes) -> None:
    with Raw(target.addresses[0]) as raw:
        raw.send(sent)
        raw.half_close()
        answer = raw.rest()
    assert answer == b"" or answer.startswith(b"-ERR"), answer
    with Raw(target.addresses[0]) as other:
        assert other.ask("PING") == PONG


@pytest.mark.parametrize("said", ["POST", "post", "Host: 127.0.0.1", "hOST: 127.0.0.1", "*1\r\n$4\r\nPOST"])
def test_post_and_host_end_a_connection_and_nothing_after_them_is_carried_out(
    target: Target, client: redis.Redis, key: str, said: str
) -> None:
    with Raw(target.addresses[0]) as raw:
        raw.send(f"FOO / X\r\n{said}\r\n\r\nSET {key} smuggled\r\n".encode())
        answer = raw.rest()
    # redis-server drops what it has not sent yet when it closes the connection.
    if target.name != "redis" or answer:
        refused, answer = answer.split(b"\r\n", 1)
        assert refused.startswith(b"-ERR unknown command 'FOO'"), refused
    assert answer == b"" or answer.startswith(b"-ERR Protocol error"), answer
    assert client.get(key) is None
    assert client.set("Host:", "POST") and client.get("Host:") == b"POST", "arguments may say so"


@pytest.mark.parametrize("method", ["FOO", "POST", "GET", "PUT", pytest.param("SET", marks=pytest.mark.only("tontine"))])
def test_an_http_request_carries_out_nothing(target: Target, client: redis.Redis, key: str, method: str) -> None:
    body = f"SET {key} smuggled\r\n"
    request = f"{method} /{key} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with Raw(target.addresses[0]) as raw:
        raw.send(request.encode())
        raw.rest()
    assert client.exists(key, f"/{key}") == 0


def test_input_that_breaks_off_is_not_carried_out(target: Target, client: redis.Redis, key: str) -> None:
    whole = encode("SET", key, "value")
    for length in range(len(whole)):
        with Raw(target.addresses[0]) as raw:
            raw.send(whole[:length])
            raw.half_close()
            assert raw.rest() == b""
    assert client.get(key) is None


def test_a_client_that_leaves_without_reading_does_no_harm(
    target: Target, client: redis.Redis, key: str
) -> None:
    client.set(key, b"x" * (1 << 20))
    for _ in range(20):
        with Raw(target.addresses[0]) as raw:
            raw.send(encode("GET", key) * 50)
    assert client.strlen(key) == 1 << 20
    client.delete(key)


def test_hundreds_of_connections_are_served_side_by_side(target: Target, fresh: Fresh) -> None:
    wanted = 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * wanted), hard))
    connections = [Raw(target.addresses[index % len(target.addresses)]) for index in range(wanted)]
    keys = [fresh() for _ in connections]
    try:
        for raw, key in zip(connections, keys, strict=True):
            raw.send(encode("SET", key, key))
        assert all(raw.reply() == OK for raw in connections)
        for raw, key in zip(reversed(connections), keys, strict=True):
            raw.send(encode("GET", key))
        for raw, key in zip(reversed(connections), keys, strict=True):
            assert raw.reply() == b"$%d\r\n%b\r\n" % (len(key), key.encode())
    finally:
        for raw in connections:
            raw.close()


def test_threads_that_share_a_pool_do_not_mix_their_answers(client: redis.Redis, fresh: Fresh) -> None:
    wrong: list[tuple[str, bytes | None]] = []

    def work(key: str) -> None:
        for round_ in range(100):
            value = f"{key} {round_}".encode()
            client.set(key, value)
            found = client.get(key)
            if found != value:
                wrong.append((key, found))

    threads = [threading.Thread(target=work, args=(fresh(),)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
