"""Which shards stand still while a namespace is looked over, and where.

What: `Standing` notes where each shard is, and says of what has been read of one
whether its ensemble held it then.

Why it is exact: a fence only grows on its ensemble, and who moves a shard away sets it
first. The answers of a session go forward. So if a fence, read after something else of
its shard, has the version that it had when the table named that ensemble as the owner,
the shard was there, and not frozen, when that was read.

Must never: hold a shard for one that stands still because its fence is as it is now.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionClosedError, SessionExpiredError

from parkazoo.layout import fence
from parkazoo.mapping import EnsembleRemoved, Table
from parkazoo.seat import ADMIN, Seat

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# The version of a fence that is not there.
MISSING = -1


class Moved(Exception):
    """A shard, or its member, is not where it was any more: nothing is known of it."""


# What is met at a member that has been taken out meanwhile.
REMOVED = (Moved, EnsembleRemoved, ConnectionClosedError, SessionExpiredError)


class Standing:
    """`away`: ensembles that are not asked, because they cannot be reached."""

    def __init__(self, client: ParKazooClient, away: Set[str]) -> None:
        self.client = client
        self.away = away
        assert client.table is not None
        self.table = client.table
        # The version of each fence where its shard stands still.
        self.standing: dict[int, int] = {}

    def _at(self, name: str) -> Any:
        try:
            session = self.client._sessions.session(name)
        except KeyError:
            raise Moved from None
        self.client._sessions.wait(
            lambda: session.connected or session.refused is not None, 15
        )
        if session.refused is not None:
            raise session.refused
        return session

    def note(self) -> None:
        """Read the table anew, and note the fences of what does not move.

        One that has the same owner and fence in the tables from before and after its
        fence was read was there then; and is, while its fence stays as it was read:
        who moves it away sets that first. It may differ from what the table says.
        """
        before = self.now()
        versions: dict[int, int] = {}
        asked = []
        for shard, owner in enumerate(before.owners):
            if owner not in self.away:
                with suppress(*REMOVED):
                    session = self._at(owner)
                    asked.append((shard, session.exists_async(fence(shard))))
        for shard, result in asked:
            with suppress(*REMOVED):
                stat = result.get()
                versions[shard] = MISSING if stat is None else stat.version
        self.table = self.now()
        self.standing = {
            shard: version
            for shard, version in versions.items()
            if shard not in self.table.moving
            and self.table.owners[shard] == before.owners[shard]
            and self.table.fences[shard] == before.fences[shard]
        }

    def now(self) -> Table:
        """The table of now; without the seat, as our client knows it."""
        known = self.client.table
        assert known is not None
        return known if known.seat in self.away else Seat(self.client).table

    def still(self, shard: int) -> Any:
        """The session with who holds a shard, which held it whatever was read there.

        :raises Moved: it may not have.
        """
        session = self._at(self.table.owners[shard])
        stat = session.exists(fence(shard))
        version = MISSING if stat is None else stat.version
        if self.standing.get(shard) != version:
            raise Moved
        return session

    def at_work(self) -> bool:
        """Is somebody changing the table? What looks unfinished may be theirs."""
        try:
            return self._at(self.now().seat).exists(ADMIN) is not None
        except REMOVED:
            return True  # it was the seat a moment ago
