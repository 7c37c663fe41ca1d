"""Watches of the logical tree, kept by watches of the physical one.

What: a user's watch is an entry in the client's `_data_watchers` or
`_child_watchers`, by logical path, as in Kazoo, where Kazoo's TreeCache looks for
them. Physically a `Forward` waits for the event, turns it into the logical one and
wakes whoever is entered for that path.

A data watch is one physical watch at the node's home. A child watch waits on the
directory's bucket. Where there is no bucket it waits for one to be made, and for
the directory's node to go. A bucket that goes does not yet mean that the directory
went: the watch looks before it says so.

Must never: miss an event. A read of several steps may be overtaken by an event, so
it is listed as arming until its user's watch is entered, and told what it missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetChildren, GetChildren2
from kazoo.protocol.states import Callback, EventType, WatchedEvent

from parkazoo import directory
from parkazoo.ensemble import Reply
from parkazoo.layout import Bucket, Node
from parkazoo.mapping import Table
from parkazoo.operation import run

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

DATA, CHILDREN, MADE, HOME = "data", "children", "made", "home"


class Forward:
    """A physical watch. Two of the same kind on the same path are one."""

    __slots__ = ("client", "kind", "path")

    def __init__(self, client: ParKazooClient, kind: str, path: str) -> None:
        self.client, self.kind, self.path = client, kind, path

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Forward)
            and self.kind == other.kind
            and self.path == other.path
            and self.client is other.client
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.path))

    def __call__(self, event: Any) -> None:
        if event.type != EventType.NONE:
            self.client._watches.happened(self.kind, self.path, event.type)


class DataWatch:
    """A read that leaves a data watch for `watcher`."""

    def __init__(self, client: ParKazooClient, path: str, watcher: Any) -> None:
        self.client, self.path, self.watcher = client, path, watcher

    def data(self, node: Node) -> Any:
        return Forward(self.client, DATA, self.path)

    def armed(self) -> None:
        self.client._watches.enter(self.client._data_watchers, self.path, self.watcher)

    def children(self, directory: str, bucket: Bucket) -> None: ...
    def bucket_made(self, directory: str, bucket: Bucket) -> None: ...
    def home(self, directory: str) -> None: ...


class ChildWatch:
    """A listing that leaves a child watch for `watcher` (None: only physically)."""

    def __init__(self, client: ParKazooClient, path: str, watcher: Any) -> None:
        self.client, self.path, self.watcher = client, path, watcher
        self.missed: str | None = None
        client._watches.arming.setdefault(path, set()).add(self)

    def data(self, node: Node) -> None: ...

    def children(self, directory: str, bucket: Bucket) -> Any:
        return Forward(self.client, CHILDREN, self.path)

    def bucket_made(self, directory: str, bucket: Bucket) -> Any:
        return Forward(self.client, MADE, self.path)

    def home(self, directory: str) -> Any:
        return Forward(self.client, HOME, self.path)

    def armed(self) -> None:
        self.client._watches.child_armed(self)


class Watches:
    """The client's watches. The two dictionaries themselves are the client's."""

    def __init__(self, client: ParKazooClient) -> None:
        self.client = client
        self.lock = client.handler.lock_object()
        self.arming: dict[str, set[ChildWatch]] = {}

    def enter(self, watchers: Any, path: str, watcher: Any) -> None:
        if self.client._stopped.is_set() or watcher is None:
            return
        with self.lock:
            watchers[path].add(watcher)

    def child_armed(self, watch: ChildWatch) -> None:
        self.abandon(watch)
        self.enter(self.client._child_watchers, watch.path, watch.watcher)
        if watch.missed is not None:
            self.happened(*watch.missed)  # type: ignore[misc]

    def abandon(self, watch: ChildWatch) -> None:
        with self.lock:
            waiting = self.arming.get(watch.path)
            if waiting is not None:
                waiting.discard(watch)
                if not waiting:
                    del self.arming[watch.path]

    def happened(self, kind: str, path: str, event: str) -> None:
        """A physical event. Runs on a connection's thread."""
        if kind == DATA:
            self.tell(self.client._data_watchers, path, event)
            return
        with self.lock:
            for watch in self.arming.get(path, ()):
                watch.missed = (kind, path, event)  # type: ignore[assignment]
            wanted = bool(self.client._child_watchers.get(path))
        if not wanted:
            return
        if kind in (CHILDREN, MADE) and event in (EventType.CHILD, EventType.CREATED):
            self.tell(self.client._child_watchers, path, EventType.CHILD)
        else:
            self.look_again(path)

    def look_again(self, path: str) -> None:
        """A bucket or a node went or changed: is the directory gone, or only empty?"""
        watch = ChildWatch(self.client, path, None)

        def looked(names: Any) -> None:
            if names:
                self.tell(self.client._child_watchers, path, EventType.CHILD)

        def failed(error: Exception) -> None:
            self.abandon(watch)
            if isinstance(error, NoNodeError):
                self.tell(self.client._child_watchers, path, EventType.DELETED)

        run(
            self.client,
            lambda layout: directory.children(layout, path, False, watch),
            looked,
            failed,
        )

    def passing(self, request: Any, async_object: Any) -> tuple[Any, Any]:
        """A request to ZooKeeper's own subtree, whose paths are the same for us."""
        watcher = getattr(request, "watcher", None)
        if watcher is None:
            return request, async_object
        listing = isinstance(request, (GetChildren, GetChildren2))
        kind = CHILDREN if listing else DATA
        client = self.client
        entries = client._child_watchers if listing else client._data_watchers

        def got(value: Any) -> None:
            self.enter(entries, request.path, watcher)
            async_object.set(value)

        forward = Forward(client, kind, request.path)
        return (
            request._replace(watcher=forward),
            Reply(got, async_object.set_exception),
        )

    def follow(self, old: Table, table: Table) -> None:
        """Shards have moved: leave the watches of their nodes at the new places."""

    def tell(self, watchers: Any, path: str, event: str) -> None:
        """Hand an event to the user's watches on a path; each is told once."""
        client = self.client
        with self.lock:
            told = watchers.pop(path, ())
        if not told or client._stopped.is_set():
            return
        logical = WatchedEvent(event, client._state, client.unchroot(path))
        for watcher in told:
            client.handler.dispatch_callback(Callback("watch", watcher, (logical,)))
