"""`check --repair` mends what it knows, and nothing by guess."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NotEmptyError
from kazoo.security import make_acl, make_digest_acl

from conftest import Maker
from parkazoo import ParKazooClient, cli
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


def home_of(client: ParKazooClient, path: str) -> tuple[Any, str]:
    table, node = client.table, client._layout.node(path)
    assert table is not None
    return client._sessions.session(table.owners[node.shard]), node.path


def forget(client: ParKazooClient, path: str, whole: bool) -> None:
    """As an older backup of a directory's ensemble: its first child came later, or
    the whole directory."""
    session, place = home_of(client, path)
    for link in session.get_children(place):
        session.delete(f"{place}/{link}")
    if whole:
        session.delete(place)


def kinds(client: ParKazooClient, **how: bool) -> list[tuple[str, str, bool]]:
    return [(f.kind, f.where, f.repaired) for f in Checker(client).run(**how)]


def test_a_directory_that_forgot_its_children_is_given_them_back(make: Maker) -> None:
    """They were taken for orphans, and deleted as such, although everybody saw them."""
    client = make()
    for name in "abc":
        client.create(f"/d/{name}", b"acknowledged", makepath=True)
    forget(client, "/d", whole=False)
    assert kinds(client) == [("link", "/d", False)]
    assert kinds(client, repair=True, delete_orphans=True) == [("link", "/d", True)]
    assert kinds(client) == []
    stat = client.exists("/d")
    assert stat is not None and stat.numChildren == 3
    with pytest.raises(NotEmptyError):
        client.delete("/d")
    client.delete("/d", recursive=True)
    assert kinds(client) == []


def test_what_is_newer_than_its_directorys_backup_can_be_kept(
    make: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    client = make()
    for path in ("/kept/x", "/dropped/x"):
        client.create(path, b"acknowledged", makepath=True)
        forget(client, path.rpartition("/")[0], whole=True)
    hosts = ["--hosts", ";".join(client.bootstrap)]
    assert cli.main([*hosts, "check", "--repair"]) == 1
    said = capsys.readouterr().out
    assert "orphan" in said and "make their directories again" in said
    assert "next: `parkazoo check --repair`" not in said
    client.ensure_path("/kept")
    found = kinds(client, repair=True, delete_orphans=True)
    assert sorted(found) == [("link", "/kept", True), ("orphan", "/dropped", True)]
    assert client.get("/kept/x")[0] == b"acknowledged"
    stat = client.exists("/kept")
    assert stat is not None and stat.numChildren == 1
    assert kinds(client) == []
    assert sorted(client.get_children("/")) == ["kept", "zookeeper"]


def test_a_directory_that_goes_while_it_is_looked_at_is_not_found(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` ended with NoNodeError."""
    client, other = make(), make()
    client.create("/d/k", makepath=True)
    checker = Checker(other)
    bucket = checker.layout.buckets("/d")[0]
    session = checker._at(checker.table.owners[bucket.shard])
    listing = session.get_children

    def late(path: str, *rest: Any, **named: Any) -> Any:
        if path == bucket.path:
            client.delete("/d", recursive=True)
        return listing(path, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(session, "get_children", late)
        assert list(checker.run()) == []


def test_what_was_deleted_is_not_called_repaired(
    make: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    client = make()
    for path in "/lost/x", "/knows/not":
        client.create(path, makepath=True)
    forget(client, "/lost", whole=True)
    forget(client, "/knows", whole=False)
    command = ["--hosts", ";".join(client.bootstrap), "check"]
    assert cli.main(command) == 1
    assert "2 found\nnext: `parkazoo check --repair`" in capsys.readouterr().out
    assert cli.main([*command, "--repair", "--delete-orphans"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ended = {line.split()[0]: line.split()[-1] for line in lines[:-1]}
    assert ended == {"link": "(repaired)", "orphan": "(deleted)"}
    assert lines[-1] in {
        "2 found, 1 repaired, 1 deleted",
        "2 found, 1 deleted, 1 repaired",
    }
    assert cli.main(command) == 0 and "nothing wrong" in capsys.readouterr().out


def test_a_directory_that_comes_back_is_no_orphan(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bucket was read before it went, and its node before it was back: so its new
    child was deleted as an orphan's."""
    client, other = make(), make()
    client.create("/d/k", makepath=True)
    checker = Checker(other)
    node, bucket = checker.layout.node("/d"), checker.layout.buckets("/d")[0]
    at_home = checker._at(checker.table.owners[node.shard])
    exists, sync, looks = at_home.exists, at_home.sync, []

    def sync_late(path: str) -> Any:
        if path == node.path:
            client.delete("/d", recursive=True)
        return sync(path)

    def exists_early(path: str, *rest: Any) -> Any:
        found = exists(path, *rest)
        if path == node.path:
            looks.append(found)
            client.create("/d/k", b"acknowledged", makepath=True)
        return found

    anchor = bucket.anchor.rsplit("/", 1)[1]
    checker.note()
    with monkeypatch.context() as patched:
        patched.setattr(at_home, "sync", sync_late)
        patched.setattr(at_home, "exists", exists_early)
        assert list(checker._shard(bucket.shard, [anchor], True, True, [])) == []
    assert looks and None in looks
    assert client.get("/d/k")[0] == b"acknowledged"
