"""Ephemerals of a shard that moves: re-created by their owners, nobody else can.

What: when the table says that a shard is frozen on its way to another ensemble,
every client looks which ephemerals its session owns there and creates the same
nodes, by the same names, in its session at the target. Whoever moves the shard
waits for that before the shard may be used at its new place.

Why: an ephemeral belongs to a session, and a session to one ensemble. A lock held
during a move stays held: until the switch by the old node, after it by the new
one, and no one can write in between.

Must never: create one that is not there any more, or after the move was given up:
each creation checks the target's fence, which says "incoming" only during a move; or
with an ACL that is not its own, because a server hides digests from who has no ADMIN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import (
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
)
from kazoo.protocol.serialization import (
    Create,
    SetData,
    int_struct,
    read_string,
    write_string,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, make_acl

from parkazoo import failpoints
from parkazoo.copying import BATCH, INCOMING
from parkazoo.layout import CLAIM, fence
from parkazoo.rights import is_hidden
from parkazoo.steps import EPHEMERAL, MultiFailed
from parkazoo.wire import Fenced, ShardMoved, results_of

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient
    from parkazoo.ensemble import EnsembleClient

LOOK_SECONDS = 0.05
# An ACL's version only grows by setting one, which no multi does, and the last may
# leave nobody the right to. Until then its owner has that, as far as a server can
# tell who that is. The switch waits for the last.
_OWNER = (CREATOR_ALL_ACL, [make_acl("world", "anyone", admin=True)])
_Check = tuple[str, int]


class GetEphemerals(NamedTuple):
    """The paths of the ephemerals of this session below a prefix."""

    prefix: str

    @property
    def type(self) -> int:
        return 103

    def serialize(self) -> Any:
        return write_string(self.prefix)

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[str]:
        count = int_struct.unpack_from(buffer, offset)[0]
        offset += int_struct.size
        paths: list[str] = []
        for _ in range(count):
            path, offset = read_string(buffer, offset)
            paths.append(path)
        return paths


def ask(client: Any, request: Any) -> Any:
    result = client.handler.async_result()
    client._call(request, result)
    return result.get()


class Adopting:
    """One routine per client, running only while shards are frozen."""

    def __init__(self, client: ParKazooClient) -> None:
        self.client = client
        self.lock = client.handler.lock_object()
        self.running = False
        self.told: set[str] = set()

    def look(self) -> None:
        """The table has shards that are frozen: see to our ephemerals there."""
        with self.lock:
            if self.running:
                return
            self.running = True
        self.client.handler.spawn(self._routine)

    def _routine(self) -> None:
        sessions = self.client._sessions
        while True:
            with self.lock:
                table = sessions.table
                if table is None or not table.moving or not sessions.running:
                    self.running = False
                    self.told.clear()
                    return
            for shard, target in table.moving.items():
                try:
                    self._bring(shard, table.owners[shard], target)
                except (KazooException, KeyError, ShardMoved, MultiFailed) as error:
                    # A KeyError: the target has left the namespace since.
                    self.client.logger.debug("ephemerals not moved yet: %r", error)
            self.client.handler.sleep_func(LOOK_SECONDS)

    def _bring(self, shard: int, source: str, target: str) -> None:
        old = self.client._sessions.by_name.get(source)
        new = self.client._sessions.session(target)
        if old is None or not (old.connected and new.connected):
            return
        root = fence(shard)
        paths = ask(old, GetEphemerals(root))
        if not paths:
            return
        word, stat = new.get(root)
        if word != INCOMING:
            return
        for path in paths:
            is_claim = path.rsplit("/", 1)[1].startswith(CLAIM[1:])
            if not (is_claim and path.count("/") == root.count("/") + 2):
                try:
                    self._create(old, new, path, (root, stat.version))
                except NoAuthError:
                    self._tell(path, "its ACL does not let us read or write it")

    def _create(
        self, old: EnsembleClient, new: EnsembleClient, path: str, check: _Check
    ) -> None:
        there, stat = new.exists(path), old.exists(path)
        if stat is None or (there is not None and has_caught_up(there, stat)):
            return
        if there is not None and not there.ephemeralOwner:
            return  # of a node that had this name: the mover takes it away
        try:
            data, stat = old.get(path)
            acls, _ = old.get_acls(path)
        except NoNodeError:
            return
        if is_hidden(acls):
            self._tell(path, "its ACL is hidden from us, who have no ADMIN there")
            return
        steps = self._steps(Create(path, data, acls, EPHEMERAL), stat.version)
        if there is None:
            for also in _OWNER if stat.aversion else ([],):
                try:
                    first = steps[0][0]._replace(acl=[*acls, *also])
                    self._write(new, (first, *steps[0][1:]), check)
                    break
                except InvalidACLError:
                    continue  # we are nobody in particular
            steps = steps[1:]
        elif there.version < stat.version:
            missing = [step for batch in steps for step in batch][1 + there.version :]
            steps = _batches(missing)
        else:
            steps = []
        for batch in steps:
            self._write(new, batch, check)
        done = there.aversion if there is not None else 0
        if done < stat.aversion:
            for_now, _ = new.get_acls(path)
            for aversion in range(done, stat.aversion):
                last = aversion == stat.aversion - 1
                new.set_acls(path, acls if last else for_now, aversion)

    @staticmethod
    def _steps(create: Create, version: int) -> list[tuple[Any, ...]]:
        """What makes a node of this version, in transactions that a server takes."""
        if not version:
            return [(create,)]
        path, data = create.path, create.data
        sets = [SetData(path, b"", number) for number in range(version - 1)]
        sets.append(SetData(path, data, version - 1))
        return _batches([create._replace(data=b""), *sets])

    @staticmethod
    def _write(new: EnsembleClient, batch: tuple[Any, ...], check: _Check) -> None:
        failpoints.reached("adopt.1.create", failpoints.BEFORE)
        try:
            results_of(ask(new, Fenced((check,), batch)))
        except MultiFailed as failed:
            raise failed.error from None
        failpoints.reached("adopt.1.create", failpoints.AFTER)

    def _tell(self, path: str, why: str) -> None:
        """Whoever moves the shard gives up; here stands why. Once for each node."""
        if path not in self.told:
            self.told.add(path)
            self.client.logger.error(
                "the ephemeral %s cannot be made anew where its shard is to move: %s",
                path,
                why,
            )


def _batches(steps: list[Any]) -> list[tuple[Any, ...]]:
    """The last one is by itself: it has the data, which may be nearly a packet."""
    rest = steps[:-1]
    batches = [tuple(rest[n : n + BATCH]) for n in range(0, len(rest), BATCH)]
    return [*batches, (steps[-1],)]


def has_caught_up(there: ZnodeStat, here: ZnodeStat) -> bool:
    """Has a copy all versions of the ephemeral that it is one of?"""
    same = there.version >= here.version and there.aversion >= here.aversion
    return bool(same and there.ephemeralOwner)
