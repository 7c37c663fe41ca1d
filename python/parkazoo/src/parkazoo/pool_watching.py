"""The watches of pooled clients, entered among those of the sessions they share.

Must never: tell a client of another one's watch, or one that has stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parkazoo.pool import PooledClient


class MemberWatch:
    """One member's watch among the carrier's. Two alike are one."""

    __slots__ = ("__weakref__", "life", "member", "path", "watcher")

    def __init__(self, member: PooledClient, path: str, watcher: Any) -> None:
        self.member, self.life = member, member._life
        self.path, self.watcher = path, watcher

    def _identity(self) -> Any:
        return (id(self.member), self.life, self.path, self.watcher)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberWatch) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __call__(self, event: Any) -> None:
        member = self.member
        if self.life != member._life or member._stopped.is_set():
            return
        if event.path is not None:
            event = event._replace(path=member.unchroot(self.path))
        self.watcher(event)


class WatchersOf:
    """A member's view of the carrier's watches: Kazoo's TreeCache takes some back."""

    def __init__(self, member: PooledClient, kind: str) -> None:
        self.member, self.kind = member, kind

    def __getitem__(self, path: str) -> set[Any]:
        carrier, member = self.member._carrier, self.member
        with carrier._watches.lock:
            told = list(getattr(carrier, self.kind).get(path, ()))
        mine = [w for w in told if isinstance(w, MemberWatch) and w.member is member]
        return {watcher.watcher for watcher in mine if watcher.life == member._life}

    def get(self, path: str, default: Any = None) -> WatchersAt:
        return WatchersAt(self, path)

    def values(self) -> list[Any]:
        return []


class WatchersAt:
    """A member's watches of one kind on one path."""

    def __init__(self, view: WatchersOf, path: str) -> None:
        self.view, self.path = view, path

    def discard(self, watcher: Any) -> None:
        carrier = self.view.member._carrier
        with carrier._watches.lock:
            watchers = getattr(carrier, self.view.kind).get(self.path, set())
            watchers.discard(MemberWatch(self.view.member, self.path, watcher))
