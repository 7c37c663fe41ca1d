"""Ephemerals of a shard that moves: re-created by their owners, nobody else can.

What: when the table says that a shard is frozen on its way to another ensemble,
every client looks which ephemerals its session owns there and creates the same
nodes, by the same names, in its session at the target. Whoever moves the shard
waits for that before the shard may be used at its new place.

Why: an ephemeral belongs to a session, and a session to one ensemble. A lock held
during a move stays held: until the switch by the old node, after it by the new
one, and no one can write in between.

Must never: create one that is not there any more, or after the move was given up:
each creation checks the target's fence, which says "incoming" only during a move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import (
    InvalidACLError,
    KazooException,
    NodeExistsError,
    NoNodeError,
)
from kazoo.protocol.serialization import (
    Create,
    SetData,
    int_struct,
    read_string,
    write_string,
)
from kazoo.security import CREATOR_ALL_ACL, make_acl

from parkazoo import failpoints
from parkazoo.copying import INCOMING
from parkazoo.layout import CLAIM, fence
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
                self._create(old, new, path, (root, stat.version))

    def _create(
        self, old: EnsembleClient, new: EnsembleClient, path: str, check: _Check
    ) -> None:
        there, stat = new.exists(path), old.exists(path)
        if stat is None or (there is not None and there.aversion >= stat.aversion):
            return
        try:
            data, stat = old.get(path)
            acls, _ = old.get_acls(path)
        except NoNodeError:
            return
        if there is None:
            for also in _OWNER if stat.aversion else ([],):
                try:
                    create = Create(path, data, [*acls, *also], EPHEMERAL)
                    self._create_at(new, create, stat.version, check)
                    break
                except InvalidACLError:
                    continue  # we are nobody in particular
        done = there.aversion if there is not None else 0
        if done < stat.aversion:
            for_now, _ = new.get_acls(path)
            for aversion in range(done, stat.aversion):
                last = aversion == stat.aversion - 1
                new.set_acls(path, acls if last else for_now, aversion)

    @staticmethod
    def _create_at(
        new: EnsembleClient, create: Create, version: int, check: _Check
    ) -> None:
        path, data = create.path, create.data
        sets = [SetData(path, b"", -1)] * (version - 1)
        if version:
            create = create._replace(data=b"")
            sets.append(SetData(path, data, -1))
        failpoints.reached("adopt.1.create", failpoints.BEFORE)
        try:
            results_of(ask(new, Fenced((check,), (create, *sets))))
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExistsError):
                raise failed.error from None
        failpoints.reached("adopt.1.create", failpoints.AFTER)
