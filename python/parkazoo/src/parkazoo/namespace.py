"""Making a namespace: the znodes that must exist before the first operation.

What: on each ensemble a fence for every shard it holds; the root's own node and
bucket on their shards; last, on the ensemble that sorts first, the table itself,
and then its copies.

Why in this order: the table is what makes a namespace exist, so whoever finds one
finds everything it names. All is derived from the list of ensembles, so any number
of clients may do this at once and end with the same.

Must never: make a namespace on an ensemble that holds somebody else's data
without being told to: a program whose import was changed would see it vanish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import failpoints, founding
from parkazoo.errors import NamespaceMismatch, NotInitialized
from parkazoo.layout import BASE, CONFIG, IDENTITY, INTENTS, Layout, fence
from parkazoo.mapping import ConfigurationInvalid, EnsembleRemoved, Rules, Table

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# Shards made in one transaction: far below the server's limit on a packet.
BATCH = 128


def make(sessions: Mapping[str, KazooClient], client: ParKazooClient) -> Table:
    """The namespace a client finds missing: made, if its options allow that."""
    if not client.auto_init:
        raise NotInitialized(
            "these ensembles hold no ParKazoo namespace; make one with"
            " `parkazoo init` (a program may do so, unless auto_init=False)"
        )
    by_hosts = {e.hosts_string: e for e in sessions.values()}
    visit = client._sessions.visiting
    return initialize(by_hosts, client.rules, visit, adopt_foreign=False)


def initialize(
    by_hosts: Mapping[str, KazooClient],
    rules: Rules,
    visit: founding.Visit,
    adopt_foreign: bool,
    importing: bool = False,
) -> Table:
    """Make the namespace on connected clients, one per ensemble; idempotent.

    `importing`: nobody is to use it before data has been brought in.
    """
    ordered = sorted(by_hosts)
    table = Table.initial({f"e{n}": hosts for n, hosts in enumerate(ordered)}, rules)
    clients = {f"e{n}": by_hosts[hosts] for n, hosts in enumerate(ordered)}
    present = {name: found(client) for name, client in clients.items()}
    for name, copy in present.items():
        _refuse_other(table.ensembles[name], copy, table)
    copies = [copy for copy in present.values() if copy is not None]
    if len(copies) == len(clients):
        return max(copies, key=lambda copy: copy.generation)  # nothing is missing
    rules.refuse_globs()
    if copies:
        _refuse_emptied(clients, table)
    # What died before may have written it on some of them.
    importing = importing or any(copy.importing for copy in copies)
    table = replace(table, importing=importing)
    if not adopt_foreign:
        for name, client in clients.items():
            _refuse_foreign(table.ensembles[name], client)
    founding.refuse_several(by_hosts, visit)
    for name, client in clients.items():
        make_fences(client, table.shards(name))
        failpoints.reached("init.1.fences", failpoints.AFTER)
    _make_root(clients, table)
    failpoints.reached("init.2.root", failpoints.AFTER)
    for name, client in clients.items():
        _create(client, INTENTS, b"")
        _create(client, IDENTITY, name.encode())
        failpoints.reached("init.3.names", failpoints.AFTER)
    # Whoever finds a table uses the namespace, so nothing else may be missing then.
    for name, client in clients.items():
        _write_first(table.ensembles[name], client, table)
        failpoints.reached("init.4.table", failpoints.AFTER)
    return table


def _refuse_emptied(clients: Mapping[str, KazooClient], table: Table) -> None:
    """Where a table is, every member had its name: one without it has lost its data,
    and giving it fences and a table would make what it held look deleted."""
    for name, client in clients.items():
        client.sync(CONFIG)
        copy_at(client, name, table)


def foreign(client: KazooClient) -> list[str]:
    """Some of the nodes at the root that are neither ours nor ZooKeeper's."""
    names = set(client.get_children("/")) - {"zookeeper", BASE[1:]}
    return ["/" + name for name in sorted(names)[:3]]


def _refuse_foreign(hosts: str, client: KazooClient) -> None:
    found = foreign(client)
    if found:
        raise NotInitialized(
            f"ensemble {hosts} holds data that is not ParKazoo's"
            f" ({', '.join(found)}), which would"
            " not be visible in a new namespace; bring it in with"
            " `parkazoo init --import`, or leave it aside with `parkazoo init --beside`"
        )


