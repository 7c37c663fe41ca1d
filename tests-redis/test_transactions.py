"""What a transaction leaves behind where there are no transactions: nothing."""

from __future__ import annotations

import pytest
import redis

from raw import Raw
from targets import Target


def error(reply: bytes) -> str:
    assert reply.startswith(b"-"), f"not an error: {reply!r}"
    return reply[1:-2].decode()


def test_what_was_discarded_was_not_carried_out(raw: Raw, client: redis.Redis, key: str) -> None:
    raw.ask("MULTI")
    assert raw.ask("SET", key, 1) != b"+OK\r\n"
    assert raw.ask("DISCARD") == b"+OK\r\n"
    assert client.get(key) is None
    assert raw.ask("SET", key, 2) == b"+OK\r\n", "the connection goes on"
    assert client.get(key) == b"2"


def test_a_transaction_that_cannot_be_carried_out_is_aborted(raw: Raw, client: redis.Redis, key: str) -> None:
    raw.ask("MULTI")
    raw.ask("SET", key, 1)
    assert raw.ask("SET", key).startswith(b"-ERR ")
    assert error(raw.ask("EXEC")).startswith("EXECABORT Transaction discarded because of previous errors.")
    assert client.get(key) is None


def test_words_of_transactions_where_they_do_not_belong(raw: Raw) -> None:
    assert error(raw.ask("EXEC")) == "ERR EXEC without MULTI"
    assert error(raw.ask("DISCARD")) == "ERR DISCARD without MULTI"
    assert error(raw.ask("MULTI", "now")) == "ERR wrong number of arguments for 'multi' command"
    raw.ask("MULTI")
    assert error(raw.ask("MULTI")) == "ERR MULTI calls can not be nested"
    assert error(raw.ask("WATCH", "key")) == "ERR WATCH inside MULTI is not allowed"
    assert raw.ask("RESET") == b"+RESET\r\n"
    assert error(raw.ask("EXEC")) == "ERR EXEC without MULTI"


@pytest.mark.only("tontine")
def test_the_default_pipeline_of_the_library_raises_and_writes_nothing(client: redis.Redis, key: str) -> None:
    with client.pipeline() as pipeline:
        pipeline.set(key, 1).set(key + ":2", 2).get(key)
        with pytest.raises(redis.ResponseError, match="unknown command 'MULTI': Tontine has no transactions"):
            pipeline.execute()
    assert client.exists(key, key + ":2") == 0
    with client.pipeline(transaction=False) as pipeline:
        assert pipeline.set(key, 1).get(key).execute() == [True, b"1"]


@pytest.mark.only("tontine")
def test_a_pipeline_that_watches_raises_before_it_writes(target: Target, client: redis.Redis, key: str) -> None:
    client.set(key, 1)

    def increment(pipeline: redis.client.Pipeline) -> None:
        found = int(pipeline.get(key))
        pipeline.multi()
        pipeline.set(key, found + 1)

    with pytest.raises(redis.ResponseError):
        client.transaction(increment, key)
    assert client.get(key) == b"1"
