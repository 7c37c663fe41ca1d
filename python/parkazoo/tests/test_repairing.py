"""`check --repair` mends what it knows, and nothing by guess."""

from __future__ import annotations

from kazoo.security import make_acl, make_digest_acl

from conftest import Maker
from parkazoo import ParKazooClient
from parkazoo.check import Checker, Finding

OWNER = ("digest", "me:secret")
OWN = [
    make_digest_acl("me", "secret", all=True),
    make_acl("world", "anyone", read=True),
]


def test_an_acl_whose_digests_are_hidden_is_not_set_by_what_is_shown(
    make: Maker,
) -> None:
    """Its bucket was given to nobody: the owner could not create there, nor repair."""
    owner, anybody = make(auth_data=[OWNER]), make()
    owner.create("/d/x", makepath=True)
    table, node = owner.table, owner._layout.node("/d")
    assert table is not None
    # As a client that is killed between the two steps of `set_acls`.
    owner._sessions.session(table.owners[node.shard]).set_acls(node.path, OWN)

    def repair(client: ParKazooClient) -> list[Finding]:
        return list(Checker(client).run(repair=True))

    (found,) = repair(anybody)
    assert (found.kind, found.repaired, found.mendable) == ("acl", False, False)
    assert "--auth" in found.what
    (found,) = repair(owner)
    assert (found.kind, found.repaired) == ("acl", True)
    assert repair(owner) == repair(anybody) == []
    owner.create("/d/y")
