"""Making a namespace: the znodes that must exist before the first operation.

What: on each ensemble a fence for every shard it holds; the root's own node and
bucket on their shards; last, on the ensemble that sorts first, the table itself,
and then its copies.

Why in this order: the table is what makes a namespace exist, so whoever finds one
finds everything it names. All is derived from the list of ensembles and one random
number, which the first of them keeps, so any number of clients may do this at once and
end with the same.

Must never: make a namespace on an ensemble that holds somebody else's data
without being told to: a program whose import was changed would see it vanish.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import failpoints, founding
from parkazoo.errors import NamespaceMismatch, NotInitialized
from parkazoo.layout import BASE, CONFIG, FOUNDED, IDENTITY, INTENTS, Layout, fence
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
    made = initialize(by_hosts, client.rules, visit, adopt_foreign=False)
    client.logger.warning(
        "made a new namespace on %s, which held none. If there should have been one,"
        " its data was lost there: stop this program. `parkazoo init`, once, and"
        " auto_init=False keep programs from making any",
        " and ".join(by_hosts),
    )
    return made


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
    if not importing and (there := _there_already(by_hosts)) is not None:
        founding.refuse(by_hosts, visit)
        return there
    ordered = sorted(by_hosts)
    names = {f"e{n}": hosts for n, hosts in enumerate(ordered)}
    table = Table.initial(names, rules)
    present = {hosts: found(client) for hosts, client in by_hosts.items()}
    copies = [copy for copy in present.values() if copy is not None]
    if copies:  # what died before may have written it on some of them
        table = max(copies, key=lambda copy: copy.generation)
    for hosts, copy in present.items():
        _refuse_other(hosts, copy, table, by_hosts)
    clients = {name: by_hosts[hosts] for name, hosts in table.ensembles.items()}
    if len(copies) == len(clients):
        return table  # nothing is missing
    rules.refuse_globs()
    if copies:
        _refuse_emptied(clients, table)
    importing = importing or table.importing
    if not adopt_foreign:
        for name, client in clients.items():
            _refuse_foreign(table.ensembles[name], client)
    founding.refuse(by_hosts, visit)
    if not copies:
        table = Table.initial(names, rules, _decide(clients["e0"]))
        failpoints.reached("init.0.founded", failpoints.AFTER)
    table = replace(table, importing=importing)
    for name, client in clients.items():
        make_fences(client, table.shards(name))
        failpoints.reached("init.1.fences", failpoints.AFTER)
    _make_root(clients, table)
    failpoints.reached("init.2.root", failpoints.AFTER)
    for name, client in clients.items():
        _create(client, INTENTS, b"")
        _give_name(client, name, table)
        failpoints.reached("init.3.names", failpoints.AFTER)
    # Whoever finds a table uses the namespace, so nothing else may be missing then.
    for name, client in clients.items():
        table = _write_first(table.ensembles[name], client, table, by_hosts)
        failpoints.reached("init.4.table", failpoints.AFTER)
    return table


def _there_already(by_hosts: Mapping[str, KazooClient]) -> Table | None:
    """The namespace that each of these holds, whatever others it has grown by.

    :raises NamespaceMismatch: not each of these is a member of it, by itself.
    """
    copies: dict[str, Table] = {}
    for hosts, client in by_hosts.items():
        client.sync(CONFIG)
        copy = found(client)
        if copy is None:
            return None
        copies[hosts] = copy
    table = max(copies.values(), key=lambda copy: copy.generation)
    if any(copy.namespace != table.namespace for copy in copies.values()):
        return None
    named: dict[str, str] = {}
    for hosts, client in by_hosts.items():
        try:
            said = client.get(IDENTITY)[0].decode(errors="replace")
        except NoNodeError:
            said = ""
        if said not in table.ensembles or said in named:
            also = f", and so does {named[said]}" if said in named else ""
            raise NamespaceMismatch(
                f"{hosts} holds namespace {table.namespace} and says that it is"
                f" {said or 'nobody'}{also}; the members are {table.members()}. If it"
                " should be another one of these, bring that one's own data back"
            )
        named[said] = hosts
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


def _decide(client: KazooClient) -> str:
    """What tells this founding from all others: the same for all who are at it, also
    after one of them has died, because one node of one ensemble has it."""
    client.ensure_path(BASE)
    _create(client, FOUNDED, uuid.uuid4().hex.encode())
    client.sync(FOUNDED)
    return str(client.get(FOUNDED)[0].decode())


def _give_name(client: KazooClient, name: str, table: Table) -> None:
    if _create(client, IDENTITY, name.encode()):
        return
    client.sync(IDENTITY)
    said = client.get(IDENTITY)[0].decode(errors="replace")
    if said != name:
        raise NamespaceMismatch(
            f"{table.ensembles[name]} says that it is {said}: somebody has begun to"
            " make a namespace there with other HOSTS. Give `parkazoo init` those; or,"
            f" if nobody is at it, delete {BASE} there (`deleteall` in zkCli.sh) and"
            " try again"
        )


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


def _write_first(
    hosts: str, client: KazooClient, table: Table, by_hosts: Collection[str]
) -> Table:
    """The table's first copy on an ensemble. What is there already must agree, and says
    whether data is to be brought in: if others do so, too, the first copy decides."""
    if _create(client, CONFIG, table.serialize()):
        return table
    client.sync(CONFIG)
    there = found(client)
    _refuse_other(hosts, there, table, by_hosts)
    return table if there is None else replace(table, importing=there.importing)


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
    config, identity = session.get_async(CONFIG), session.get_async(IDENTITY)
    try:
        data, stat = config.get()
    except NoNodeError:
        data = None  # who made the namespace died before
    try:
        said = identity.get()[0].decode(errors="replace")
    except NoNodeError:
        if data is None:
            raise lost(name, table) from None
        said = ""
    if data is not None:
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
    if said != name:
        raise misnamed(name, table, said)
    return None if data is None else (copy, stat.version)


def another(
    name: str, table: Table, copy: Table | EnsembleRemoved
) -> NamespaceMismatch:
    """What is wrong with a member that has the copy of another namespace's table."""
    return NamespaceMismatch(
        f"{_member(name, table)} holds another namespace ({copy.namespace}, not"
        f" {table.namespace}); {_WIPED}"
    )


