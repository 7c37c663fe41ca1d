"""One read of a bucket's Stat for many requests: each is told what was so after it
asked, and after every earlier write of the same client."""

from __future__ import annotations

import random
import threading
from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Exists

from parkazoo.sharing import Shared
from servers import PATIENCE_SECONDS
from test_client import Maker, nothing_wrong


class Told:
    def __init__(self) -> None:
        self.values: list[Any] = []

    def set(self, value: Any = None) -> None:
        self.values.append(value)

    def set_exception(self, error: Exception) -> None:
        self.values.append(error)


def test_a_shared_read_answers_each_who_joined_once() -> None:
    shared, replies = Shared(Exists("/x", None)), [Told() for _ in range(3)]
    for reply in replies[:2]:
        shared.join(reply)
    assert not shared.leaving
    shared.serialize()
    assert shared.leaving
    shared.set("stat")
    shared.join(replies[2])  # it had looked before, and was slow
    assert [reply.values for reply in replies] == [["stat"]] * 3
    lost = Shared(Exists("/x", None))
    lost.join(replies[0])
    lost.set_exception(ConnectionLoss())
    assert isinstance(replies[0].values[-1], ConnectionLoss)


def test_many_threads_that_join_while_it_is_answered_are_told_once() -> None:
    for _ in range(200):
        shared, replies = Shared(Exists("/x", None)), [Told() for _ in range(4)]
        begin = threading.Barrier(5)

        def join(reply: Told, shared: Shared = shared, b: Any = begin) -> None:
            b.wait()
            shared.join(reply)

        threads = [threading.Thread(target=join, args=(reply,)) for reply in replies]
        for thread in threads:
            thread.start()
        begin.wait()
        shared.set("stat")
        for thread in threads:
            thread.join()
        assert [reply.values for reply in replies] == [["stat"]] * 4


def test_stats_of_a_directory_count_what_was_asked_for_before(make: Maker) -> None:
    """Nobody waits for an answer; and each Stat is that of its place in the order."""
    client, rng = make(), random.Random(1)
    client.create("/d/first", makepath=True)
    client.exists("/d")  # from now on both its parts are asked for at once
    there, number, asked = 1, 0, []
    for _ in range(600):
        kind = rng.choice(["set", "set", "set", "get", "exists", "create", "delete"])
        if kind == "create":
            number += 1
            there += 1
            client.create_async(f"/d/{number}")
        elif kind == "delete" and there > 1:
            client.delete_async(f"/d/{number}")
            number -= 1
            there -= 1
        elif kind == "set":
            asked.append((there, client.set_async("/d", b"")))
        elif kind == "get":
            asked.append((there, client.get_async("/d")))
        elif kind == "exists":
            asked.append((there, client.exists_async("/d")))
    for expected, result in asked:
        found = result.get(timeout=PATIENCE_SECONDS)
        stat = found[1] if isinstance(found, tuple) and len(found) == 2 else found
        assert stat.numChildren == expected
    assert nothing_wrong(client)


def test_threads_that_share_reads_see_their_own_children(make: Maker) -> None:
    client = make()
    client.create("/d/first", makepath=True)
    wrong: list[Any] = []

    def work(name: str) -> None:
        for number in range(30):
            client.create(f"/d/{name}{number}")
            asked = [client.set_async("/d", b"") for _ in range(5)]
            # Nobody deletes: what this thread has made is counted, and `first`.
            stats = [result.get(timeout=PATIENCE_SECONDS) for result in asked]
            wrong.extend(s for s in stats if s.numChildren < number + 2)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.exists("/d").numChildren == 121
