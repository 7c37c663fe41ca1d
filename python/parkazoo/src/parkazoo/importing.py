"""Bringing data of plain ZooKeeper into a namespace, when it is made.

What: copies every persistent node of each ensemble, outside ZooKeeper's and our own
subtrees, to the same path in the namespace: data and ACL. Of the root, too, of those
that have nodes of their own.
Ephemerals belong to sessions and are left; versions start anew, which is one reason
why programs must be stopped while this runs: the table says so until it has ended
well, and none starts meanwhile. It says so from its first copy on and never again, so
an import begins with the namespace, and may be gone on with until it has ended.
Programs may have changed the originals meanwhile. So whoever goes on compares with
them what is there already, changes what differs, and deletes what is in no original:
all in the namespace is by an import, as long as one is awaited.

All is looked over before anything is made, since what is refused then costs nothing.

Must never: delete or change an original, write when another has ended the import, end
it while the namespace is not what the originals are, or let anybody read what they
could not read there. A directory whose ACL would keep us out of it lets us in until
its children are there; when the import ends, or is given up, none does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from parkazoo import failpoints, outside
from parkazoo.client import ParKazooClient
from parkazoo.copying import creations
from parkazoo.errors import SHOWN, ImportConflict, ImportEnded, Unreadable
from parkazoo.layout import BASE, IMPORTER, is_system
from parkazoo.mapping import Table, join
from parkazoo.move import Mover
from parkazoo.rights import is_hidden

# Creations, and deletions of what was created, in one transaction.
PAIRS = 200
# How long an ensemble may take to let us end somebody's session there.
END_SECONDS = 15.0

# What we need to fill a directory, to change what an import that broke off had made,
# and to give it its own ACL then.
_OURS = make_acl("world", "anyone", create=True, delete=True, write=True, admin=True)


Count = Callable[[], None]
# A session, and a path of its ensemble.
_Place = tuple[Any, str]
# A path of the namespace, and the ACL of its original.
_Directory = tuple[str, list[Any]]


def no_count() -> None:
    """Nobody wants to know how far it is."""


def look(sources: Mapping[str, Any], seen_to: Count = no_count) -> None:
    """Look over all that would be imported, so that what is refused changes nothing.

    `seen_to` is told of each node.

    :raises Unreadable: a node, or its ACL, may not be read by whoever asks.
    :raises ImportConflict: two ensembles have different nodes at one path.
    """
    seen: dict[str, tuple[str, bytes]] = {}
    unreadable: list[str] = []
    conflicts: list[str] = []
    for hosts, source in sources.items():
        source.sync("/")  # a follower may not have heard of the last writes
        below = list(_walk(source, "/", hosts, unreadable))
        for path in ["/", *below] if below else []:
            seen_to()
            try:
                node = _read(source, path)
            except NoAuthError:
                unreadable.append(f"{path} on {hosts}")
                continue
            if node is None or len(sources) == 1:
                continue
            other, before = seen.setdefault(path, (hosts, node.digest()))
            if before != node.digest():
                conflicts.append(f"{path} on {other} and on {hosts}")
    if unreadable:
        raise _unreadable(unreadable)
    if conflicts:
        raise ImportConflict(
            f"data or ACL differ at the same path: {_some(conflicts)}. Nothing was"
            " changed; delete, or make equal, what is not to be imported"
        )


def _walk(source: Any, top: str, hosts: str, unreadable: list[str]) -> Iterator[str]:
    try:
        names = source.get_children(top)
    except NoNodeError:
        return
    except NoAuthError:
        if top == "/":
            unreadable.append(f"{top} on {hosts}")
        return  # another is met when it is read
    for name in sorted(names):
        path = join(top, name)
        if _is_brought(path):
            yield path
            yield from _walk(source, path, hosts, unreadable)


def _is_brought(path: str) -> bool:
    return not (is_system(path) or path == BASE)


@dataclass
class _Original:
    data: Any  # None where it is null, as Java's clients know it; else bytes
    acls: list[Any]
    children: int
    creations: int

    def digest(self) -> bytes:
        return sha256(repr((self.data, sorted(self.acls))).encode()).digest()


_NEW_ROOT = _Original(b"", list(OPEN_ACL_UNSAFE), 0, 0)


def _read(source: Any, path: str) -> _Original | None:
    """A node that is to be copied; None if it is gone, or somebody's ephemeral.

    :raises NoAuthError: it, or the whole of its ACL, is hidden from us.
    """
    try:
        data, stat = source.get(path)
        if stat.ephemeralOwner:
            return None
        acls, _ = source.get_acls(path)
    except NoNodeError:
        return None
    if is_hidden(acls):
        raise NoAuthError
    return _Original(data, acls, stat.numChildren, creations(stat))


def _unreadable(nodes: list[str]) -> Unreadable:
    return Unreadable(
        f"whoever asks may not read {_some(nodes)}, or their ACLs. Give `--auth"
        " SCHEME:CREDENTIAL` of somebody with READ and ADMIN there, several times if"
        " need be"
    )


def _some(found: list[str]) -> str:
    rest = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + rest


def refuse_ended(copies: Iterable[Table | None]) -> None:
    """
    :raises ImportEnded: there is a namespace, and no import into it is under way.
    """
    found = [copy for copy in copies if copy is not None]
    if found and not any(copy.importing for copy in found):
        raise _ended(found[0])


def copy_in(
    sources: Mapping[str, Any], client: ParKazooClient, seen_to: Count = no_count
) -> int:
    """Returns the number of nodes made or changed. Until it has, programs do not start.

    `client` is one that never renews its sessions. `seen_to` is told of each node.

    :raises ImportConflict: what an import that broke off had made is not what the
        originals are now, and not ours to change.
    """
    with _alone(client) as mover:
        copying = _Copying(mover, seen_to)
        copying.root(list(sources.values()))
        if copying.behind:
            raise _behind(list(copying.behind))
        outside.note_import(sources.values())
        mover.publish(replace(mover.table, importing=False))
        return copying.count


def give_up(sources: Mapping[str, Any], client: ParKazooClient) -> None:
    """Let programs use what an import that has not ended brought in.

    :raises Unreadable: what is left open to everybody has nodes we may not list.
    """
    with _alone(client) as mover:
        _close_below(list(sources.values()), mover, "/")
        _close(list(sources.values()), mover, "/")
        mover.publish(replace(mover.table, importing=False))


@contextmanager
def _alone(client: ParKazooClient) -> Iterator[Mover]:
    """Be the only one who brings data in, or may yet do so.

    First the sessions end of an import that came before and may only hang. If ours is
    on record everywhere, and the table says then, and by our oldest session, that
    data is awaited, whoever ends this import has ended our sessions before.
    """
    mover = Mover(client)
    try:
        with mover.alone():
            mover._recover()
            for name in mover.table.ensembles:
                _go_on_record(mover, name)
                failpoints.reached("import.0.alone", failpoints.AFTER)
            table = mover.table
            mover._at(table.seat)  # still in the session in which we are alone?
            if not table.importing:
                raise _ended(table)
            yield mover
    except KazooException as error:
        if client._sessions.lost or isinstance(error, SessionExpiredError):
            raise _overtaken() from None
        raise


def _go_on_record(mover: Mover, name: str) -> None:
    """Say on an ensemble that its session with us is the one that brings data in, when
    no other is left that does."""
    while True:
        session = mover._at(name)
        try:
            session.create(IMPORTER, session._session_passwd, ephemeral=True)
            return
        except ConnectionLoss:
            continue  # done or not: if it was, the next attempt finds it to be ours
        except NodeExistsError:
            pass
        try:
            password, stat = session.get(IMPORTER)
        except NoNodeError:
            continue  # it has just ended
        if stat.ephemeralOwner == session._session_id:
            return
        _end_session(mover.client, session, (stat.ephemeralOwner, password))


def _end_session(client: ParKazooClient, at: Any, other: tuple[int, bytes]) -> None:
    """End somebody's session: no server does what it may yet send in it."""
    hosts = at.hosts_string
    visited = client._sessions.visit(hosts, other)
    try:
        if not client._sessions.wait(lambda: visited.connected, END_SECONDS):
            raise ImportEnded(
                f"{hosts} does not answer, so an import that may still write there"
                " cannot be stopped; give the same command again"
            )
    finally:
        visited.shut()
        visited.close()


