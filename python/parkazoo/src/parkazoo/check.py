"""Looking over a whole namespace: what should not be there, and what is missing.

What: walks every shard at its owner and every ensemble's leftovers, and reports
`Finding`s; `repair` mends what it can. All of it is done while clients work, so a
finding is looked at a second time before it is believed or touched.

    orphan       a bucket with children whose directory is gone: never seen in any
                 interleaving; shown, and deleted only if told to
    stray        an empty anchor or bucket without its directory, or the mark of a
                 transaction that is over: deleted
    leftover     a shard's nodes on an ensemble that does not own it: deleted
    acl          a bucket whose ACL is not its directory's: set
    unfinished   a move or a recursive delete whose client is gone: ended
    copy         an ensemble's copy of the table that is missing or old: written
    stranger     a member that was wiped, or holds another namespace: shown; nothing
                 there is looked at or touched
    unreadable   a directory that whoever asks may not look at: shown
    unreachable  an ensemble that could not be looked at: shown
    fence        a shard without its fence at its owner: shown

Must never: delete a node that a client can see without being told so by name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import namespace, remove
from parkazoo.copying import GONE, clear, erase, version_of
from parkazoo.errors import MoveFailed, NamespaceMismatch
from parkazoo.layout import CLAIM, CONFIG, DONE, INTENTS, Layout, decode, fence
from parkazoo.mapping import ConfigurationInvalid, Table
from parkazoo.move import FAREWELL, Mover

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient


# Listings asked for at once.
WINDOW = 256
# Marks of transactions stay for as long as anything of them might be on its way.
MARK_SECONDS = 3600.0


@dataclass
class Finding:
    kind: str
    where: str
    what: str
    repaired: bool = False


class Checker:
    """`away`: ensembles that are not asked, because they cannot be reached."""

    def __init__(self, client: ParKazooClient, away: Set[str] = frozenset()) -> None:
        self.client = client
        self.away = away
        assert client.table is not None
        self.table = client.table
        self.layout = Layout(self.table.rules)

    def run(
        self, repair: bool = False, delete_orphans: bool = False
    ) -> Iterator[Finding]:
        assert not (repair and self.away), "repairing needs every ensemble"
        for name in sorted(self.away):
            lost = len(self.table.shards(name))
            what = f"not asked; {lost} shards, and what hangs on it, are not judged"
            yield Finding("unreachable", name, what)
        for stranger in list(self._strangers()):
            repair = delete_orphans = False  # that needs every ensemble
            yield stranger
        if self.table.seat not in self.away:
            yield from self._table(repair)
        yield from self._intents(repair)
        owned = [
            (owner, shard)
            for shard, owner in enumerate(self.table.owners)
            if owner not in self.away
        ]
        for (name, shard), anchors in self._anchors(owned):
            if anchors is None:
                yield Finding("fence", fence(shard), f"missing on {name}")
            else:
                yield from self._shard(shard, anchors, repair, delete_orphans)
        yield from self._leftovers(repair)

    def _at(self, name: str) -> Any:
        session = self.client._sessions.session(name)
        self.client._sessions.wait(
            lambda: session.connected or session.refused is not None, 15
        )
        if session.refused is not None:
            raise session.refused
        return session

    def _strangers(self) -> Iterator[Finding]:
        """Members that are not what the table takes them for: hands off them."""
        for name in set(self.table.ensembles) - self.away:
            try:
                namespace.copy_at(self._at(name), name, self.table)
            except (NamespaceMismatch, ConfigurationInvalid) as error:
                self.away = {*self.away, name}
                yield Finding("stranger", name, str(error))

    # -- the table and what was left unfinished ------------------------------------

    def _table(self, repair: bool) -> Iterator[Finding]:
        mover = Mover(self.client)
        table = mover.table
        if table.planned or table.moving:
            shards = sorted({*table.planned, *table.moving})
            finding = Finding(
                "unfinished", "table", f"a move of {len(shards)} shards is unfinished"
            )
            if repair:
                mover.abort()
                finding.repaired = True
            yield finding
            table = mover.table
        if self._at(table.seat).exists(FAREWELL) is not None:
            finding = Finding("unfinished", "table", "an ensemble's removal")
            if repair:
                mover.abort()
                finding.repaired = True
            yield finding
        for name in table.ensembles:
            if name not in self.away:
                yield from self._copy(name, table, repair)
        self.table = table

    def _copy(self, name: str, table: Table, repair: bool) -> Iterator[Finding]:
        session = self._at(name)
        copy = namespace.copy_at(session, name, table)
        generation = 0 if copy is None else copy[0].generation
        if generation >= table.generation:
            return
        finding = Finding(
            "copy", name, f"has table {generation}, not {table.generation}"
        )
        if repair:
            # Not over a newer one that somebody has brought meanwhile.
            with suppress(BadVersionError, NodeExistsError):
                if copy is not None:
                    session.set(CONFIG, table.serialize(), copy[1])
                else:
                    session.create(CONFIG, table.serialize(), acl=OPEN_ACL_UNSAFE)
            finding.repaired = True
        yield finding

    def _intents(self, repair: bool) -> Iterator[Finding]:
        left = []
        for name in self.table.ensembles:
            if name in self.away:
                continue
            session = self._at(name)
            try:
                found = session.get_children(INTENTS)
            except NoNodeError:
                continue
            for intent in found:
                if session.exists(f"{INTENTS}/{intent}/owner") is None:
                    left.append((name, intent))
        if not left:
            return
        if repair:
            remove.roll_forward(self.client)
        for name, intent in left:
            gone = self._at(name).exists(f"{INTENTS}/{intent}") is None
            what = "an intent whose client is gone"
            yield Finding("unfinished", f"{name}:{intent}", what, repaired=gone)

    # -- shards --------------------------------------------------------------------

    def _anchors(
        self, places: list[tuple[str, int]]
    ) -> Iterator[tuple[tuple[str, int], list[str] | None]]:
        """What is below the fences of (ensemble, shard); None without a fence."""
        for start in range(0, len(places), WINDOW):
            asked = [
                (place, self._at(place[0]).get_children_async(fence(place[1])))
                for place in places[start : start + WINDOW]
            ]
            for place, result in asked:
                try:
                    yield place, result.get()
                except NoNodeError:
                    yield place, None

    def _shard(
        self, shard: int, anchors: list[str], repair: bool, delete: bool
    ) -> Iterator[Finding]:
        session = self._at(self.table.owners[shard])
        for anchor in anchors:
            path = f"{fence(shard)}/{anchor}"
            if anchor.startswith(DONE):
                yield from self._mark(session, path, anchor[len(DONE) :], repair)
                continue
            directory = decode(anchor)
            if directory in ("", "/"):
                continue
            try:
                finding = self._anchor(session, path, directory)
                # Somebody may be in the middle of something: look again.
                if finding is not None:
                    finding = self._anchor(session, path, directory)
            except NoAuthError:
                what = "may not be looked at; give `--auth` of somebody with READ"
                yield Finding("unreadable", directory, what)
                continue
            if finding is None:
                continue
            if repair and (finding.kind != "orphan" or delete):
                finding.repaired = self._mend(session, path, directory, finding)
            yield finding

    def _mark(
        self, session: Any, path: str, identity: str, repair: bool
    ) -> Iterator[Finding]:
        """A transaction's mark without its intent. It is made after the intent, so
        the transaction is over; what its client sent before its session ended may
        yet arrive for a while, and must find the mark."""
        if self.away:
            return  # its intent may be where nobody can look
        stat = session.exists(path)
        if stat is None or time.time() - stat.ctime / 1000 < MARK_SECONDS:
            return
        for name in self.table.ensembles:
            if self._at(name).exists(f"{INTENTS}/t-{identity}") is not None:
                return
        finding = Finding("stray", path, "the mark of a transaction that is over")
        if repair:
            try:
                session.delete(path)
            except NoNodeError:
                pass
            finding.repaired = True
        yield finding

    def _anchor(self, session: Any, path: str, directory: str) -> Finding | None:
        """What is wrong with a directory's anchor, if anything."""
        session.sync(path)
        try:
            inside = session.get_children(path)
        except NoNodeError:
            return None
        bucket = f"{path}/b"
        names = session.get_children(bucket) if "b" in inside else []
        claimed = any(name.startswith(CLAIM[1:]) for name in inside)
        home = self.layout.node(directory)
        if self.table.owners[home.shard] in self.away:
            return None
        at_home = self._at(self.table.owners[home.shard])
        at_home.sync(home.path)
        stat = at_home.exists(home.path)
        linked = stat is not None and stat.numChildren > 0
        if not linked and names:
            return Finding("orphan", directory, f"{len(names)} children, no directory")
        if not linked and not claimed:
            return Finding("stray", directory, "an anchor without its directory")
        if linked and "b" in inside:
            wanted, actual = at_home.get_acls(home.path)[0], session.get_acls(bucket)[0]
            if sorted(wanted) != sorted(actual):
                return Finding("acl", directory, "its bucket has another ACL")
        return None

    def _mend(self, session: Any, path: str, directory: str, finding: Finding) -> bool:
        try:
            if finding.kind == "orphan":
                buckets = self.layout.buckets(directory)
                shard = next(b.shard for b in buckets if b.anchor == path)
                erase(session, path, (fence(shard), self.table.fences[shard]))
            elif finding.kind == "stray":
                if "b" in session.get_children(path):
                    session.delete(f"{path}/b")
                session.delete(path)
            elif finding.kind == "acl":
                home = self.layout.node(directory)
                at_home = self._at(self.table.owners[home.shard])
                session.set_acls(f"{path}/b", at_home.get_acls(home.path)[0])
        except (KazooException, MoveFailed):
            return False
        return True

    def _leftovers(self, repair: bool) -> Iterator[Finding]:
        places = [
            (name, shard)
            for name in self.table.ensembles
            if name not in self.away
            for shard, owner in enumerate(self.table.owners)
            if owner != name and shard not in self.table.planned
        ]
        for (name, shard), inside in self._anchors(places):
            if not inside:
                continue
            finding = Finding(
                "leftover", f"{name}:{fence(shard)}", f"{len(inside)} anchors"
            )
            if repair:
                finding.repaired = self._clear(name, shard)
            yield finding

    def _clear(self, name: str, shard: int) -> bool:
        """Delete a leftover, unless the shard is on its way to that very place."""
        session = self._at(name)
        version = version_of(session, shard)
        table = Mover(self.client).table
        coming = (
            table.owners[shard],
            table.planned.get(shard),
            table.moving.get(shard),
        )
        if version is None or name in coming:
            return False
        try:
            clear(session, shard, GONE, version)
        except MoveFailed:
            return False
        return True
