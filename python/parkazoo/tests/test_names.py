"""The name of an ensemble that has left is given to no other.

A client that did not hear of the leaving would go on with the servers that have left,
in the belief that they are those of that name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conftest import EnsembleFactory, started
from parkazoo import failpoints
from parkazoo.errors import MoveFailed
from parkazoo.mapping import Table
from parkazoo.move import Mover

READER = """
import sys
from parkazoo import ParKazooClient

client = ParKazooClient(sys.argv[1], timeout=30, auto_init=False)
client.start(60)
for path in sys.stdin:
    data = client.get_async(path.strip()).get(timeout=30)[0]
    print(data.decode(), *client.table.ensembles, flush=True)
"""


@contextmanager
def reader(hosts: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", READER, hosts]
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read(process: subprocess.Popen[str], path: str) -> list[str]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(path + "\n")
    process.stdin.flush()
    return process.stdout.readline().split()


def test_names_of_the_past_are_remembered() -> None:
    table = Table.initial({"e0": "a:1", "e1": "b:1"})
    one = table.with_owner(1, "e0", 0)
    for shard in table.shards("e1"):
        one = one.with_owner(shard, "e0", 0)
    one = one.with_ensembles({"e0": "a:1"})
    assert one.gone == {"e1"} and Table.deserialize(one.serialize()) == one
    assert one.with_ensembles({"e0": "c:1", "e2": "d:1"}).gone == {"e1"}
    assert Table.deserialize(table.serialize()).gone == frozenset()


def test_a_client_that_missed_a_leaving_does_not_stay_with_who_left(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the next ensemble for the one of that name, and went on with the old."""
    first, second, third = ensembles(3)
    hosts = f"{first.hosts};{second.hosts}"
    with started(hosts) as client, reader(hosts) as other:
        assert client.table is not None
        _, leaving = client.table.ensembles
        client.create("/p/x", b"old", makepath=True)
        assert read(other, "/p/x") == ["old", *client.table.ensembles]

        def hook(label: str, when: str) -> None:
            if label == "remove.3.noted":
                os.kill(other.pid, signal.SIGSTOP)

        monkeypatch.setattr(failpoints, "hook", hook)
        mover = Mover(client)
        mover.remove_ensemble(leaving)
        with pytest.raises(MoveFailed, match="has not heard"):
            mover.add_ensemble(third.hosts, leaving)
        joined = mover.add_ensemble(third.hosts)
        assert joined != leaving
        mover.move({client._layout.node("/p/x").shard: joined})
        client.set("/p/x", b"new")
        os.kill(other.pid, signal.SIGCONT)
        read(other, "/p/x")  # it may be that of before it went on
        for _ in range(20):
            found = read(other, "/p/x")
            if found[0] == "new":
                break
        assert found == ["new", *client.table.ensembles]
