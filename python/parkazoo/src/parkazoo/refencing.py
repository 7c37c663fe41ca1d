"""Fences at another version than the table names: found, and raised where that is safe.

What: looks at a shard's fence, at its owner, between two readings of the table, and
gives it, and the table, a version that no table has named before.

Why: an older backup of one ensemble brings its fences of then back, and those of the
shards that have been away since are behind the table. Every write to them waits for a
move that nobody is making.

Why a new version is safe: whoever writes there from then on has read the table that
names it. Should we die between the two writes, the fence is ahead of the table, which
is mended in the same way.

Must never: give a fence a version that it had before; or let writes in where the fence
says that its owner did not hold the shard, whole: what it held would look deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kazoo.exceptions import NoNodeError

from parkazoo import failpoints
from parkazoo.clearing import overtaken
from parkazoo.copying import ACTIVE, BATCH, FROZEN
from parkazoo.errors import MoveFailed
from parkazoo.layout import fence
from parkazoo.mapping import Table
from parkazoo.move import Mover

# What a fence says where a shard was made, is used, or is about to leave.
WHOLE = (b"", ACTIVE, FROZEN)


@dataclass(frozen=True)
class Astray:
    """A shard's fence that has version `found` at its owner, not `wanted`."""

    shard: int
    owner: str
    found: int
    wanted: int
    word: bytes

    @property
    def mendable(self) -> bool:
        """Did its owner hold the shard, whole, when the fence was set?

        One that is ahead has left since the table was written, if it says so.
        """
        held = self.word in WHOLE if self.found < self.wanted else self.word == ACTIVE
        return held and self.missing <= BATCH

    @property
    def missing(self) -> int:
        """How often it is set to have a version that no table has named."""
        return max(self.found, self.wanted) + 1 - self.found

    @property
    def what(self) -> str:
        word = self.word.decode(errors="replace") or "new"
        return (
            f"at version {self.found} ({word}) on {self.owner}, and the table says"
            f" {self.wanted}, so it takes no writes: was an older backup brought back"
            " there? "
        ) + (
            "With --repair it takes them again, and has what that ensemble has of it"
            if self.mendable
            else "What the shard held is not in it. Bring back a backup that was made"
            " when the shard was there, as it is now"
        )


def look(mover: Mover, shard: int) -> Astray | None:
    """Is its fence astray? Not while it moves, or has none at its owner."""
    while True:
        table = mover.table
        owner, wanted = table.owners[shard], table.fences[shard]
        if _moves(table, shard):
            return None
        session = mover._at(owner)
        session.sync(fence(shard))
        try:
            word, stat = session.get(fence(shard))
        except NoNodeError:
            return None
        after = mover.table
        if _moves(after, shard):
            return None
        if (after.owners[shard], after.fences[shard]) == (owner, wanted):
            found = int(stat.version)
            if found == wanted:
                return None
            return Astray(shard, owner, found, wanted, word)


def _moves(table: Table, shard: int) -> bool:
    return shard in table.moving or shard in table.planned


def settle(
    mover: Mover, shards: list[int], repair: bool
) -> tuple[list[Astray], list[int], str]:
    """Those that are astray, which of them were mended, and why no other was."""
    found = [each for shard in shards if (each := look(mover, shard)) is not None]
    if not repair or not any(each.mendable for each in found):
        return found, [], ""
    try:
        return found, mend(mover, [each.shard for each in found]), ""
    except MoveFailed as why:
        return found, [], f"; {why}"


def mend(mover: Mover, shards: list[int]) -> list[int]:
    """Raise the fences of those that are astray and were whole; returns which.

    :raises MoveFailed: somebody else is at it, or has been meanwhile.
    """
    with mover.alone():
        mover._recover()
        found = [look(mover, shard) for shard in shards]
        astray = [each for each in found if each is not None and each.mendable]
        table = mover.table
        for each in astray:
            change = mover._at(each.owner).transaction()
            for version in range(each.found, each.found + each.missing):
                change.set_data(fence(each.shard), ACTIVE, version)
            if any(isinstance(result, Exception) for result in change.commit()):
                raise MoveFailed(overtaken(fence(each.shard)))
            failpoints.reached("refence.1.raised", failpoints.AFTER)
            version = each.found + each.missing
            table = table.with_owner(each.shard, each.owner, version)
        if astray:
            mover.publish(table)
        return [each.shard for each in astray]
