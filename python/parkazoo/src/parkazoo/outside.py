"""What plain Kazoo goes on writing beside a namespace that was made of its data.

What: an import leaves the originals where they are. A program that was left on plain
Kazoo still writes to them, and nobody in the namespace sees it. The end of an import is
noted on each ensemble, so that what was created or set there since can be told.

Why not fenced: the originals are what one goes back to, so nothing there is changed,
not even an ACL.

Must never: take a deletion for a write. Ephemerals of programs that were stopped go
after the import, by themselves; so a program that only deletes is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo.layout import BASE, IMPORTED, SYSTEM
from parkazoo.standing import REMOVED, Standing

# Nodes asked for at once.
WINDOW = 256
WHY = (
    "written since the import by a program that still uses plain Kazoo; programs of the"
    " namespace do not see it. Change that program over"
)


def note_import(sources: Iterable[Any]) -> None:
    """What is written from now on beside the namespace comes too late for it."""
    for source in sources:
        try:
            source.create(IMPORTED, acl=OPEN_ACL_UNSAFE)
        except NodeExistsError:
            source.set(IMPORTED, b"")


def found(standing: Standing) -> Iterator[str]:
    """What was written at any member, each with the member's name before its path."""
    for name in sorted(set(standing.table.ensembles) - standing.away):
        with suppress(*REMOVED):
            yield from (f"{name}:{path}" for path in _written(standing._at(name)))


def _written(session: Any) -> Iterator[str]:
    """Paths beside the namespace that were created or set since an import ended."""
    try:
        since = session.get(IMPORTED)[1].mzxid
    except NoNodeError:
        return
    names = set(session.get_children("/")) - {SYSTEM[1:], BASE[1:]}
    left = [f"/{name}" for name in sorted(names, reverse=True)]
    while left:
        level = [left.pop() for _ in range(min(WINDOW, len(left)))]
        asked = [
            (path, session.exists_async(path), session.get_children_async(path))
            for path in level
        ]
        for path, there, listed in asked:
            stat = there.get()
            if stat is not None and max(stat.czxid, stat.mzxid) > since:
                yield path
            with suppress(NoNodeError, NoAuthError):
                left += [f"{path}/{name}" for name in listed.get()]
