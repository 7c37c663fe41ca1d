"""What ACLs let whoever moves a shard do, and what opens a node to them meanwhile.

What: knows an ACL that is hidden, or lets everybody do everything; asks a server
whether an ACL would keep us from copying; and has the entry by which a copy that is
on its way is open to us.

Why ask: whom a server takes us for is its to say (an address, a certificate). So it
is asked to do all of it in one transaction that it refuses at the end.

Must never: let anybody read what they could not read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import InvalidACLError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    Permissions,
    make_acl,
)

from parkazoo.steps import MultiFailed
from parkazoo.wire import Fenced, results_of

PROBE = "%probe"
# For who is nobody in particular, where everybody may read.
_EVERYBODY = [
    make_acl("world", "anyone", create=True, delete=True, write=True, admin=True)
]


def is_hidden(acls: Any) -> bool:
    """Did the server blot out digests, as for everybody without ADMIN?"""
    return any(a.id.scheme == "digest" and a.id.id.endswith(":x") for a in acls)


def is_open(acls: Any) -> bool:
    """Does it let everybody do everything?"""
    return OPEN_ACL_UNSAFE[0] in acls


def lets_everybody(permission: int, acls: Any) -> bool:
    everybody = OPEN_ACL_UNSAFE[0].id
    return any(acl.id == everybody and acl.perms & permission for acl in acls)


class Rights:
    """Ours at one ensemble, below a fence (path, version) that says what is ours."""

    def __init__(self, client: KazooClient, check: tuple[str, int]) -> None:
        self.client, self.check = client, check
        self.refusal = cache(self._refusal)

    def enough(self, acls: Any, written: bool, filled: bool) -> bool:
        """May we read a node with this ACL, write to it, and fill it?

        :raises InvalidACLError: the servers know no such ACL.
        """
        refusal = self.refusal(tuple(acls), written, filled)
        if isinstance(refusal, InvalidACLError):
            raise refusal
        return refusal is None

    def opened(self, acls: Any) -> list[Any]:
        """An ACL with an entry that lets us in: as who we are, if we are anybody."""
        if self.refusal(tuple(CREATOR_ALL_ACL), False, False) is None:
            return [*acls, *CREATOR_ALL_ACL]
        if lets_everybody(Permissions.READ, acls):
            return [*acls, *_EVERYBODY]
        return list(acls)

    def _refusal(
        self, acls: tuple[Any, ...], written: bool, filled: bool
    ) -> Exception | None:
        """Why it would not be done; None if it would. Nothing is."""
        probe = f"{self.check[0]}/{PROBE}"
        below = f"{probe}/{PROBE}"
        steps: list[Any] = [
            Create(probe, b"", list(acls), 0),
            CheckVersion(probe, 0),  # which is a read
        ]
        if written:
            steps += [SetData(probe, b"", 0)]
        if filled:
            steps += [Create(below, b"", OPEN_ACL_UNSAFE, 0), Delete(below, -1)]
        steps.append(Delete(below, -1))
        result = self.client.handler.async_result()
        self.client._call(Fenced((self.check,), tuple(steps)), result)
        try:
            results_of(result.get())
        except MultiFailed as refused:
            return None if refused.index == len(steps) - 1 else refused.error
        raise AssertionError("what is not there was deleted")