def _ended(table: Table) -> ImportEnded:
    return ImportEnded(
        f"namespace {table.namespace} is there, and no import into it is under way: it"
        " was made without, or the import has ended, or was given up. Nothing was"
        " changed: programs may use the namespace, and what they have deleted would"
        " come back. What else is wanted of the originals, copy with a program"
    )


def _overtaken() -> ImportEnded:
    return ImportEnded(
        "a session of this import has ended: it was away for too long, or another"
        " `parkazoo init` took over. It has stopped; `parkazoo status` shows whether"
        " the import has ended, and if not, give the same command again"
    )


@dataclass
class _Copying:
    """Makes the namespace what the originals are, whatever of them is there already."""

    mover: Mover
    seen_to: Count
    count: int = 0
    # What is not as its original is, and not ours to change: each once.
    behind: dict[str, None] = field(default_factory=dict)
    # Those of what was there that may let everybody in now.
    opened: set[str] = field(default_factory=set)

    def root(self, sources: list[Any]) -> None:
        """It is there from the beginning."""
        having = [
            source
            for source in sources
            if any(_is_brought(f"/{name}") for name in _names(source, "/"))
        ]
        found = (_read_again(source, "/") for source in having)
        root = next(filter(None, found), _NEW_ROOT)
        stats = [stat for s in sources if (stat := s.exists("/")) is not None]
        most = max(map(creations, stats))
        self._renew(having, "/", replace(root, creations=most))

    def _below(
        self, sources: list[Any], path: str, acls: list[Any], there: set[str]
    ) -> None:
        """Copy what is below a path, of all that have it. `there`: what it has."""
        left = set(there)
        names = {name for source in sources for name in _names(source, path)}
        for name in sorted(names):
            child = join(path, name)
            if not _is_brought(child):
                continue
            found = {source: _read_again(source, child) for source in sources}
            nodes = {source: node for source, node in found.items() if node is not None}
            if not nodes:
                continue
            most = max(node.creations for node in nodes.values())
            node = replace(next(iter(nodes.values())), creations=most)
            filled = [source for source, node in nodes.items() if node.children]
            self.seen_to()
            if name in left:
                left.remove(name)
                done = self._renew(filled, child, node)
            else:
                done = self._make(filled, child, node, (path, acls))
            self.count += done
        for name in sorted(left):
            self._remove(join(path, name), (path, acls))

    def _make(
        self, sources: list[Any], path: str, node: _Original, within: _Directory
    ) -> bool:
        """A directory is closed when all is in."""
        client, acls = self.mover.client, node.acls
        first = [*acls, _OURS] if sources else acls
        try:
            self._allowed(partial(client.create, path, node.data, acl=first), within)
        except NoAuthError:
            self.behind[path] = None
            return False
        failpoints.reached("import.1.node", failpoints.AFTER)
        if sources:
            self._below(sources, path, acls, set())
            _go_on_counting(client, path, node.creations)
            client.set_acls(path, acls)
            failpoints.reached("import.2.acl", failpoints.AFTER)
        return True

    def _renew(self, sources: list[Any], path: str, node: _Original) -> bool:
        """Make a node what its original is now, and what is below it.

        Its ACL comes first, with a way in for us: what its data is now may not be
        for whom it let read it before.
        """
        home, *buckets = _places(self.mover, path)
        try:
            copy = _read(*home)
        except NoAuthError:
            copy = None
        is_leaf = copy is not None and not copy.children and path != "/"
        changed = copy is None or copy.data != node.data
        alike = copy is not None and set(copy.acls) == set(node.acls)
        alike = alike and (is_leaf or not _unlike(buckets, node.acls))
        at_once = alike or (is_leaf and not sources and not changed)
        if at_once or self._open(path, node.acls):
            try:
                if changed:
                    write = partial(self.mover.client.set, path, node.data)
                    self._allowed(write, (path, node.acls))
                    failpoints.reached("import.4.renewed", failpoints.AFTER)
                there = set() if is_leaf else self._there(path)
                known = len(self.behind)
                self._below(sources, path, node.acls, there)
                whole = len(self.behind) == known  # else it is not counted yet
                if whole and (sources or path == "/"):
                    count = partial(_go_on_counting, self.mover.client, path)
                    within = (path, node.acls)
                    self._allowed(partial(count, node.creations), within)
            except NoAuthError:
                self.behind[path] = None
        if not alike or path in self.opened:
            self._settle(path, node.acls)
        return changed or not alike

    def _there(self, path: str) -> set[str]:
        names = self.mover.client.get_children(path)
        return {name for name in names if _is_brought(join(path, name))}

    def _remove(self, path: str, within: _Directory) -> None:
        """What is in no original any more, after all in it."""
        client = self.mover.client
        acls = [acl for acl in _acls(*_places(self.mover, path)[0]) if acl != _OURS]
        try:
            for name in client.get_children(path):
                self._remove(join(path, name), (path, acls))
            # Its own ACL guards its links.
            self._allowed(partial(client.delete, path), within, (path, acls))
            failpoints.reached("import.5.removed", failpoints.AFTER)
        except (NoAuthError, NotEmptyError):  # one in it was not ours to delete
            self.behind[path] = None
            if path in self.opened:
                self._settle(path, acls)

    def _allowed(self, write: Callable[[], Any], *directories: _Directory) -> None:
        """Write, even where only an ACL forbids it that is ours to set."""
        try:
            write()
        except NoAuthError:
            for path, acls in directories:
                self._open(path, acls)
            write()

    def _open(self, path: str, acls: list[Any]) -> bool:
        """Let us in, with this ACL, as far as that is ours to set. False if something
        then has an ACL of before."""
        self.opened.add(path)
        kept = []
        for at, place in _unlike(_places(self.mover, path), [*acls, _OURS]):
            try:
                at.set_acls(place, [*acls, _OURS])
                failpoints.reached("import.4.renewed", failpoints.AFTER)
            except NoAuthError:
                kept.append((at, place))
        return not _unlike(kept, acls)

    def _settle(self, path: str, acls: list[Any]) -> None:
        """Give a node that was there, and its buckets, this ACL, and no other."""
        home, *buckets = _places(self.mover, path)
        try:
            if _unlike([home], acls):
                self.mover.client.set_acls(path, acls)
                failpoints.reached("import.4.renewed", failpoints.AFTER)
            for at, place in _unlike(buckets, acls):
                at.set_acls(place, acls)
                failpoints.reached("import.4.renewed", failpoints.AFTER)
        except NoAuthError:
            self.behind[path] = None


