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

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.serialization import GetChildren, GetChildren2
from kazoo.protocol.states import Callback, EventType, WatchedEvent

from parkazoo import directory
from parkazoo.ensemble import EnsembleClient, Reply
from parkazoo.layout import Bucket, Node, is_system
from parkazoo.mapping import Table
from parkazoo.operation import run

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

DATA, CHILDREN, MADE, HOME = "data", "children", "made", "home"
# After which a watch that could not be left is left again.
AGAIN_SECONDS = 0.1
# The session has ended, and all watches have been told, or nobody wants to know.
_OVER = (AuthFailedError, ConnectionClosedError, SessionExpiredError)


class Forward:
    """A physical watch at one ensemble. Two alike are one."""

    __slots__ = ("client", "ensemble", "kind", "path", "shard")

    def __init__(
        self,
        client: ParKazooClient,
        kind: str,
        path: str,
        shard: int | None,
        ensemble: EnsembleClient | None = None,
    ) -> None:
        self.client, self.kind, self.path = client, kind, path
        self.shard, self.ensemble = shard, ensemble

    def at(self, ensemble: EnsembleClient) -> Forward:
        """This watch as it is left at an ensemble."""
        return Forward(self.client, self.kind, self.path, self.shard, ensemble)

    def _identity(self) -> Any:
        return (self.kind, self.path, self.shard, id(self.client), id(self.ensemble))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Forward) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def wanted(self) -> bool:
        return self.client._watches.wanted(self.kind, self.path)

    def __call__(self, event: Any) -> None:
        if event.type != EventType.NONE:
            self.client._watches.arrived(self, event.type)


class _HeldEvent:
    """An event that waits among answers until it is known where its shard is."""

    __slots__ = ("event", "forward", "table")

    def __init__(self, forward: Forward, event: str, table: Table) -> None:
        self.forward, self.event, self.table = forward, event, table

    def believe(self, answer: Any) -> None:
        self.forward.client._watches.released(self.forward, self.event)

    def set_exception(self, error: Exception) -> None:
        """All watches have been told of what happened to the session."""


class DataWatch:
    """A read that leaves a data watch for `watcher` (None: only physically)."""

    def __init__(self, client: ParKazooClient, path: str, watcher: Any) -> None:
        self.client, self.path, self.watcher = client, path, watcher

    def data(self, node: Node) -> Any:
        return Forward(self.client, DATA, self.path, node.shard)

    def armed(self, seen: Any) -> None:
        self.client._watches.data_armed(self.path, self.watcher, seen)

    def children(self, directory: str, bucket: Bucket) -> None: ...
    def bucket_made(self, directory: str, bucket: Bucket) -> None: ...
    def home(self, node: Node) -> None: ...


class ChildWatch:
    """A listing that leaves a child watch for `watcher` (None: only physically)."""

    def __init__(self, client: ParKazooClient, path: str, watcher: Any) -> None:
        self.client, self.path, self.watcher = client, path, watcher
        self.missed: Any = None
        client._watches.begin(self)

    def data(self, node: Node) -> None: ...

    def children(self, directory: str, bucket: Bucket) -> Any:
        return Forward(self.client, CHILDREN, self.path, bucket.shard)

    def bucket_made(self, directory: str, bucket: Bucket) -> Any:
        return Forward(self.client, MADE, self.path, bucket.shard)

    def home(self, node: Node) -> Any:
        return Forward(self.client, HOME, self.path, node.shard)

    def armed(self, seen: Any) -> None:
        self.client._watches.child_armed(self, seen)


def _digest(names: list[str]) -> tuple[int, int]:
    """A directory's children, to tell whether they changed; small for large ones."""
    return len(names), hash(frozenset(names))


