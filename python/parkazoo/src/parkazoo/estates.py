"""Which logical client of a shared session owns which ephemeral node.

What: an `Estate` is what one logical client leaves behind when it closes while
others go on with the session: the ephemerals it is known to have made, and those it
may have made, because the connection broke before the answer came. `Estates` keeps
them for one set of sessions, by logical path.

Why: ZooKeeper ends ephemerals with their session, but a shared session does not end
with one of its users. Without this a lock would outlive its holder.

Must never: count a node among two estates, or hand out for deletion a node that
another logical client made or may have made: then it stays until that one closes,
because a lock that is held too long is better than a lock held twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Nodes noted before it is looked which of them others have deleted meanwhile.
NOTED_MAX = 1024


class Doubt(NamedTuple):
    """A creation whose answer was lost: a path, or the prefix of a numbered one."""

    path: str
    sequence: bool


class Estate:
    """What one logical client made, from its start to its stop. Changed by `Estates`.

    `flying` creations are under way; `settled` is set once it is closed and has none.
    """

    __slots__ = ("closed", "doubts", "flying", "paths", "settled")

    def __init__(self, settled: Any) -> None:
        self.paths: dict[str, int] = {}
        self.doubts: set[Doubt] = set()
        self.flying = 0
        self.closed = False
        self.settled = settled


class Estates:
    """All estates on one set of sessions. Every method may be called by any thread."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.owners: dict[str, Estate] = {}
        self.doubts: dict[Doubt, set[Estate]] = {}
        self.serial = 0
        self.pruned_at = NOTED_MAX

    # -- while a logical client lives ----------------------------------------------

    def begin(self, estate: Estate) -> bool:
        """A creation is about to be sent. False: the estate takes no more."""
        with self.lock:
            if estate.closed:
                return False
            estate.flying += 1
            return True

    def end(self, estate: Estate) -> None:
        """A creation that was begun has had its answer, and that has been noted."""
        with self.lock:
            estate.flying -= 1
            if estate.closed and not estate.flying:
                estate.settled.set()

    def created(self, estate: Estate, path: str) -> None:
        with self.lock:
            before = self.owners.get(path)
            if before is not None:
                before.paths.pop(path, None)
            self.serial += 1
            self.owners[path] = estate
            estate.paths[path] = self.serial

    def doubted(self, estate: Estate, doubt: Doubt) -> None:
        with self.lock:
            estate.doubts.add(doubt)
            self.doubts.setdefault(doubt, set()).add(estate)

    def deleted(self, path: str) -> None:
        """Somebody deleted a node through these sessions."""
        if path not in self.owners:
            return
        with self.lock:
            owner = self.owners.pop(path, None)
            if owner is not None:
                owner.paths.pop(path, None)

    def lost(self) -> None:
        """The sessions have ended, and every ephemeral with them."""
        with self.lock:
            for estate in {*self.owners.values(), *self._doubters()}:
                estate.paths.clear()
                estate.doubts.clear()
            self.owners.clear()
            self.doubts.clear()

    def _doubters(self) -> list[Estate]:
        return [estate for estates in self.doubts.values() for estate in estates]

    # -- nodes that others deleted -------------------------------------------------

    def crowded(self) -> int | None:
        """The newest note, if there are so many that it is time to `prune`."""
        if len(self.owners) < self.pruned_at:
            return None
        with self.lock:
            self.pruned_at = 2 * len(self.owners)
            return self.serial

    def prune(self, present: set[str], serial: int) -> None:
        """Forget what is not `present`, of what was noted up to `serial`."""
        with self.lock:
            for path, owner in list(self.owners.items()):
                if path not in present and owner.paths[path] <= serial:
                    del self.owners[path], owner.paths[path]
            self.pruned_at = max(NOTED_MAX, 2 * len(self.owners))

    # -- when a logical client closes ----------------------------------------------

    def close(self, estate: Estate) -> None:
        """No more creations. `settled` tells when those under way are through."""
        with self.lock:
            estate.closed = True
            if not estate.flying:
                estate.settled.set()

    def owned(self, estate: Estate) -> list[str]:
        with self.lock:
            return list(estate.paths)

    def doubtful(self, estate: Estate) -> list[Doubt]:
        """Creations that only this estate may have made; others' are theirs to end."""
        with self.lock:
            for doubt in [d for d in estate.doubts if len(self.doubts[d]) > 1]:
                self._resolve(estate, doubt)
            return list(estate.doubts)

    def may_delete(self, estate: Estate, path: str) -> bool:
        """Is a node that was found no other estate's?"""
        with self.lock:
            return self.owners.get(path, estate) is estate

    def resolved(self, estate: Estate, doubt: Doubt) -> None:
        with self.lock:
            self._resolve(estate, doubt)

    def _resolve(self, estate: Estate, doubt: Doubt) -> None:
        estate.doubts.discard(doubt)
        doubters = self.doubts.get(doubt)
        if doubters is not None:
            doubters.discard(estate)
            if not doubters:
                del self.doubts[doubt]