def _go_on_counting(client: ParKazooClient, path: str, wanted: int) -> None:
    """Have sequence numbers begin where the original's are, not at the number of the
    children that are left: those that a queue gives next would come before what is in
    it, and meet names that are there.

    :raises NoAuthError: we may not create and delete there.
    """
    stat = client.exists(path)
    if stat is None or client._layout.is_weak(path):
        return  # weak directories take no sequence nodes
    missing = wanted - creations(stat)
    dummy = join(path, uuid.uuid4().hex)
    while missing > 0:
        both = client.transaction()
        for _ in range(min(missing, PAIRS)):
            both.create(dummy)
            both.delete(dummy)
        for result in both.commit():
            if isinstance(result, Exception) and not isinstance(
                result, (RolledBackError, RuntimeInconsistency)
            ):
                raise result
        missing -= PAIRS


def _names(source: Any, path: str) -> list[str]:
    try:
        return list(source.get_children(path))
    except NoNodeError:
        return []  # since it was read
    except NoAuthError:
        raise _unreadable([path]) from None


def _read_again(source: Any, path: str) -> _Original | None:
    try:
        return _read(source, path)
    except NoAuthError:  # since we looked
        raise _unreadable([path]) from None


def _behind(paths: list[str]) -> ImportConflict:
    return ImportConflict(
        "the originals have changed since an import that broke off, and whoever asks"
        f" may not change, or fill, what it had made of {_some(paths)}. All else is as"
        " the originals are. Give the same command again, with `--auth` of somebody who"
        " has READ and ADMIN there, or of the servers' superuser, or when the originals"
        " are as they were; or leave it so with `parkazoo init --beside`, with `--auth`"
        " of all who have READ there"
    )


