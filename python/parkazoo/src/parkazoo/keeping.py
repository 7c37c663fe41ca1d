"""The physical watches that outlive a dropped connection.

What: which of an ensemble client's watches somebody still waits for, and the requests
that leave those again on the next connection. The servers compare each with the last
transaction that was heard of, and tell what was missed.

Why: Kazoo forgets its watches with the connection and tells their users. Here one
connection of several may drop and come back without anybody being told.

Must never: leave a watch again as one of another kind. Of a node that is not there,
servers tell who waits for it to change that it was deleted; of one that is there, who
waits for it to be made, that it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from parkazoo.wire import SetWatches

# Paths of watches that are left again by one request: servers take a megabyte.
WATCHES_BYTES_MAX = 128 * 1024
_LENGTH_BYTES = 4
_DATA, _ABSENT, _CHILDREN = range(3)


class Left(set[Any]):
    """Watches that were left at one node. `absent`: it was not there, for all of them:
    had it been made or deleted between two of them, the first would have been told."""

    absent = False


def kept(before: Mapping[str, Any]) -> defaultdict[str, Left]:
    """Those by path that somebody waits for."""
    after = defaultdict(Left)
    for path, watchers in before.items():
        if wanted := Left(w for w in watchers if _is_wanted(w)):
            wanted.absent = watchers.absent
            after[path] = wanted
    return after


def _is_wanted(watcher: Any) -> bool:
    """Does a user wait for this? The table's copy is read on each connection anyway."""
    wanted = getattr(watcher, "wanted", None)
    return wanted is not None and bool(wanted())


def left_again(
    zxid: int, data: Mapping[str, Left], children: Mapping[str, Left]
) -> Iterator[SetWatches]:
    """Requests that leave these watches, with what happened after `zxid`."""
    kinds = [(p, _ABSENT if left.absent else _DATA) for p, left in data.items()]
    kinds += [(path, _CHILDREN) for path in children]
    paths: tuple[list[str], list[str], list[str]] = [], [], []
    size = 0
    for path, kind in kinds:
        paths[kind].append(path)
        size += len(path.encode()) + _LENGTH_BYTES
        if size > WATCHES_BYTES_MAX:
            yield SetWatches(zxid, *paths)
            paths, size = ([], [], []), 0
    if size:
        yield SetWatches(zxid, *paths)
