"""A client that is killed in the middle of what it does; run as a process.

    PARKAZOO_FAILPOINT=delete.3.home:before victim.py HOSTS OPERATION

What: connects, prints "connected", does one multi-step operation of
`OPERATIONS`, prints "done". With a failpoint set it gets SIGKILL at that step.

Why: what a dead client leaves behind can only be seen when it really dies: no
finally clause, no closed session, no flushed socket.

Must never: tidy up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import NoChildrenForEphemeralsError
from kazoo.security import make_acl

from parkazoo import ParKazooClient, remove
from parkazoo.layout import INTENTS
from parkazoo.move import Mover

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


def transaction(client: Any) -> None:
    commit = client.transaction()
    commit.create("/v/full/t1", b"new")
    commit.create("/v/full/t2", b"new")
    results = commit.commit()
    assert results == ["/v/full/t1", "/v/full/t2"], results


def transaction_across(client: Any) -> None:
    commit = client.transaction()
    commit.create("/v/a1/t", b"new")
    commit.create("/v/a2/t", b"new")
    commit.create("/v/a3/t", b"new")
    results = commit.commit()
    assert results == ["/v/a1/t", "/v/a2/t", "/v/a3/t"], results


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


def main() -> int:
    hosts, operation = sys.argv[1:]
    client = ParKazooClient(hosts, timeout=SESSION_SECONDS, **options_of(operation))
    client.start(60)
    print("connected", flush=True)
    OPERATIONS[operation](client)
    print("done", flush=True)
    client.stop()
    client.close()
    return 0


def options_of(operation: str) -> dict[str, Any]:
    """Cross-shard transactions are refused unless asked for."""
    if operation == "transaction_across":
        return {"cross_shard": "intent"}
    return {}


if __name__ == "__main__":
    sys.exit(main())