class Watches:
    """The client's watches. The two dictionaries themselves are the client's.

    `data_seen` and `child_seen` hold what the last read of a watched path saw, so
    that after a move it is known whether something happened meanwhile.
    """

    def __init__(self, client: ParKazooClient) -> None:
        self.client = client
        self.lock = client.handler.lock_object()
        self.arming: dict[str, set[ChildWatch]] = {}
        self.data_seen: dict[str, Any] = {}
        self.child_seen: dict[str, Any] = {}
        self.interrupted: list[Any] | None = None

    def interrupt(self) -> None:
        """Take out all that are entered: they will be told of the interruption.

        Who enters one from now on may have heard SUSPENDED before his read is answered
        (by another ensemble, which is connected), and relies on it.
        """
        client = self.client
        with self.lock:
            if self.interrupted is not None:
                return
            self.interrupted = []
            for entered in (client._child_watchers, client._data_watchers):
                for watchers in entered.values():
                    self.interrupted += watchers
                entered.clear()
            self.data_seen.clear()
            self.child_seen.clear()

    def tell_interrupted(self) -> None:
        with self.lock:
            told, self.interrupted = self.interrupted or [], None
        if self.client._stopped.is_set():
            return  # whoever stops a client knows; Kazoo calls no watch then
        event = WatchedEvent(EventType.NONE, self.client._state, None)
        for watcher in told:
            self.client.handler.dispatch_callback(Callback("watch", watcher, (event,)))

    # -- entering ----------------------------------------------------------------

    def begin(self, watch: ChildWatch) -> None:
        with self.lock:
            self.arming.setdefault(watch.path, set()).add(watch)

    def abandon(self, watch: ChildWatch) -> None:
        with self.lock:
            self._armed(watch)

    def _armed(self, watch: ChildWatch) -> None:
        waiting = self.arming.get(watch.path)
        if waiting is not None:
            waiting.discard(watch)
            if not waiting:
                del self.arming[watch.path]

    def data_armed(self, path: str, watcher: Any, seen: Any) -> None:
        if self.client._stopped.is_set():
            return
        before = seen
        with self.lock:
            if watcher is None:
                before = self.data_seen.get(path, seen)
            else:
                self.client._data_watchers[path].add(watcher)
            self.data_seen[path] = seen
        if before != seen:  # only after a move: something happened on the way
            event = EventType.CHANGED
            if seen is None:
                event = EventType.DELETED
            elif before is None:
                event = EventType.CREATED
            self.tell(self.client._data_watchers, path, event)

    def child_armed(self, watch: ChildWatch, names: list[str]) -> None:
        if self.client._stopped.is_set():
            self.abandon(watch)
            return
        path, seen = watch.path, _digest(names)
        before = seen
        with self.lock:  # at once: an event finds it in the one place or the other
            self._armed(watch)
            if watch.watcher is None:
                before = self.child_seen.get(path, seen)
            else:
                self.client._child_watchers[path].add(watch.watcher)
            self.child_seen[path] = seen
        if before != seen:
            self.tell(self.client._child_watchers, path, EventType.CHILD)
        elif watch.missed is not None:
            self.happened(*watch.missed)

    def wanted(self, kind: str, path: str) -> bool:
        """Does a user's watch rest on a physical one of this kind, or may it soon?"""
        with self.lock:
            if kind == DATA:
                return bool(self.client._data_watchers.get(path))
            return path in self.arming or bool(self.client._child_watchers.get(path))

    # -- events ------------------------------------------------------------------

    def arrived(self, forward: Forward, event: str) -> None:
        """An event from a server. Runs on that connection's thread."""
        ensemble, shard, table = forward.ensemble, forward.shard, self.client.table
        if ensemble is None or shard is None or table is None or not ensemble.suspect:
            self.released(forward, event)
        else:  # its shard may be leaving, and its nodes with it
            held = _HeldEvent(forward, event, table)
            self.client._fencing.event_doubted(ensemble, shard, held)

    def released(self, forward: Forward, event: str) -> None:
        """An event from an ensemble whose copy of the table has been read."""
        ensemble, shard, table = forward.ensemble, forward.shard, self.client.table
        if (
            ensemble is None
            or shard is None
            or (table is not None and table.owners[shard] == ensemble.name)
        ):
            self.happened(forward.kind, forward.path, event)
        # Else it is cleaned up there after a move; `follow` sees to the watch.

    def happened(self, kind: str, path: str, event: str) -> None:
        if kind == DATA:
            self.tell(self.client._data_watchers, path, event)
            return
        with self.lock:
            for watch in self.arming.get(path, ()):
                watch.missed = (kind, path, event)
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

        def failed(error: Exception) -> None:
            self.abandon(watch)
            if isinstance(error, NoNodeError):
                self.tell(self.client._child_watchers, path, EventType.DELETED)
            elif not self._once_more(error, CHILDREN, path):
                self.tell(self.client._child_watchers, path, EventType.CHILD)

        run(
            self.client,
            lambda layout: directory.children(layout, path, False, watch),
            lambda names: None,
            failed,
        )

    def follow(self, old: Table, table: Table) -> None:
        """Shards have moved: leave the watches of their nodes at the new places."""
        moved = {
            shard
            for shard, owner in enumerate(table.owners)
            if owner != old.owners[shard]
        }
        if moved:
            self.client.handler.spawn(self._follow, moved)

    def _arm_again(self, path: str) -> None:
        watch = DataWatch(self.client, path, None)

        def failed(error: Exception) -> None:
            if not self._once_more(error, DATA, path):
                self.tell(self.client._data_watchers, path, EventType.CHANGED)

        run(
            self.client,
            lambda layout: directory.exists(layout, path, watch),
            lambda stat: None,
            failed,
        )

    def _once_more(self, error: Exception, kind: str, path: str) -> bool:
        """A watch could not be left. False: let its user look himself.

        Not on this thread, which may be just ending all that its connection owed.
        """
        if isinstance(error, (*_OVER, ConnectionLoss)):
            if not isinstance(error, _OVER):
                self.client.handler.spawn(self._later, kind, path)
            return True
        return False

    def _later(self, kind: str, path: str) -> None:
        """Not at once: what is asked while a connection ends all that it owes is ended
        with it, and it would never come to an end."""
        self.client.handler.sleep_func(AGAIN_SECONDS)
        if self.wanted(kind, path) and not self.client._stopped.is_set():
            (self._arm_again if kind == DATA else self.look_again)(path)

    def _follow(self, moved: set[int]) -> None:
        client, layout = self.client, self.client._layout
        with self.lock:
            data, listed = (
                [p for p, told in list(w.items()) if told and not is_system(p)]
                for w in (client._data_watchers, client._child_watchers)
            )
        for path in data:
            if layout.node(path).shard in moved:
                self._arm_again(path)
        for path in listed:
            shards = {bucket.shard for bucket in layout.buckets(path)}
            if (shards | {layout.node(path).shard}) & moved:
                self.look_again(path)

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
            with self.lock:
                entries[request.path].add(watcher)
            async_object.set(value)

        forward = Forward(client, kind, request.path, None)
        return (
            request._replace(watcher=forward),
            Reply(got, async_object.set_exception),
        )

    def tell(self, watchers: Any, path: str, event: str) -> None:
        """Hand an event to the user's watches on a path; each is told once."""
        client = self.client
        with self.lock:
            told = watchers.pop(path, ())
            if watchers is client._data_watchers:
                self.data_seen.pop(path, None)
            elif watchers is client._child_watchers:
                self.child_seen.pop(path, None)
        if not told or client._stopped.is_set():
            return
        logical = WatchedEvent(event, client._state, client.unchroot(path))
        for watcher in told:
            client.handler.dispatch_callback(Callback("watch", watcher, (logical,)))
