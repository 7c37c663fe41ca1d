"""Deleting a shard's nodes where it is not, or not yet, in use.

What: `clear` empties a shard at one ensemble, `erase` deletes a part of it.

Why not all of it can always be deleted: a server lets us only as far as the ACLs do.
Where we have ADMIN the ACL is opened to us first, or else the node stays: nobody sees
it, and the fence refuses whoever would write there.

Must never: delete at an ensemble that is not the one its session is named for, or
where the fence has changed; or let anybody in who had not had the right to come in.
"""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.serialization import Delete
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions

from parkazoo.errors import MoveFailed
from parkazoo.layout import IDENTITY, fence, shown
from parkazoo.rights import lets_everybody
from parkazoo.steps import MultiFailed
from parkazoo.wire import Fenced, ShardMoved, results_of

WINDOW = 200
# So many nodes are named in an error.
SHOWN = 3
_Check = tuple[str, int]


class NotCleared(MoveFailed):
    """Nodes that are of no use any more could not be deleted."""

    def __init__(self, name: str, nodes: list[str]) -> None:
        self.name = name
        self.nodes = list(dict.fromkeys(nodes))
        rest = f", and {len(self.nodes) - SHOWN} more" * (len(self.nodes) > SHOWN)
        super().__init__(
            f"{name} keeps an old copy of what is in {', '.join(self.nodes[:SHOWN])}"
            f"{rest}, which nobody uses: its ACL does not let whoever asks delete it."
            " Give `--auth SCHEME:CREDENTIAL` of somebody with DELETE or ADMIN there,"
            " of whoever moved it there, or of ZooKeeper's superuser"
        )


def overtaken(root: str) -> str:
    return f"somebody else has moved {root} meanwhile; try again"


def clear(client: Any, shard: int, word: bytes, version: int) -> int:
    """Delete all below a shard's fence here, if the fence still has `version`.

    The fence stays, with a new version, which is returned. It changes first: nobody
    may write there from then on.

    :raises MoveFailed: the fence has another version; nothing was deleted.
    :raises NotCleared: what our rights suffice for was deleted.
    """
    root = fence(shard)
    _refuse_another(client)
    try:
        now = int(client.set(root, word, version).version)
    except (BadVersionError, NoNodeError):
        raise MoveFailed(overtaken(root)) from None
    closed: list[str] = []
    for name in client.get_children(root):
        closed += _erase(client, f"{root}/{name}", (root, now), opening=True)
    if closed:
        raise NotCleared(client.name, [shown(path) for path in closed])
    return now


def _refuse_another(client: Any) -> None:
    """Were two members one ensemble, what is cleared at the one were the other's."""
    try:
        said = client.get(IDENTITY)[0].decode(errors="replace")
    except NoNodeError:
        said = "nobody"
    if said != client.name:
        raise MoveFailed(
            f"the ensemble that the table has as {client.name} says that it is {said},"
            " so nothing was cleared there. Do two members have the same servers?"
            " `parkazoo status` shows where they are, `parkazoo set-hosts` changes it"
        )


def erase(client: Any, top: str, check: _Check) -> None:
    """Delete a physical subtree; what is gone already is fine.

    Every deletion checks the fence (path, version): whoever was overtaken by
    another move of the shard deletes nothing of it.

    :raises MoveFailed: the fence has another version.
    :raises NotCleared: our rights do not suffice.
    """
    closed = _erase(client, top, check, opening=False)
    if closed:
        raise NotCleared(client.name, [shown(path) for path in closed])


def _erase(client: Any, top: str, check: _Check, opening: bool) -> list[str]:
    """Returns the nodes whose ACL keeps us from deleting what is below them."""
    tried: set[str] = set()
    while client.exists(top) is not None:
        found, unlisted = _below(client, top)
        closed = _delete(client, found, unlisted, check)
        opened = [
            path
            for path in sorted(closed - tried)
            if opening and _open_up(client, path, check)
        ]
        tried |= closed
        if closed and not opened:
            return sorted(closed)
    return []


def _below(client: Any, top: str) -> tuple[list[str], set[str]]:
    """A subtree, parents first, and those of it that we may not list."""
    found, level = [top], [top]
    unlisted: set[str] = set()
    while level:
        asked = [(path, client.get_children_async(path)) for path in level]
        level = []
        for path, names in asked:
            try:
                level += [f"{path}/{name}" for name in names.get()]
            except NoNodeError:
                continue
            except NoAuthError:
                unlisted.add(path)
        found += level
    return found, unlisted


def _delete(
    client: Any, found: list[str], unlisted: set[str], check: _Check
) -> set[str]:
    """Delete these, leaves first. Returns those whose ACL keeps us from it."""
    closed: set[str] = set()
    found = found[::-1]
    for start in range(0, len(found), WINDOW):
        sent = []
        for path in found[start : start + WINDOW]:
            result = client.handler.async_result()
            client._call(Fenced((check,), (Delete(path, -1),)), result)
            sent.append((path, result))
        for path, result in sent:
            try:
                results_of(result.get())
            except ShardMoved:
                raise MoveFailed(overtaken(check[0])) from None
            except MultiFailed as failed:
                if isinstance(failed.error, NoAuthError):
                    closed.add(path.rsplit("/", 1)[0])
                elif isinstance(failed.error, NotEmptyError):
                    closed |= {path} & unlisted
                elif not isinstance(failed.error, NoNodeError):
                    raise failed.error from None
    return closed


def _open_up(client: Any, path: str, check: _Check) -> bool:
    """Give ourselves every right there, if we have the right to do that.

    A server sets no ACL in a transaction, so the fence is checked before, and the
    version named. Should it come so late that the shard is in use there again, then
    somebody has one right more who could have taken it at any time.
    """
    try:
        acls, stat = client.get_acls(path)
        for also in (CREATOR_ALL_ACL, OPEN_ACL_UNSAFE):
            nobody = also is OPEN_ACL_UNSAFE
            if nobody and not lets_everybody(Permissions.ADMIN, acls):
                break
            unchanged(client, check)
            try:
                client.set_acls(path, [*acls, *also], stat.aversion)
                return True
            except InvalidACLError:
                continue  # we are nobody in particular
    except (BadVersionError, NoAuthError):
        pass
    except NoNodeError:
        return True
    return False


def unchanged(client: KazooClient, check: _Check) -> None:
    """
    :raises MoveFailed: the fence has another version.
    """
    result = client.handler.async_result()
    client._call(Fenced((check,), ()), result)
    try:
        results_of(result.get())
    except ShardMoved:
        raise MoveFailed(overtaken(check[0])) from None