def make_fences(client: KazooClient, shards: list[int]) -> None:
    """A fence, at version 0, for each shard that has none here."""
    client.ensure_path(BASE)
    present = set(client.get_children(BASE))
    missing = [
        path for path in map(fence, shards) if path[len(BASE) + 1 :] not in present
    ]
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        transaction = client.transaction()
        for path in batch:
            transaction.create(path, b"", acl=OPEN_ACL_UNSAFE)
        if any(isinstance(result, Exception) for result in transaction.commit()):
            for path in batch:  # somebody else is at it, too
                _create(client, path, b"")


def _create(client: KazooClient, path: str, data: bytes) -> bool:
    try:
        client.create(path, data, acl=OPEN_ACL_UNSAFE)
        return True
    except NodeExistsError:
        return False


def _make_root(clients: Mapping[str, KazooClient], table: Table) -> None:
    layout = Layout(table.rules)
    buckets = [*layout.buckets(""), *layout.buckets("/")]
    nodes: list[tuple[int, str]] = []
    for bucket in buckets:
        nodes += [(bucket.shard, bucket.anchor), (bucket.shard, bucket.path)]
    root = layout.node("/")
    nodes.append((root.shard, root.path))
    for shard, path in nodes:
        _create(clients[table.owners[shard]], path, b"")


def _write_first(hosts: str, client: KazooClient, table: Table) -> None:
    """The table's first copy on an ensemble; what is there already must agree."""
    data = table.serialize()
    if _create(client, CONFIG, data):
        return
    _refuse_other(hosts, found(client), table)


def found(client: KazooClient) -> Table | None:
    """The table that is on an ensemble, if one is."""
    try:
        return Table.deserialize(client.get(CONFIG)[0])
    except NoNodeError:
        return None


def unfinished() -> NotInitialized:
    return NotInitialized(
        "data of plain ZooKeeper was to be brought in here, and that has not ended, so"
        " a program would miss some of it. Give `parkazoo init --import` again, with"
        " the same HOSTS, and `--auth` if it asked for that; or go on without the rest"
        " with `parkazoo init --beside`"
    )


def copy_at(session: KazooClient, name: str, table: Table) -> tuple[Table, int] | None:
    """A member's copy of the table, and its version; None if it was never written.

    :raises NamespaceMismatch: this is not the member, or not any more.
    """
    try:
        data, stat = session.get(CONFIG)
    except NoNodeError:
        if session.exists(IDENTITY) is not None:
            return None  # who made the namespace died before
        raise lost(name, table) from None
    try:
        copy = Table.deserialize(data)
    except EnsembleRemoved:
        raise
    except ConfigurationInvalid as error:
        raise NamespaceMismatch(
            f"the table on {_member(name, table)} cannot be read: {error}"
        ) from None
    if copy.namespace != table.namespace:
        raise another(name, table, copy)
    return copy, stat.version


def another(name: str, table: Table, copy: Table) -> NamespaceMismatch:
    """What is wrong with a member that has the copy of another namespace's table."""
    return NamespaceMismatch(
        f"{_member(name, table)} holds another namespace ({copy.namespace}); {_WIPED}"
    )


def lost(name: str, table: Table) -> NamespaceMismatch:
    """What is wrong with a member that has neither a copy of the table nor a name."""
    return NamespaceMismatch(
        f"{_member(name, table)} holds nothing of this namespace: its data was lost, or"
        f" it is a new server at this address; {_WIPED}"
    )


def _member(name: str, table: Table) -> str:
    return f"{name} ({table.ensembles.get(name, 'gone')})"


_WIPED = (
    "was it emptied and put to other use, or does another ensemble have its address"
    " now? Nothing was changed there. Bring its data back from a backup, or say where"
    " it is with `parkazoo set-hosts`; operating.md, *stranger*, says more"
)


def _refuse_other(hosts: str, present: Table | None, table: Table) -> None:
    if present is not None and present.namespace != table.namespace:
        raise NamespaceMismatch(
            f"ensemble {hosts} already belongs to another ParKazoo namespace"
            f" ({present.namespace}); `parkazoo add-ensemble` makes that one larger,"
            " `parkazoo remove-ensemble` takes the ensemble out of it"
        )
