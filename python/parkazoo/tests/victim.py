"""A client that is killed in the middle of what it does; run as a process.

    PARKAZOO_FAILPOINT=delete.3.home:before victim.py HOSTS OPERATION

What: connects, prints "connected" and its sessions, does one multi-step operation of
`OPERATIONS`, prints how that ended, and "done" if it went well. With a failpoint set
it gets SIGKILL at that step, or SIGSTOP.

Why: what a dead client leaves behind can only be seen when it really dies: no
finally clause, no closed session, no flushed socket.

Must never: tidy up.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import (
    KazooException,
    NoChildrenForEphemeralsError,
    RolledBackError,
)
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl

from parkazoo import ParKazooClient, remove
from parkazoo.layout import INTENTS
from parkazoo.move import Mover

# How long a lock is held by who has no reason to let it go.
HELD_SECONDS = 0.5
SESSION_SECONDS = float(os.environ.get("PARKAZOO_SESSION_SECONDS", "4"))


def first_child(client: Any) -> None:
    client.create("/v/d/x", b"new")


def refused_child(client: Any) -> None:
    client.create("/v/e", b"", ephemeral=True)
    try:
        client.create("/v/e/x", b"")
    except NoChildrenForEphemeralsError:
        return
    raise AssertionError("an ephemeral had a child")


def remove_directory(client: Any) -> None:
    client.delete("/v/used")


def remove_leaf(client: Any) -> None:
    client.delete("/v/leaf")


def set_value(client: Any) -> None:
    client.set("/v/leaf", b"new")


def set_acls(client: Any) -> None:
    client.set_acls("/v/full", [make_acl("world", "anyone", all=True, admin=True)])


def remove_tree(client: Any) -> None:
    client.delete("/v/tree", recursive=True)


def refusal_raised(results: list[Any]) -> list[Any]:
    """A transaction's results, unless one of its operations was refused."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, RolledBackError):
            raise result
    return results


def transaction(client: Any) -> None:
    commit = client.transaction()
    commit.create("/v/full/t1", b"new")
    commit.create("/v/full/t2", b"new")
    results = refusal_raised(commit.commit())
    assert results == ["/v/full/t1", "/v/full/t2"], results


def transaction_across(client: Any) -> None:
    commit = client.transaction()
    commit.create("/v/a1/t", b"new")
    commit.create("/v/a2/t", b"new")
    commit.create("/v/a3/t", b"new")
    results = refusal_raised(commit.commit())
    assert results == ["/v/a1/t", "/v/a2/t", "/v/a3/t"], results


def buckets_across(client: Any) -> None:
    """A first child, and the removal of a directory that had one, over shards."""
    commit = client.transaction()
    commit.create("/v/a1/t", b"new")
    commit.create("/v/d/t", b"new")
    commit.delete("/v/used")
    results = refusal_raised(commit.commit())
    assert results == ["/v/a1/t", "/v/d/t", True], results


def hold_lock(client: Any) -> None:
    """Take a lock, believe in it for a moment or until told otherwise, let it go."""
    lock, told = client.Lock("/v/lock", "victim"), []

    def listen(state: str) -> bool:
        told.append(time.monotonic())
        return True

    lock.acquire(timeout=60)
    since = time.monotonic()
    client.add_listener(listen)
    if client.state != KazooState.CONNECTED:
        told.append(since)
    until = since + HELD_SECONDS
    while time.monotonic() < until and not told:
        time.sleep(0.02)
    say(held=[since, min([*told, time.monotonic()])])
    lock.release()


def take_item(client: Any) -> None:
    queue = client.LockingQueue("/v/queue")
    item = queue.get(timeout=60)
    say(item=item.decode(), consumed=None)
    say(consumed=bool(queue.consume()))


def own(client: Any) -> None:
    """Own an ephemeral until it is deleted, or this client's session has ended."""
    client.create("/v/full/mine", b"old", ephemeral=True)
    say(owner=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and client.exists("/v/full/mine"):
        time.sleep(0.1)


def finish(client: Any) -> None:
    """Finish what others have left, as every client does now and then."""
    ensembles = client._sessions.by_name.values()
    while any(ensemble.get_children(INTENTS) for ensemble in ensembles):
        remove.roll_forward(client)
        time.sleep(0.1)


def move(client: Any) -> None:
    """Move the shards of everything prepared, and some more, to other ensembles."""
    table = client.table
    names = list(table.ensembles)
    directories = ("/v", "/v/d", "/v/full", "/v/used", "/v/tree", "/v/tree/b")
    shards = {client._layout.buckets(path)[0].shard for path in directories}
    shards |= set(range(0, 1024, 64))
    Mover(client).move(
        {
            shard: names[(names.index(table.owners[shard]) + 1) % len(names)]
            for shard in shards
        }
    )


OPERATIONS: dict[str, Callable[[Any], None]] = {
    function.__name__: function
    for function in (
        first_child,
        refused_child,
        remove_directory,
        remove_leaf,
        set_value,
        set_acls,
        remove_tree,
        transaction,
        transaction_across,
        buckets_across,
        hold_lock,
        take_item,
        own,
        finish,
        move,
    )
}


def prepare(client: Any) -> None:
    """What every operation starts from; done by the test, not by the victim."""
    for path in ("/v/d", "/v/leaf", "/v/used/x", "/v/full/x"):
        client.create(path, b"old", makepath=True)
    client.delete("/v/used/x")
    for directory in ("", "/b", "/b/c"):
        for name in ("n1", "n2", "n3"):
            client.create(f"/v/tree{directory}/{name}", b"old", makepath=True)
    for name in ("a1", "a2", "a3"):
        client.create(f"/v/{name}/other", b"old", makepath=True)
    client.LockingQueue("/v/queue").put(b"item")


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def sessions_of(client: Any) -> dict[str, tuple[int, str]]:
    """By the hosts of an ensemble: the session there, as (id, password in hex)."""
    ids = client.client_ids
    return {
        hosts: (ids[name][0], ids[name][1].hex())
        for name, hosts in client.table.ensembles.items()
        if name in ids
    }


def main() -> int:
    hosts, operation = sys.argv[1:]
    client = ParKazooClient(hosts, timeout=SESSION_SECONDS, **options_of(operation))
    client.start(60)
    print("connected", flush=True)
    say(sessions=sessions_of(client), asked=time.monotonic())
    try:
        OPERATIONS[operation](client)
    except KazooException as error:
        say(answered=time.monotonic(), outcome=type(error).__name__, why=str(error))
        with contextlib.suppress(KazooException):
            client.stop()
        return 1
    say(answered=time.monotonic(), outcome="done")
    print("done", flush=True)
    client.stop()
    client.close()
    return 0


def options_of(operation: str) -> dict[str, Any]:
    """Cross-shard transactions are refused unless asked for."""
    if operation.endswith("_across"):
        return {"cross_shard": "intent"}
    return {}


if __name__ == "__main__":
    sys.exit(main())