def _close_below(sources: list[Any], mover: Mover, path: str) -> None:
    """Close what an import that was killed left open: a directory after all in it.

    Also below one that is closed: an import that is given again opens what has changed
    there, and not what is above it.

    :raises Unreadable: what may be open there is hidden from us.
    """
    try:
        names = mover.client.get_children(path)
    except NoNodeError:
        return
    except NoAuthError:
        raise _unreadable([path]) from None
    for name in names:
        child = join(path, name)
        if _is_brought(child):
            _close_below(sources, mover, child)
            _close(sources, mover, child)


def _close(sources: list[Any], mover: Mover, path: str) -> None:
    """Take back what we gave everybody; it stays if the original has it. A bucket that
    was not reached any more as its directory was opened gets that one's ACL."""
    home, *buckets = _places(mover, path)
    found = _acls(*home)
    closed = [acl for acl in found if acl != _OURS]
    was_opened = bool(closed) and closed != found
    due = [(place, closed) for place in _unlike(buckets, closed) if was_opened]
    for place in buckets if not was_opened else []:
        found = _acls(*place)
        own = [acl for acl in found if acl != _OURS]
        if own and own != found:
            seen = closed and not is_hidden(closed)
            due.append((place, closed if seen else own))
    if not (due or was_opened) or any(_OURS in _acls(s, path) for s in sources):
        return
    # The node last: it says what its buckets are to be.
    for (at, bucket), acls in due:
        with suppress(NoAuthError):  # `check` says so
            at.set_acls(bucket, acls)
            failpoints.reached("import.3.close", failpoints.AFTER)
    if was_opened:
        home[0].set_acls(home[1], closed)
        failpoints.reached("import.3.close", failpoints.AFTER)


def _places(mover: Mover, path: str) -> list[_Place]:
    """Where the ACL of a directory is: at its node, and at its buckets.

    A bucket may be open when the node is closed already, and to whom the node then is
    closed, too: so each is looked at, and set, by itself.
    """
    layout = mover.client._layout
    home = layout.node(path)
    places = [(home.shard, home.path)]
    places += [(bucket.shard, bucket.path) for bucket in layout.buckets(path)]
    owners = mover.table.owners
    return [(mover._at(owners[shard]), place) for shard, place in places]


def _unlike(places: list[_Place], acls: list[Any]) -> list[_Place]:
    """Those of these places that are there with another ACL."""
    found = []
    for at, place in places:
        try:
            same = set(at.get_acls(place)[0]) == set(acls)
        except NoNodeError:
            continue
        except NoAuthError:
            same = False
        if not same:
            found.append((at, place))
    return found


def _acls(at: Any, path: str) -> list[Any]:
    """None that would let us set them, if they are not ours to see."""
    try:
        return list(at.get_acls(path)[0])
    except (NoNodeError, NoAuthError):
        return []