def left(name: str, table: Table, removed: EnsembleRemoved) -> NamespaceMismatch:
    """What is wrong with a member that says it was taken out, where nobody knows."""
    return NamespaceMismatch(
        f"{_member(name, table)} says that it was taken out of this namespace, which is"
        f" now on {';'.join(removed.hosts)}; these have no table that is newer than"
        " ours. Was older data brought back there, or here? Nothing was changed"
    )


def lost(name: str, table: Table) -> NamespaceMismatch:
    """What is wrong with a member that has neither a copy of the table nor a name."""
    return NamespaceMismatch(
        f"{_member(name, table)} holds nothing of this namespace: its data was lost, or"
        f" it is a new server at this address; {_WIPED}"
    )


def misnamed(name: str, table: Table, said: str) -> NamespaceMismatch:
    """What is wrong with a member that has the name of another, or none."""
    return NamespaceMismatch(
        f"{_member(name, table)} says that it is {said or 'nobody'}: does it have the"
        " address of another member, or the data from another's backup, or is it one"
        " ensemble under two names? Nothing was changed there. Give each member its own"
        " data, or address, back, or start it at one that none has had and say so with"
        " `parkazoo set-hosts`; operating.md, *stranger*, says more"
    )


def _member(name: str, table: Table) -> str:
    return f"{name} ({table.ensembles.get(name, 'gone')})"


_WIPED = (
    "was it emptied and put to other use, or does another ensemble have its address"
    " now? Nothing was changed there. Bring its data back from a backup, or say where"
    " it is with `parkazoo set-hosts`; operating.md, *stranger*, says more"
)


def _refuse_other(
    hosts: str, present: Table | None, table: Table, by_hosts: Collection[str]
) -> None:
    """An ensemble that has the copy of a namespace that is not over just these."""
    if present is None:
        return
    same = set(present.ensembles.values()) == set(by_hosts)
    if not same or present.namespace != table.namespace:
        raise NamespaceMismatch(
            f"ensemble {hosts} already belongs to another ParKazoo namespace"
            f" ({present.namespace}), over {present.members()}; `parkazoo add-ensemble`"
            " makes that one larger, `parkazoo remove-ensemble` takes the ensemble out"
            " of it"
        )
