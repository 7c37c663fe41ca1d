"""The nodes of a namespace for an operator, as far as they can be reached.

What: walks down from a path, past the client where an ensemble is away, since a
request to it would wait; and says what could not be looked at. ZooKeeper's own
subtree is shown, and counted, only to who asks for it.

Must never: change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError

from parkazoo.client import ParKazooClient
from parkazoo.layout import is_system
from parkazoo.mapping import join


def reach(away: Iterable[str]) -> str:
    return f"  (not reached: {', '.join(sorted(away))})"


class Place(NamedTuple):
    """Where something is. ZooKeeper's own subtree is on no shard, but at the seat."""

    shard: int | None
    ensemble: str
    physical: str

    @property
    def held(self) -> str:
        return "on the seat," if self.shard is None else f"shard {self.shard} on"


def places(client: ParKazooClient, path: str) -> tuple[Place, list[Place]]:
    """Where a node is, and where its children are."""
    table, layout = client.table, client._layout
    assert table is not None
    if is_system(path):
        at_seat = Place(None, table.seat, path)
        return at_seat, [at_seat]
    node = layout.node(path)
    home = Place(node.shard, table.owners[node.shard], node.path)
    buckets = layout.buckets(path)
    return home, [Place(b.shard, table.owners[b.shard], b.path) for b in buckets]


def walk(
    client: ParKazooClient, path: str, depth: int, depth_max: int, away: set[str]
) -> Iterator[dict[str, Any]]:
    """A node and what is below it, as far as it can be reached."""
    (_, owner, physical), below = places(client, path)
    holders = {place.ensemble for place in below}
    missed = ({owner} | holders) & away
    names: list[str] | None = None
    stat: Any = None
    forbidden = False
    try:
        if not missed:
            names, stat = client.get_children(path, include_data=True)
        else:
            # Past the client: it would wait for the rest of the answer.
            at = client._sessions.session
            stat = None if owner in away else at(owner).exists(physical)
            if stat is None and owner not in away:
                return
            if not holders & away:
                names = _listed(client, below)
    except NoNodeError:
        return
    except NoAuthError:
        stat, forbidden = None, True
    if path == "/" and names is not None:
        names = [name for name in names if name != "zookeeper"]
    yield {
        "path": path,
        "depth": depth,
        "ensemble": owner,
        "children": None if names is None else len(names),
        "bytes": None if stat is None else stat.dataLength,
        "ephemeral": None if stat is None else bool(stat.ephemeralOwner),
        "unreachable": sorted(missed),
        "unreadable": forbidden,
    }
    if depth < depth_max:
        for name in sorted(names or []):
            yield from walk(client, join(path, name), depth + 1, depth_max, away)


def _listed(client: ParKazooClient, below: list[Place]) -> list[str]:
    """What is in a directory's buckets, whose ensembles can be asked."""
    names: list[str] = []
    for place in below:
        session = client._sessions.session(place.ensemble)
        with suppress(NoNodeError):
            names += session.get_children(place.physical)
    return names


def branch(node: dict[str, Any]) -> str:
    def known(value: Any) -> str:
        return "?" if value is None else str(value)

    shown = node["path"].rsplit("/", 1)[1] if node["depth"] else node["path"]
    return (
        f"{'  ' * node['depth']}{shown}"
        f"  [{node['ensemble']}] {known(node['children'])}"
        f" {'child' if node['children'] == 1 else 'children'},"
        f" {known(node['bytes'])} bytes"
        + (", ephemeral" if node["ephemeral"] else "")
        + (reach(node["unreachable"]) if node["unreachable"] else "")
        + ("  (may not be read without `--auth`)" if node["unreadable"] else "")
    )
