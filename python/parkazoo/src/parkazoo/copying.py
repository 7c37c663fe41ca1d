"""Copying a shard's znodes from one ensemble to another, versions and all.

What: `Copier` brings a shard's subtree at the target into line with the source,
again and again: the first time while the shard is in use, the last time while it
is frozen, when little is left to do.

Why versions are replayed: a program that read version 5 may write "if it is still
version 5" after the move. So a node at version 5 is created and set five times, a
bucket that has numbered ten nodes creates and deletes as many as needed to number
the eleventh next, and ACL versions likewise. Transaction ids and times cannot be
kept; nothing may depend on them across a move.

Why a copy has its own ACL last: that may keep us from filling it. Where it would, or
where its version has to grow by setting it, the copy is open to us (`rights`) until
all is there. Nobody has to do with it before the switch, and it is closed before that.

Must never: copy a claim (its creator starts again) or an ephemeral (its owner
re-creates it, see `parkazoo.adopting`), write below any but the target's shard, or
leave an ACL open on a shard that is in use.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.serialization import Create, Delete, SetData
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo.clearing import clear, erase, overtaken, unchanged
from parkazoo.errors import MoveFailed, Unmovable
from parkazoo.layout import BUCKET, CLAIM, fence, shown
from parkazoo.rights import Rights, is_hidden, is_open
from parkazoo.steps import MultiFailed
from parkazoo.wire import Fenced, ShardMoved, results_of

# Operations in one transaction: well below the server's packet limit of 1 MB.
BATCH = 400
WINDOW = 200
# What is met where something has changed since it was looked at.
_CHANGED = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
# What a fence's data says, for people and for the owners of ephemerals.
INCOMING, ACTIVE, FROZEN, GONE = b"incoming", b"active", b"frozen", b"gone"


@dataclass(frozen=True)
class Seen:
    """What a node was like when it was last copied."""

    czxid: int
    mzxid: int
    cversion: int
    aversion: int


class Copier:
    """Copies one shard. `fence` is the version of the target's fence meanwhile,
    `before` the one it had before, None if there was none."""

    rights: Rights

    def __init__(self, shard: int, source: Any, target: Any) -> None:
        self.shard = shard
        self.source, self.target = source, target
        self.root = fence(shard)
        self.seen: dict[str, Seen] = {}
        self.copied = 0
        self.ephemerals: set[str] = set()
        self.buckets: dict[str, ZnodeStat] = {}
        # By node, what its copy, which is open to us, is to have in the end: its ACL,
        # and the version that this is set over. None: it is as open as its original.
        self.opened: dict[str, tuple[list[Any], int] | None] = {}
        self.fence = 0
        self.before: int | None = None

    def look(self) -> None:
        """Note the target's fence, before the plan to come here is published."""
        self.before = version_of(self.target, self.shard)

    def prepare(self) -> None:
        """An empty place at the target, if its fence is still the one we noted.

        A fence that was used before is kept and set, so its version is new, and a
        request from the time before is refused.
        """
        if self.before is None:
            try:
                self.target.create(self.root, INCOMING, acl=OPEN_ACL_UNSAFE)
            except NodeExistsError:
                raise MoveFailed(overtaken(self.root)) from None
            self.fence = 0
        else:
            self.fence = clear(self.target, self.shard, INCOMING, self.before)
        self.rights = Rights(self.target, (self.root, self.fence))

    def copy(self, frozen: bool = False) -> int:
        """Bring the target into line with the source; returns nodes written.

        While the shard is in use a node may go, or its parent, between one read and
        the next. That is left to the next pass; the last one finds it all at rest.
        """
        self.source.sync(self.root)
        self.ephemerals, self.buckets = set(), {}
        before = self.copied
        present: set[str] = set()
        changed: list[str] = []
        for path, data, stat in self._walk(self.root):
            present.add(path)
            if path == self.root:
                continue
            if stat.ephemeralOwner:
                self.ephemerals.add(path)
                if path in self.seen:  # a persistent node had this name
                    self._erase(path)
                continue
            if self._is_bucket(path):
                self.buckets[path] = stat
            written = self.copied
            try:
                with self._saying(path, frozen):
                    self._bring(path, data, stat)
            except _CHANGED:
                self._erase(path)
            if path in self.buckets and self.copied > written:
                changed.append(path)
        for path in sorted(set(self.seen) - present, key=len):
            if path in self.seen:
                self._erase(path)
        if not frozen:  # else `settle` does, to which little is left then
            self._count_all(changed, frozen)
        return self.copied - before

    def settle(self) -> None:
        """Last, when ephemerals have arrived: the counters of numbered nodes.

        The buckets are as the last copy saw them, frozen: a session that ends takes
        ephemerals away, which changes nothing in how many were ever created.
        """
        self._count_all(self.buckets, True)

    def _count_all(self, buckets: Iterable[str], frozen: bool) -> None:
        """Behind all else of a pass: what is made anew there counts by itself."""
        for path in buckets:
            with suppress(*(() if frozen else _CHANGED)), self._saying(path, frozen):
                self._count(path, self.buckets[path])

    def close(self) -> None:
        """Last of all: what was open to us gets its own ACL."""
        due = [(path, due) for path, due in self.opened.items() if due is not None]
        for start in range(0, len(due), WINDOW):
            unchanged(self.target, (self.root, self.fence))
            asked = [
                (path, self.target.set_acls_async(path, *acls))
                for path, acls in due[start : start + WINDOW]
            ]
            for path, result in asked:
                with self._saying(path, True):
                    result.get()

    @contextmanager
    def _saying(self, path: str, frozen: bool) -> Iterator[None]:
        """Say which node it is that cannot be copied, and why.

        While the shard is in use it may only have changed meanwhile (`_CHANGED`).
        """
        try:
            try:
                yield
            except MultiFailed as failed:
                raise failed.error from None
        except ShardMoved:
            raise MoveFailed(overtaken(self.root)) from None
        except NoAuthError:
            raise _hidden(path, f"cannot be made at {self.target.name}") from None
        except InvalidACLError:
            raise Unmovable(
                f"{shown(path)} has an ACL that {self.target.name} does not know",
                "give its servers what authenticates the schemes in it, as those of"
                " other ensembles have it",
            ) from None
        except _CHANGED as error:
            if frozen:
                raise MoveFailed(
                    f"{shown(path)} has changed where it is or where it was to come"
                    f" ({error!r}): {overtaken(self.root)}"
                ) from None
            raise

    def _walk(self, top: str) -> Iterator[tuple[str, bytes, ZnodeStat]]:
        """Every node but claims, parents first, reads pipelined level by level."""
        level = [top]
        while level:
            below: list[str] = []
            for start in range(0, len(level), WINDOW):
                paths = level[start : start + WINDOW]
                for path, data, stat, names in self._read(paths):
                    try:
                        listed = names.get() if names is not None else []
                    except NoNodeError:
                        continue
                    except NoAuthError:
                        raise _hidden(path, "may not be listed") from None
                    yield path, data, stat
                    anchor = path.count("/") == self.root.count("/") + 1
                    for name in listed:
                        if not (anchor and name.startswith(CLAIM[1:])):
                            below.append(f"{path}/{name}")
            level = below

    def _read(self, paths: list[str]) -> list[tuple[str, bytes, ZnodeStat, Any]]:
        """The nodes that are there; for those with children, a listing on its way."""
        asked = [(path, self.source.get_async(path)) for path in paths]
        found: list[tuple[str, bytes, ZnodeStat, Any]] = []
        for path, value in asked:
            try:
                data, stat = value.get()
            except NoNodeError:
                continue
            except NoAuthError:
                raise _hidden(path, "may not be read") from None
            names = None
            if stat.numChildren:
                names = self.source.get_children_async(path)
            found.append((path, data, stat, names))
        return found

    def _bring(self, path: str, data: bytes, stat: ZnodeStat) -> None:
        now = Seen(stat.czxid, stat.mzxid, stat.cversion, stat.aversion)
        seen = self.seen.get(path)
        if seen == now:
            return
        acls = self._acls(path)
        opens = self._must_open(path, acls, stat)
        theirs = self.target.exists(path)
        anew = seen is not None and seen.czxid != now.czxid
        if theirs is not None and (
            anew
            or not self._same_life(path, data, stat, theirs)
            or not self._may_go_on(path, acls, opens, stat, theirs)
        ):
            self._erase(path)
            theirs = None
        for_now = self.rights.opened(acls) if opens else acls
        if theirs is None:
            self._create(path, data, for_now, stat)
        # The last one is set when all is there.
        for aversion in range(theirs.aversion if theirs else 0, stat.aversion - opens):
            self.target.set_acls(path, for_now, aversion)
        if theirs is not None and stat.version > theirs.version:
            steps = stat.version - theirs.version - 1
            self._write([SetData(path, b"", -1)] * steps + [SetData(path, data, -1)])
        if opens:
            self.opened[path] = acls, max(stat.aversion - 1, 0)
        elif is_open(acls):
            self.opened[path] = None
        self.copied += 1
        self.seen[path] = now

    def _must_open(self, path: str, acls: Any, stat: ZnodeStat) -> bool:
        """Would its own ACL keep us from copying the node, or what is below it?

        An ACL that was never set, of a node that nothing has to be done to, is given
        when it is created; else its version is one more than it was.
        """
        if is_open(acls):
            return False
        if stat.aversion:
            return True
        written = stat.version > 0
        filled = self._is_bucket(path) or stat.numChildren > 0
        if not (written or filled):
            return False
        return not self.rights.enough(acls, written, filled)

    def _may_go_on(
        self, path: str, acls: Any, opens: bool, stat: ZnodeStat, theirs: ZnodeStat
    ) -> bool:
        """Or must a copy be made anew, because it is closed to us, or is open to who
        may not read any more what comes now?"""
        if path not in self.opened:
            return not (opens or stat.aversion)
        if is_open(acls):
            return True
        due = self.opened[path]
        same = due is not None and due[0] == acls
        return opens and (same or theirs.aversion < stat.aversion - 1)

    def _acls(self, path: str) -> Any:
        try:
            acls, _ = self.source.get_acls(path)
        except NoAuthError:
            raise _hidden(path, "has an ACL that may not be read") from None
        if is_hidden(acls):
            raise _hidden(path, "has an ACL of which digests are hidden")
        return acls

    def _same_life(
        self, path: str, data: bytes, stat: ZnodeStat, theirs: ZnodeStat
    ) -> bool:
        """Can the copy become the node as it is now, or was that created anew?"""
        if theirs.version > stat.version or theirs.aversion > stat.aversion:
            return False
        return bool(theirs.version < stat.version or self.target.get(path)[0] == data)

    def _create(self, path: str, data: bytes, acls: Any, stat: ZnodeStat) -> None:
        if not stat.version:
            self._write([Create(path, data, acls, 0)])
            return
        sets = [SetData(path, b"", -1)] * (stat.version - 1)
        self._write([Create(path, b"", acls, 0), *sets, SetData(path, data, -1)])

    def _erase(self, path: str) -> None:
        erase(self.target, path, (self.root, self.fence))
        below = path + "/"
        for known in (self.seen, self.opened):
            for other in [o for o in known if o == path or o.startswith(below)]:
                del known[other]

    def _is_bucket(self, path: str) -> bool:
        return path.endswith(BUCKET) and path.count("/") == self.root.count("/") + 2

    def _count(self, path: str, stat: ZnodeStat) -> None:
        """As many creations below `path` as at the source: the next number is same."""
        theirs = self.target.exists(path)
        if theirs is None:
            return
        missing = creations(stat) - creations(theirs) - self._still_to_come(path)
        dummy = f"{path}/{uuid.uuid4().hex}"  # beside nodes of any name
        pair = [Create(dummy, b"", OPEN_ACL_UNSAFE, 0), Delete(dummy, -1)]
        while missing > 0:
            self._write(pair * min(missing, BATCH // 2))
            missing -= BATCH // 2

    def _still_to_come(self, path: str) -> int:
        """Children at the source that will yet be created at the target."""
        here = set(self.source.get_children(path))
        there = set(self.target.get_children(path))
        return len(here - there)

    def _write(self, operations: list[Any]) -> None:
        for start in range(0, len(operations), BATCH):
            result = self.target.handler.async_result()
            batch = tuple(operations[start : start + BATCH])
            self.target._call(Fenced(((self.root, self.fence),), batch), result)
            results_of(result.get())


def _hidden(path: str, what: str) -> Unmovable:
    return Unmovable(
        f"{shown(path)} {what}",
        "give `--auth SCHEME:CREDENTIAL` of somebody with READ and ADMIN there, or of"
        " the superuser",
    )


def creations(stat: ZnodeStat) -> int:
    """How many children were ever created: what a sequence number counts."""
    return int(stat.cversion + stat.numChildren) // 2


def version_of(client: KazooClient, shard: int) -> int | None:
    """The version of a shard's fence here, as the leader knows it."""
    root = fence(shard)
    client.sync(root)
    stat = client.exists(root)
    return None if stat is None else int(stat.version)
