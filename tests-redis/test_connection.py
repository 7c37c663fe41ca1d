"""What belongs to a connection: greeting, name, database, and what the server tells about itself."""

from __future__ import annotations

import asyncio
import re

import pytest
import redis
import redis.asyncio

from raw import Raw, encode
from targets import Target

OK = b"+OK\r\n"


def error(reply: bytes) -> str:
    assert reply.startswith(b"-"), f"not an error: {reply!r}"
    return reply[1:-2].decode()


def knows(client: redis.Redis, target: Target, major: int, minor: int) -> bool:
    """Whether the target should know what Redis learned in this version."""
    if target.name == "tontine":
        return True
    found = client.info("server")["redis_version"].split(".")
    return (int(found[0]), int(found[1])) >= (major, minor)


def test_ping_and_echo(raw: Raw) -> None:
    assert raw.ask("PING") == b"+PONG\r\n"
    assert raw.ask("ping", "hello there") == b"$11\r\nhello there\r\n"
    assert raw.ask("PING", b"\x00\r\n") == b"$3\r\n\x00\r\n\r\n"
    assert raw.ask("ECHO", "") == b"$0\r\n\r\n"
    assert error(raw.ask("PING", "a", "b")) == "ERR wrong number of arguments for 'ping' command"


def test_hello_settles_the_protocol_and_introduces_the_server(raw2: Raw, key: str) -> None:
    assert raw2.ask("HELLO").startswith(b"*"), "RESP2 until asked otherwise"
    greeting = raw2.ask("HELLO", 3)
    assert greeting.startswith(b"%")
    for field in (b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"):
        assert b"\r\n" + field + b"\r\n" in greeting
    assert b"proto\r\n:3\r\n" in greeting
    assert raw2.ask("GET", key) == b"_\r\n"
    assert raw2.ask("HELLO", 2).startswith(b"*")
    assert raw2.ask("GET", key) == b"$-1\r\n"


def test_hello_refuses_unknown_versions_and_keeps_the_old_one(raw2: Raw, key: str) -> None:
    assert error(raw2.ask("HELLO", 4)) == "NOPROTO unsupported protocol version"
    assert error(raw2.ask("HELLO", 1)) == "NOPROTO unsupported protocol version"
    assert "Protocol version is not an integer" in error(raw2.ask("HELLO", "three"))
    assert raw2.ask("GET", key) == b"$-1\r\n"


def test_hello_takes_a_name_and_credentials(raw2: Raw) -> None:
    assert raw2.ask("HELLO", 3, "AUTH", "default", "anything", "SETNAME", "worker-1").startswith(b"%")
    assert raw2.ask("CLIENT", "GETNAME") == b"$8\r\nworker-1\r\n"
    assert error(raw2.ask("HELLO", 3, "BOGUS")) == "ERR Syntax error in HELLO option 'BOGUS'"
    assert raw2.ask("PING") == b"+PONG\r\n"


def test_auth_without_a_password_configured(raw: Raw) -> None:
    assert error(raw.ask("AUTH", "secret")) == (
        "ERR AUTH <password> called without any password configured for the default user. "
        "Are you sure your configuration is correct?"
    )
    assert raw.ask("AUTH", "default", "anything") == OK
    assert error(raw.ask("AUTH", "nobody", "x")) == (
        "WRONGPASS invalid username-password pair or user is disabled."
    )
    assert raw.ask("PING") == b"+PONG\r\n"


def test_select_knows_database_zero(raw: Raw) -> None:
    assert raw.ask("SELECT", 0) == OK
    assert error(raw.ask("SELECT", 1_000_000)) == "ERR DB index is out of range"
    assert error(raw.ask("SELECT", -1)) == "ERR DB index is out of range"
    assert "not an integer" in error(raw.ask("SELECT", "zero"))


@pytest.mark.only("tontine")
def test_there_is_no_second_database_to_mistake_for_a_store(raw: Raw) -> None:
    assert error(raw.ask("SELECT", 1)) == "ERR DB index is out of range"


def test_a_client_has_a_name_when_it_gives_itself_one(
    client: redis.Redis, target: Target, protocol: int
) -> None:
    host, port = target.addresses[0]
    single = redis.Redis(host=host, port=port, protocol=protocol, single_connection_client=True)
    with single as client:
        assert client.client_getname() is None
        assert client.client_setname("worker-7")
        assert client.client_getname() in (b"worker-7", "worker-7")
        with pytest.raises(redis.ResponseError, match="Client names cannot contain spaces"):
            client.client_setname("two words")
        assert client.client_getname() in (b"worker-7", "worker-7")
        listed = [entry for entry in client.client_list() if entry["name"] == "worker-7"]
        assert [int(entry["id"]) for entry in listed] == [client.client_id()]


def test_client_ids_grow_and_do_not_change(target: Target) -> None:
    with Raw(target.addresses[0]) as first, Raw(target.addresses[0]) as second:
        ids = [int(connection.ask("CLIENT", "ID")[1:-2]) for connection in (first, second, first)]
    assert ids[0] == ids[2] and ids[1] > ids[0] > 0


def test_client_info_describes_this_connection(client: redis.Redis) -> None:
    info = client.client_info()
    for field in ("id", "addr", "laddr", "name", "db"):
        assert field in info
    assert re.fullmatch(r"127\.0\.0\.1:\d+", info["addr"])
    assert str(info["db"]) == "0"


def fields(line: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in line.split())


def test_client_info_has_no_field_that_redis_does_not_have(raw: Raw) -> None:
    """go-redis refuses a line with a field that it does not know."""
    known = (
        "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp obl oll "
        "omem tot-mem events cmd user redir resp lib-name lib-ver"
    )
    told = raw.ask("CLIENT", "INFO").split(b"\r\n", 1)[1].removeprefix(b"txt:").decode()
    assert set(fields(told)) <= set(known.split()), told
    assert fields(told)["flags"] == "N" and fields(told)["multi"] == "-1" and fields(told)["user"] == "default"


def test_client_list_takes_types_and_ids(raw: Raw, protocol: int) -> None:
    own = int(raw.ask("CLIENT", "ID")[1:-2])
    told = raw.ask("CLIENT", "LIST", "ID", own, 10**15)
    assert told.startswith(b"=" if protocol == 3 else b"$")
    lines = [line for line in told.decode().split("\n") if "id=" in line]
    assert len(lines) == 1 and f"id={own} " in lines[0]
    assert f"id={own} ".encode() in raw.ask("CLIENT", "LIST", "TYPE", "normal")
    assert b"id=" not in raw.ask("CLIENT", "LIST", "TYPE", "pubsub")
    assert error(raw.ask("CLIENT", "LIST", "TYPE", "odd")) == "ERR Unknown client type 'odd'"
    assert error(raw.ask("CLIENT", "LIST", "ID", "x")) == "ERR Invalid client ID"
    for wrong in (["ID"], ["TYPE"], ["odd"], ["TYPE", "normal", "x"]):
        assert error(raw.ask("CLIENT", "LIST", *wrong)) == "ERR syntax error", wrong


def test_info_tells_what_clients_look_for(client: redis.Redis, raw: Raw, protocol: int) -> None:
    info = client.info()
    assert info["arch_bits"] in (32, 64)
    assert info["used_cpu_sys"] + info["used_cpu_user"] >= 0
    assert raw.ask("INFO", "server").startswith(b"=" if protocol == 3 else b"$")


@pytest.mark.parametrize("number", ["010", "+10", "-0", " 10", "1e3", "9223372036854775808"])
def test_numbers_have_one_form(raw: Raw, key: str, number: str) -> None:
    refusal = "ERR value is not an integer or out of range"
    assert error(raw.ask("SET", key, "v", "EX", number)) == refusal
    assert error(raw.ask("EXPIRE", key, number)) == refusal
    assert "not an integer or out of range" in error(raw.ask("SELECT", number))
    assert error(raw.ask("HELLO", number)) == "ERR Protocol version is not an integer or out of range"


def test_client_setinfo_names_the_library(client: redis.Redis, target: Target, raw2: Raw) -> None:
    if not knows(client, target, 7, 2):
        pytest.skip("this Redis is older than 7.2")
    assert raw2.ask("CLIENT", "SETINFO", "lib-name", "trial") == OK
    assert raw2.ask("CLIENT", "SETINFO", "LIB-VER", "1.0") == OK
    told = raw2.ask("CLIENT", "INFO")
    assert b"lib-name=trial" in told and b"lib-ver=1.0" in told
    assert error(raw2.ask("CLIENT", "SETINFO", "lib-colour", "red")).startswith("ERR Unrecognized option")


def test_client_no_evict_and_no_touch_are_accepted(client: redis.Redis, target: Target, raw: Raw) -> None:
    assert raw.ask("CLIENT", "NO-EVICT", "on") == OK
    assert raw.ask("CLIENT", "NO-EVICT", "OFF") == OK
    assert error(raw.ask("CLIENT", "NO-EVICT", "maybe")) == "ERR syntax error"
    if knows(client, target, 7, 2):
        assert raw.ask("CLIENT", "NO-TOUCH", "on") == OK


def test_client_reply_silences_what_it_says(raw: Raw, key: str) -> None:
    raw.send(encode("CLIENT", "REPLY", "OFF") + encode("SET", key, "1") + encode("PING"))
    assert raw.ask("CLIENT", "REPLY", "ON") == OK
    assert raw.ask("GET", key) == b"$1\r\n1\r\n", "what was silenced was done"
    raw.send(encode("CLIENT", "REPLY", "SKIP") + encode("SET", key, "2"))
    assert raw.ask("GET", key) == b"$1\r\n2\r\n"
    assert error(raw.ask("CLIENT", "REPLY", "LOUD")) == "ERR syntax error"


def test_command_describes_the_commands(raw: Raw, client: redis.Redis) -> None:
    count = int(raw.ask("COMMAND", "COUNT")[1:-2])
    every = client.command()
    assert count == len(every) and count >= 20
    wanted = (
        "ping echo hello auth select client command info get set del unlink exists mget mset setex".split()
    )
    wanted += "expire pexpire ttl pttl persist strlen".split()
    wanted += "setnx getset getex getdel psetex expireat pexpireat expiretime pexpiretime type touch".split()
    wanted += "dbsize randomkey scan keys time getrange substr object config".split()
    assert [name for name in wanted if name not in every] == []
    assert every["get"]["arity"] == 2 and every["mset"]["arity"] == -3
    assert (every["get"]["first_key_pos"], every["get"]["last_key_pos"], every["get"]["step_count"]) == (
        1,
        1,
        1,
    )
    assert (every["mset"]["first_key_pos"], every["mset"]["last_key_pos"], every["mset"]["step_count"]) == (
        1,
        -1,
        2,
    )
    assert "readonly" in every["get"]["flags"] and "write" in every["set"]["flags"]


def test_command_info_has_null_for_what_it_does_not_know(raw: Raw, null: bytes) -> None:
    reply = raw.ask("COMMAND", "INFO", "get", "nosuch")
    assert reply.startswith(b"*2\r\n*10\r\n$3\r\nget\r\n:2\r\n")
    assert reply.endswith(null)


def test_command_docs_tells_what_a_command_is_for(raw: Raw, protocol: int) -> None:
    reply = raw.ask("COMMAND", "DOCS", "get", "nosuch")
    assert reply.startswith(b"%1\r\n$3\r\nget\r\n%" if protocol == 3 else b"*2\r\n$3\r\nget\r\n*")
    assert b"$7\r\nsummary\r\n" in reply
    empty = raw.ask("COMMAND", "DOCS", "nosuch")
    assert empty == (b"%0\r\n" if protocol == 3 else b"*0\r\n")


def test_info_has_sections_that_libraries_read(client: redis.Redis, raw: Raw) -> None:
    info = client.info()
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["redis_version"]), "libraries choose features by it"
    for field in ("tcp_port", "process_id", "uptime_in_seconds", "connected_clients", "role"):
        assert field in info, field
    assert client.info("server")["redis_version"] == info["redis_version"]
    assert "connected_clients" not in client.info("server")
    text = raw.ask("INFO", "server")
    assert b"# Server\r\n" in text and text.count(b"\r\n") > 5
    assert client.info("nosuchsection") == {}


def test_the_asyncio_client_works(target: Target, protocol: int, key: str) -> None:
    async def drive() -> None:
        host, port = target.addresses[0]
        async with redis.asyncio.Redis(host=host, port=port, protocol=protocol) as client:
            # The client's pool refuses to open more than a hundred connections.
            keys = [f"{key}:{index}" for index in range(90)]
            await asyncio.gather(*(client.set(name, name) for name in keys))
            values = await asyncio.gather(*(client.get(name) for name in keys))
            assert values == [name.encode() for name in keys]
            async with client.pipeline(transaction=False) as pipeline:
                for name in keys:
                    pipeline.delete(name)
                assert await pipeline.execute() == [1] * len(keys)

    asyncio.run(drive())


def test_quit_says_goodbye_and_closes(raw2: Raw) -> None:
    assert raw2.ask("QUIT") == OK
    assert raw2.rest() == b""
