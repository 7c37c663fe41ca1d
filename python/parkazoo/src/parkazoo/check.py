"""Looking over a whole namespace: what should not be there, and what is missing.

What: walks every shard at its owner and every ensemble's leftovers, and reports
`Finding`s; `repair` mends what it can. All of it is done while clients work, so a
finding is looked at a second time before it is believed or touched. Shards may move,
too: what was read of one is believed only if its fence has, after that, the version
that it had when the table was read; else it is looked at again, where it is then.

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
    outside      what plain Kazoo wrote beside the namespace since an import: shown
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
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import hosts, namespace, naming, outside, refencing, remove
from parkazoo.buckets import fresh
from parkazoo.clearing import NotCleared, clear, erase, unchanged
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
from parkazoo.mapping import ConfigurationInvalid, EnsembleRemoved, Table
from parkazoo.membership import FAREWELL
from parkazoo.move import Mover
from parkazoo.rights import is_hidden
from parkazoo.seat import left_unfinished
from parkazoo.standing import REMOVED, Standing

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient


# Listings asked for at once.
WINDOW = 256
# Marks of transactions stay for as long as anything of them might be on its way.
MARK_SECONDS = 3600.0
# How often, and after which pause, it is looked again at what has moved: longer than
# the session of a command that was killed just before lasts.
ROUNDS, PAUSE_SECONDS = 30, 0.5
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


class Checker(Standing):
    def __init__(self, client: ParKazooClient, away: Set[str] = frozenset()) -> None:
        super().__init__(client, away)
        self.layout = Layout(self.table.rules)
        # That a move is unfinished.
        self.said = False

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
        fenced = True
        for finding in self._shards(repair, delete_orphans):
            fenced = fenced and finding.kind != "fence"
            yield finding
        owned = [owner for owner in self.table.owners if owner not in self.away]
        fenced = fenced and len(self.standing) == len(owned)
        yield from self._leftovers(repair and fenced)
        for path in outside.found(self):
            yield Finding("outside", path, outside.WHY, mendable=False)

    def _shards(self, repair: bool, delete: bool) -> Iterator[Finding]:
        """All of them; those that move meanwhile again, by the table of then."""
        owners = enumerate(self.table.owners)
        due: dict[int, list[str] | None] = {
            shard: None for shard, owner in owners if owner not in self.away
        }
        astray: dict[int, None] = {}
        for attempt in range(ROUNDS):
            if attempt:
                self.client.handler.sleep_func(PAUSE_SECONDS)
            self.note()
            again: dict[int, list[str] | None] = {}
            places = []
            for shard, some in due.items():
                if shard in self.standing:
                    places.append((self.table.owners[shard], shard))
                else:
                    again[shard] = some
            for (name, shard), found in self._anchors(places):
                if found is None:
                    try:
                        self.still(shard)
                    except REMOVED:
                        again[shard] = due[shard]
                        continue
                    what = (
                        f"missing on {name}: what the shard held is lost, or elsewhere"
                    )
                    yield Finding("fence", fence(shard), what, mendable=False)
                    continue
                anchors, version = found
                if version != self.standing[shard]:
                    again[shard] = due[shard]
                    continue
                if version != self.table.fences[shard]:
                    astray[shard] = None
                some = due[shard]
                moved: list[str] = []
                yield from self._shard(
                    shard, anchors if some is None else some, repair, delete, moved
                )
                if moved:
                    again[shard] = moved
            stuck = due.keys() == again.keys()
            due = again
            if not due:
                break
            if self.table.moving:
                # Frozen, and maybe nobody goes on with it since we looked.
                yield from self._unfinished(repair)
                if stuck and self.said and not repair:
                    break
        else:
            what = f"not judged: shards that were on their way all the time, {len(due)}"
            what += " of them; look again when whoever moves them is done"
            yield Finding("unreachable", "table", what, mendable=False)
        yield from self._astray(list(astray), repair)

    def _unfinished(self, repair: bool) -> Iterator[Finding]:
        """A move that nobody goes on with: said once."""
        if self.table.seat in self.away or not left_unfinished(self.client):
            return
        table = self.now()
        what = f"a move of {len({*table.planned, *table.moving})} shards is unfinished"
        finding = Finding("unfinished", "table", what)
        if repair:
            self._abort(finding)
        if finding.repaired or not self.said:
            yield finding
        self.said = True

    def _abort(self, finding: Finding) -> None:
        try:
            Mover(self.client).abort()
            finding.repaired = True
        except MoveFailed as why:  # somebody else has just begun, maybe
            finding.what += f"; {why}"

    def _strangers(self) -> Iterator[Finding]:
        """Members that are not what the table takes them for: hands off them."""
        yield from self._strange_servers()
        for name in sorted(set(self.table.ensembles) - self.away):
            try:
                namespace.copy_at(self._at(name), name, self.table)
            except (NamespaceMismatch, ConfigurationInvalid) as error:
                if isinstance(error, EnsembleRemoved) and self._has_gone(name):
                    continue
                self.away = {*self.away, name}
                listed = self.table.ensembles[name]
                # It says who it is about: the finding does, too.
                what = str(error).replace(f"{name} ({listed})", listed, 1)
                yield Finding("stranger", name, what, mendable=False)
            except REMOVED:
                continue  # it goes, or has just gone

    def _has_gone(self, name: str) -> bool:
        with suppress(Exception):  # it may be the seat that is not itself
            return name not in self.now().ensembles
        return False

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
        yield from self._unfinished(repair)
        table = self.now()
        if self._farewell() and not self.at_work() and self._farewell():
            finding = Finding("unfinished", "table", "an ensemble's removal")
            if repair:
                self._abort(finding)
            yield finding
        for name in table.ensembles:
            if name not in self.away:
                with suppress(*REMOVED):
                    yield from self._copy(name, table, repair)
        self.table = table

    def _farewell(self) -> bool:
        with suppress(*REMOVED):
            return self._at(self.now().seat).exists(FAREWELL) is not None
        return False

    def _copy(self, name: str, table: Table, repair: bool) -> Iterator[Finding]:
        session = self._at(name)
        copy = namespace.copy_at(session, name, table)
        if copy is None or copy[0].generation < table.generation:
            if self.at_work():
                return  # it is about to be told
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
            with suppress(*REMOVED, NoNodeError):
                session = self._at(name)
                for intent in session.get_children(INTENTS):
                    # Who ends one deletes both at once.
                    if session.exists(f"{INTENTS}/{intent}/owner") is None and (
                        session.exists(f"{INTENTS}/{intent}") is not None
                    ):
                        left.append((name, intent))
        if not left:
            return
        failed = remove.finish(self.client)[1] if repair else {}
        for name, intent in left:
            gone = name not in self.client._sessions.by_name or (
                self._at(name).exists(f"{INTENTS}/{intent}") is None
            )
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
            asked = []
            for place in places[start : start + WINDOW]:
                try:
                    session = self._at(place[0])
                except REMOVED:
                    yield place, None
                    continue
                listed = session.get_children_async(fence(place[1]), None, True)
                asked.append((place, listed))
            for place, result in asked:
                try:
                    names, stat = result.get()
                    yield place, (names, stat.version)
                except (NoNodeError, *REMOVED):
                    yield place, None

    def _astray(self, shards: list[int], repair: bool) -> Iterator[Finding]:
        """Those whose fence had another version than the table: it may be newer."""
        if self.table.seat in self.away:
            return
        found, mended, failed = refencing.settle(Mover(self.client), shards, repair)
        for each in found:
            done = each.shard in mended
            where = fence(each.shard)
            yield Finding("fence", where, each.what + failed, done, each.mendable)

    def _shard(
        self,
        shard: int,
        anchors: Iterable[str],
        repair: bool,
        delete: bool,
        moved: list[str],
    ) -> Iterator[Finding]:
        """`moved`: takes up the anchors of which nothing is known, for a move."""
        silent = []
        for anchor in anchors:
            directory = "" if anchor.startswith(DONE) else decode(anchor)
            if directory == "/" or (not directory and not anchor.startswith(DONE)):
                continue
            try:
                if not directory:
                    finding = self._mark(shard, anchor, repair)
                else:
                    finding = self._directory(shard, anchor, directory, repair, delete)
            except NoAuthError:
                what = "may not be looked at; give `--auth` of somebody with READ"
                finding = Finding("unreadable", directory, what, mendable=False)
            except NoNodeError:
                finding = None  # it has just gone
            except REMOVED:
                moved.append(anchor)
                continue
            if finding is None:
                silent.append(anchor)
            else:
                yield finding
        if silent:
            try:
                self.still(shard)
            except REMOVED:
                moved += silent

    def _directory(
        self, shard: int, anchor: str, directory: str, repair: bool, delete: bool
    ) -> Finding | None:
        finding = self._anchor(shard, anchor, directory)
        # Somebody may be in the middle of something: look again.
        if finding is not None:
            finding = self._anchor(shard, anchor, directory)
        if finding is None:
            return None
        if repair and (finding.mendable or (finding.kind == "orphan" and delete)):
            finding.repaired = self._mend(shard, anchor, directory, finding)
        return finding

    def _mark(self, shard: int, anchor: str, repair: bool) -> Finding | None:
        """A transaction's mark without its intent. It is made after the intent, so
        the transaction is over; what its client sent before its session ended may
        yet arrive for a while, and must find the mark."""
        if self.away:
            return None  # its intent may be where nobody can look
        path, identity = f"{fence(shard)}/{anchor}", anchor[len(DONE) :]
        session = self._at(self.table.owners[shard])
        stat = session.exists(path)
        if stat is None or time.time() - stat.ctime / 1000 < MARK_SECONDS:
            return None
        for name in self.table.ensembles:
            if self._at(name).exists(f"{INTENTS}/t-{identity}") is not None:
                return None
        self.still(shard)
        finding = Finding("stray", path, "the mark of a transaction that is over")
        if repair:
            finding.repaired = self._delete(shard, path)
        return finding

    def _anchor(self, shard: int, anchor: str, directory: str) -> Finding | None:
        """What is wrong with a directory's anchor, if anything.

        :raises Moved: nothing is known, because a shard moves.
        """
        path = f"{fence(shard)}/{anchor}"
        session = self._at(self.table.owners[shard])
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
        if linked and seen is None:
            return None
        if not linked and claimed and seen is None:
            return None
        found = self._judged(
            directory, names, seen is not None, stat is not None, linked
        )
        if linked:
            try:
                wanted = at_home.get_acls(home.path)[0]
                actual = session.get_acls(bucket)[0]
            except NoAuthError:
                self.still(home.shard)
                self.still(shard)
                raise
            if sorted(wanted) == sorted(actual):
                return None
            # A server blots digests out, and what it shows then is nobody's.
            shown = not is_hidden(wanted)
            what = "its bucket has another ACL"
            if not shown:
                what += "; to repair it, give `--auth` of somebody with ADMIN there"
            found = Finding("acl", directory, what, mendable=shown)
        # Where a bucket lives its directory does: is it still the one that was read,
        # or did the directory go, and come back, as we looked?
        if seen is not None:
            session.sync(bucket)
            now = session.exists(bucket)
            if now is None or now.czxid != seen.czxid:
                self.still(shard)
                return None
        self.still(home.shard)
        self.still(shard)
        return found

    @staticmethod
    def _judged(
        directory: str, names: list[str], bucket: bool, there: bool, linked: bool
    ) -> Finding | None:
        """A bucket, or an anchor without one, beside what is at home."""
        if linked:
            return None
        if names and not there:
            what = f"children: {len(names)}, and no directory"
            return Finding("orphan", directory, what, mendable=False)
        if bucket and there:
            # Also an empty one: it knows the next number of a sequence.
            what = f"children: {len(names)}, and no link to them"
            return Finding("link", directory, what)
        return Finding("stray", directory, "an anchor without its directory")

    def _mend(self, shard: int, anchor: str, directory: str, finding: Finding) -> bool:
        path = f"{fence(shard)}/{anchor}"
        check = fence(shard), self.table.fences[shard]
        home = self.layout.node(directory)
        session = self._at(self.table.owners[shard])
        at_home = self._at(self.table.owners[home.shard])
        try:
            if finding.kind == "orphan":
                erase(session, path, check)
            elif finding.kind == "stray":
                inside = [f"{path}/b"] if "b" in session.get_children(path) else []
                there = at_home.exists(home.path)
                self.still(home.shard)
                if there is not None and inside:
                    return False  # made meanwhile, and it has a bucket
                return self._delete(shard, *inside, path)
            elif finding.kind == "link":
                change = at_home.transaction()
                change.check(fence(home.shard), self.table.fences[home.shard])
                change.create(home.path + LINK + fresh(), b"", acl=OPEN_ACL_UNSAFE)
                return not any(isinstance(r, Exception) for r in change.commit())
            elif finding.kind == "acl":
                stat = session.get_acls(f"{path}/b")[1]
                acls = at_home.get_acls(home.path)[0]
                self.still(home.shard)
                unchanged(session, check)
                session.set_acls(f"{path}/b", acls, stat.aversion)
                unchanged(session, check)
        except (KazooException, MoveFailed, *REMOVED):
            return False
        return True

    def _delete(self, shard: int, *paths: str) -> bool:
        """Delete these of a shard at once, if it is there still, and they are empty."""
        change = self._at(self.table.owners[shard]).transaction()
        change.check(fence(shard), self.table.fences[shard])
        for path in paths:
            change.delete(path)
        return not any(isinstance(result, Exception) for result in change.commit())

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
            if not self._left_behind(name, shard):
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

    def _left_behind(self, name: str, shard: int) -> bool:
        """Or is it coming there, or about to be cleared by who has moved it away?"""
        if self.table.seat in self.away:
            return True
        try:
            if self.at_work() or self._coming(name, shard):
                return False
            return bool(self._at(name).get_children(fence(shard)))
        except (NoNodeError, *REMOVED):
            return False

    def _coming(self, name: str, shard: int) -> bool:
        table = self.now()
        planned, moving = table.planned.get(shard), table.moving.get(shard)
        return name in (table.owners[shard], planned, moving)

    def _clear(self, name: str, shard: int) -> bool:
        """Delete a leftover, unless the shard is on its way to that very place."""
        session = self._at(name)
        version = version_of(session, shard)
        if version is None or self._coming(name, shard):
            return False
        try:
            clear(session, shard, GONE, version)
        except NotCleared:
            raise
        except MoveFailed:
            return False
        return True
