"""Looking over a whole namespace: what should not be there, and what is missing.

What: walks every shard at its owner and every ensemble's leftovers, and reports
`Finding`s; `repair` mends what it can. All of it is done while clients work, so a
finding is looked at a second time before it is believed or touched.

    orphan       a bucket with children whose directory is gone: never seen in any
                 interleaving, and what an older backup of the directory's ensemble
                 leaves; shown, and deleted only if told to
    link         a directory with children that lacks the link to them, for the same
                 reason: given one
    stray        an empty anchor or bucket without its directory, or the mark of a
                 transaction that is over: deleted
    leftover     a shard's nodes on an ensemble that does not own it: deleted
    acl          a bucket whose ACL is not its directory's: set
    unfinished   a move or a recursive delete whose client is gone: ended; or an import,
                 shown
    copy         an ensemble's copy of the table that is missing or old: written
    stranger     a member that was wiped, holds another namespace, says that it is
                 another member, or has a server that is not one of it: shown; nothing
                 there is looked at or touched, and nothing is repaired anywhere
    unreadable   a directory that whoever asks may not look at: shown
    unreachable  an ensemble that could not be looked at: shown
    fence        a shard whose fence at its owner is missing: shown; or has another
                 version than the table says: raised, if its owner held it whole

Must never: delete a node that a client can see without being told so by name, nor, as a
leftover, the only copy there is: not before each member is known to be itself, and has
the fence of each shard that it holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import hosts, namespace, naming, refencing, remove
from parkazoo.buckets import fresh
from parkazoo.clearing import NotCleared, clear, erase
from parkazoo.copying import GONE, version_of
from parkazoo.errors import MoveFailed, NamespaceMismatch
from parkazoo.layout import (
    CLAIM,
    CONFIG,
    DONE,
    INTENTS,
    LINK,
    Layout,
    decode,
    fence,
)
from parkazoo.mapping import ConfigurationInvalid, Table
from parkazoo.membership import FAREWELL
from parkazoo.move import Mover
from parkazoo.rights import is_hidden

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient


# Listings asked for at once.
WINDOW = 256
# Marks of transactions stay for as long as anything of them might be on its way.
MARK_SECONDS = 3600.0
NOT_OF_IT = (
    "though the table names it as a server of this member: which of them a session is"
    " with is chance. Say which are its servers with `parkazoo set-hosts`"
)


@dataclass
class Finding:
    kind: str
    where: str
    what: str
    repaired: bool = False
    mendable: bool = True  # by --repair


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
            yield Finding("unreachable", name, what, mendable=False)
        for stranger in list(self._strangers()):
            repair = delete_orphans = False  # that needs every ensemble
            yield stranger
        if self.table.importing:
            what = str(namespace.unfinished())
            yield Finding("unfinished", "import", what, mendable=False)
        if self.table.seat not in self.away:
            yield from self._table(repair)
        yield from self._intents(repair)
        owned = [
            (owner, shard)
            for shard, owner in enumerate(self.table.owners)
            if owner not in self.away
        ]
        astray = []
        fenced = True
        for (name, shard), found in self._anchors(owned):
            if found is None:
                fenced = False
                what = f"missing on {name}: what the shard held is lost, or elsewhere"
                yield Finding("fence", fence(shard), what, mendable=False)
                continue
            anchors, version = found
            if version != self.table.fences[shard]:
                astray.append(shard)
            yield from self._shard(shard, anchors, repair, delete_orphans)
        for finding in self._astray(astray, repair):
            fenced = False
            yield finding
        yield from self._leftovers(repair and fenced)

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
        yield from self._strange_servers()
        for name in sorted(set(self.table.ensembles) - self.away):
            try:
                namespace.copy_at(self._at(name), name, self.table)
            except (NamespaceMismatch, ConfigurationInvalid) as error:
                self.away = {*self.away, name}
                listed = self.table.ensembles[name]
                # It says who it is about: the finding does, too.
                what = str(error).replace(f"{name} ({listed})", listed, 1)
                yield Finding("stranger", name, what, mendable=False)

    def _strange_servers(self) -> Iterator[Finding]:
        """Servers that stand beside a member's and are not of it: a comma where a
        semicolon is meant, of which nobody knew when the namespace was made."""
        said: dict[str, dict[str, str | None]] = {}
        sessions = self.client._sessions

        def look(name: str, server: tuple[str, int]) -> None:
            says = naming.what_it_says(sessions, server, self.table, name)
            said[name][hosts.server(server)] = says

        looks = []
        for name in sorted(set(self.table.ensembles) - self.away):
            servers = hosts.servers(self.table.ensembles[name])
            if len(servers) > 1:
                said[name] = {}
                looks += [partial(look, name, server) for server in servers]
        sessions.in_parallel(looks)
        for name, by_server in said.items():
            if "" in by_server.values():
                for server, says in sorted(by_server.items()):
                    if says:
                        self.away = {*self.away, name}
                        what = f"{server} {says}, {NOT_OF_IT}"
                        yield Finding("stranger", name, what, mendable=False)

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
        failed = remove.finish(self.client)[1] if repair else {}
        for name, intent in left:
            gone = self._at(name).exists(f"{INTENTS}/{intent}") is None
            what = "an intent whose client is gone"
            if intent in failed and not gone:
                what += f"; not finished: {failed[intent]!r}"
            yield Finding("unfinished", f"{name}:{intent}", what, repaired=gone)

    # -- shards --------------------------------------------------------------------

    def _anchors(
        self, places: list[tuple[str, int]]
    ) -> Iterator[tuple[tuple[str, int], tuple[list[str], int] | None]]:
        """What is below the fences of (ensemble, shard), and their versions; None
        without a fence."""
        for start in range(0, len(places), WINDOW):
            asked = [
                (
                    place,
                    self._at(place[0]).get_children_async(fence(place[1]), None, True),
                )
                for place in places[start : start + WINDOW]
            ]
            for place, result in asked:
                try:
                    names, stat = result.get()
                    yield place, (names, stat.version)
                except NoNodeError:
                    yield place, None

    def _astray(self, shards: list[int], repair: bool) -> Iterator[Finding]:
        """Those whose fence had another version than the table: it may be newer."""
        if self.table.seat in self.away:
            return
        mover = Mover(self.client)
        found = [refencing.look(mover, shard) for shard in shards]
        astray = [each for each in found if each is not None]
        mended: list[int] = []
        if repair and any(each.mendable for each in astray):
            mended = refencing.mend(mover, [each.shard for each in astray])
        for each in astray:
            done = each.shard in mended
            where = fence(each.shard)
            yield Finding("fence", where, each.what, done, each.mendable)

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
                yield Finding("unreadable", directory, what, mendable=False)
                continue
            except NoNodeError:
                continue  # it has just gone
            if finding is None:
                continue
            if repair and (finding.mendable or (finding.kind == "orphan" and delete)):
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
        names, seen = [], None
        if "b" in inside:
            names, seen = session.get_children(bucket, include_data=True)
        claimed = any(name.startswith(CLAIM[1:]) for name in inside)
        home = self.layout.node(directory)
        if self.table.owners[home.shard] in self.away:
            return None
        at_home = self._at(self.table.owners[home.shard])
        at_home.sync(home.path)
        stat = at_home.exists(home.path)
        linked = stat is not None and stat.numChildren > 0
        if names and stat is None:
            # Where a bucket lives its directory does: is it still the one that was
            # read, or did the directory go, and come back, as we looked?
            session.sync(bucket)
            now = session.exists(bucket)
            if seen is None or now is None or now.czxid != seen.czxid:
                return None
            what = f"children: {len(names)}, and no directory"
            return Finding("orphan", directory, what, mendable=False)
        if names and not linked:
            what = f"children: {len(names)}, and no link to them"
            return Finding("link", directory, what)
        if not linked and not claimed:
            return Finding("stray", directory, "an anchor without its directory")
        if linked and "b" in inside:
            wanted, actual = at_home.get_acls(home.path)[0], session.get_acls(bucket)[0]
            if sorted(wanted) != sorted(actual):
                # A server blots digests out, and what it shows then is nobody's.
                seen = not is_hidden(wanted)
                what = "its bucket has another ACL"
                if not seen:
                    what += "; to repair it, give `--auth` of somebody with ADMIN there"
                return Finding("acl", directory, what, mendable=seen)
        return None

    def _mend(self, session: Any, path: str, directory: str, finding: Finding) -> bool:
        home = self.layout.node(directory)
        at_home = self._at(self.table.owners[home.shard])
        try:
            if finding.kind == "orphan":
                buckets = self.layout.buckets(directory)
                shard = next(b.shard for b in buckets if b.anchor == path)
                erase(session, path, (fence(shard), self.table.fences[shard]))
            elif finding.kind == "stray":
                if "b" in session.get_children(path):
                    session.delete(f"{path}/b")
                session.delete(path)
            elif finding.kind == "link":
                change = at_home.transaction()
                change.check(fence(home.shard), self.table.fences[home.shard])
                change.create(home.path + LINK + fresh(), b"", acl=OPEN_ACL_UNSAFE)
                return not any(isinstance(r, Exception) for r in change.commit())
            elif finding.kind == "acl":
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
            if owner not in self.away
            if owner != name and shard not in self.table.planned
        ]
        for (name, shard), found in self._anchors(places):
            if found is None or not found[0]:
                continue
            finding = Finding(
                "leftover", f"{name}:{fence(shard)}", f"{len(found[0])} anchors"
            )
            if repair:
                try:
                    finding.repaired = self._clear(name, shard)
                except NotCleared as left:
                    finding.what += f"; {left}"
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
        except NotCleared:
            raise
        except MoveFailed:
            return False
        return True
