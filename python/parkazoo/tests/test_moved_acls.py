"""Nodes that few may read, fill or change move all the same, and are the same there.

For each kind of ACL: `add-ensemble` and `remove-ensemble` by somebody who has the
rights that the documentation asks for, with every node, its data, ACL and versions
compared before and after, and what the mover may not delete named.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.protocol.serialization import SetACL
from kazoo.security import (
    ACL,
    OPEN_ACL_UNSAFE,
    Id,
    make_acl,
    make_digest_acl,
)

from conftest import EnsembleFactory, started
from parkazoo import MoveFailed, ParKazooClient, cli, copying, failpoints
from parkazoo.check import Checker
from parkazoo.clearing import unchanged
from parkazoo.copying import Copier
from parkazoo.failpoints import AFTER
from parkazoo.layout import IDENTITY
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, SUPERUSER, wait_until
from test_client import Maker
from test_moves import elsewhere

ME, BOSS = ("digest", "me:pw"), ("digest", "boss:pw")
SEALED = [make_acl("world", "anyone", read=True)]
APPEND = [make_acl("world", "anyone", read=True, create=True)]
NO_ADMIN = [make_acl("world", "anyone", read=True, write=True, create=True)]
OWNED = [
    make_digest_acl("me", "pw", all=True),
    make_digest_acl("boss", "pw", read=True, admin=True),
]
HERE = [make_acl("ip", "127.0.0.1", all=True)]
AUTH = [ACL(31, Id("auth", ""))]
NOBODY = [make_digest_acl("nobody", "knows", read=True)]
# Who moves, and what they may read, and the ACL of, as the documentation asks for.
KINDS: dict[str, tuple[list[str], dict[str, list[ACL]]]] = {
    "nobody": (
        [],
        {"sealed": SEALED, "append": APPEND, "no-admin": NO_ADMIN, "here": HERE},
    ),
    "boss": (["--auth", ":".join(BOSS)], {"owned": OWNED, "sealed": SEALED}),
    "me": (["--auth", ":".join(ME)], {"auth": AUTH, "append": APPEND}),
    "super": (
        ["--auth", ":".join(SUPERUSER)],
        {"nobody": NOBODY, "sealed": SEALED, "owned": OWNED, "auth": AUTH},
    ),
}
# The last one's version stays 0 unless the mover could not have filled the directory.
WAYS = ("set", "set twice", "given")


def fill(client: ParKazooClient, kind: str, acls: list[ACL]) -> Iterator[str]:
    """Directories with this ACL, and nodes in them with it, in three ways."""
    for way in WAYS:
        top = f"/{kind} {way}"
        given = way == "given"
        client.create(top, b"top", acl=acls if given else None)
        client.create(f"{top}/leaf", b"leaf", acl=acls if given else None)
        client.create(f"{top}/written", b"1")
        for number in range(3):
            client.set(f"{top}/written", f"{number}".encode())
        client.create(f"{top}/dir/x", b"x", makepath=True)
        for _ in range(5):
            client.create(f"{top}/s-", sequence=True)
        # With this ACL from the start: an import, or a superuser's work.
        paths = [f"{top}/leaf", f"{top}/written", f"{top}/dir", top]
        for _ in range({"set": 1, "set twice": 2, "given": 0}[way]):
            for path in paths:
                client.set_acls(path, acls)
        yield from (*paths, f"{top}/dir/x", f"{top}/s-0000000003")


def state(client: ParKazooClient, paths: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in paths:
        data, stat = client.get(path)
        acls, _ = client.get_acls(path)
        names = sorted(client.get_children(path))
        versions = stat.version, stat.cversion, stat.numChildren, stat.aversion
        found[path] = data, names, sorted(acls), versions
    return found


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for path, (*what, versions) in before.items():
        *now, these = after[path]
        assert now == what, path
        assert these[:3] == versions[:3], path
        # See `docs/guarantees.md`: a version 0 may have become 1.
        assert these[3] == versions[3] or (versions[3], these[3]) == (0, 1), path
        if path.endswith("/leaf"):
            assert these[3] == versions[3], path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([*words])
    return (code, *capsys.readouterr())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("who", list(KINDS))
def test_nodes_of_every_acl_move_and_are_the_same(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str], who: str
) -> None:
    one, two = (ensemble.hosts for ensemble in ensembles(2))
    auth, kinds = KINDS[who]
    with started(one, auth_data=[ME, SUPERUSER]) as client:
        paths = [p for kind, acls in kinds.items() for p in fill(client, kind, acls)]
        before = state(client, paths)
        code, out, err = run(capsys, "--hosts", one, *auth, "add-ensemble", two)
        assert code == 0, err
        same(before, state(client, paths))
        buckets = [f for f in Checker(client).run() if f.kind != "leftover"]
        assert buckets == [], "every bucket has its directory's ACL"
        code, out, err = run(capsys, "--hosts", one, *auth, "--json", "check")
        found = json.loads(out)
        assert {f["kind"] for f in found} <= {"leftover"} and code == bool(found)
        code, out, err = run(
            capsys, "--hosts", one, *auth, "--json", "check", "--repair"
        )
        assert all("superuser" in f["what"] for f in json.loads(out) if code)
        code, out, err = run(
            capsys, "--hosts", one, *auth, "--json", "remove-ensemble", "e0"
        )
        assert code == 0, err
        left = json.loads(out)["left"]
        assert (who != "nobody") or "/sealed set" in left["e0"]
        assert bool(left) == ("superuser" in err)
        assert set(left) <= {"e0"} and not (who == "super" and left)
        same(before, state(client, paths))
        for kind in kinds:
            for way in WAYS:
                numbered = client.create(f"/{kind} {way}/s-", sequence=True)
                assert numbered.endswith("-0000000008"), numbered
    with started(two) as stranger:
        assert list(stranger.table.ensembles) == ["e1"]  # type: ignore[union-attr]
        for kind in set(kinds) - {"here"}:
            for way in WAYS:
                with pytest.raises(NoAuthError):
                    stranger.set_acls(f"/{kind} {way}", SEALED)
                with pytest.raises(NoAuthError):
                    stranger.delete(f"/{kind} {way}/leaf")


def test_who_may_not_read_a_node_hears_which(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (ensemble.hosts for ensemble in ensembles(2))
    with started(one, auth_data=[SUPERUSER]) as client:
        client.create("/closed", acl=NOBODY)
        client.create("/closed/x")
    assert run(capsys, "--hosts", one, "add-ensemble", two, "--no-rebalance")[0] == 0
    code, _, err = run(capsys, "--hosts", one, "remove-ensemble", "e0")
    assert code == 2 and "/closed" in err and "superuser" in err
    assert "Traceback" not in err


def test_an_append_only_directory_leaves_copies_that_check_shows_and_goes_on(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each batch with one failed when it was over, and `check --repair` ended at the
    first of what was left."""
    one, two = (ensemble.hosts for ensemble in ensembles(2))
    names = [f"/log{n}" for n in range(6)]
    with started(one) as client:
        for name in names:
            client.create(name, acl=APPEND)
            client.create(f"{name}/a", b"1")
    at = ["--hosts", one]
    code, _, err = run(capsys, *at, "add-ensemble", two)
    assert code == 0 and "/log" in err and "superuser" in err
    code, out, _ = run(capsys, *at, "check", "--repair")
    assert code == 1
    lines = [line for line in out.splitlines() if line.startswith("leftover")]
    assert len(lines) > 1
    assert all("/log" in line and "superuser" in line for line in lines)
    assert run(capsys, *at, "rebalance")[0] == 0
    # It would come back to where the old copy stands.
    code, _, err = run(capsys, *at, "remove-ensemble", "e1")
    assert code == 2 and "e0 keeps an old copy of what is in /log" in err
    boss = [*at, "--auth", ":".join(SUPERUSER)]
    assert run(capsys, *boss, "check", "--repair")[0] == 0
    assert run(capsys, *boss, "check")[0] == 0
    assert run(capsys, *at, "remove-ensemble", "e1")[0] == 0
    with started(one) as client:
        assert [client.get(f"{name}/a")[0] for name in names] == [b"1"] * 6


class Died(BaseException):
    """What a kill is to the tests of one process."""


@pytest.mark.parametrize("label", ["move.2.copy", "move.4.copy", "move.4.close"])
def test_a_move_of_a_sealed_directory_that_died_is_undone(
    make: Maker, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    client, other = make(), make()
    client.create("/sealed/x", b"1", makepath=True)
    client.create("/sealed/e", ephemeral=True)
    client.set_acls("/sealed", SEALED)
    shard = client._layout.node("/sealed/x").shard
    moves = {shard: elsewhere(client, "/sealed/x")[shard]}

    def die(reached: str, when: str) -> None:
        if (reached, when) == (label, AFTER):
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", die)
        with pytest.raises(Died):
            Mover(client, ephemeral_seconds=30).move(moves)
    mover = Mover(other)
    assert mover.abort() == sorted(moves)
    closed = label == "move.4.close"
    assert bool(mover.left) == closed
    assert other.get_acls("/sealed")[0] == SEALED
    with pytest.raises(NoAuthError):
        other.create("/sealed/y")
    if closed:
        with pytest.raises(MoveFailed, match=r"keeps an old copy .*/sealed"):
            mover.move(moves)
        admin = make(auth_data=[SUPERUSER])
        assert not [f for f in Checker(admin).run(repair=True) if not f.repaired]
    mover.move(moves)
    assert other.get("/sealed/x")[0] == b"1"
    assert other.get_acls("/sealed")[0] == SEALED
    assert other.get_acls("/sealed")[1].aversion == 1
    assert other.exists("/sealed/e") is not None
    with pytest.raises(NoAuthError):
        other.create("/sealed/y")


def test_a_copy_is_closed_to_who_could_read_its_original_no_more(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ACL changes while the shard is copied, before what is to be kept secret."""
    client = make(auth_data=[ME])
    for kind in ("open", "sealed"):
        client.create(f"/d/{kind}", b"old", makepath=True)
        client.create(f"/d/{kind}/x")
    client.set_acls("/d/sealed", [*SEALED, *OWNED])
    seen: list[Any] = []
    shard = client._layout.node("/d/open").shard
    moves = {s: to for s, to in elsewhere(client, "/d/open").items() if s == shard}

    def hook(label: str, when: str) -> None:
        if label == "move.2.copy":
            for kind in ("open", "sealed"):
                client.set_acls(f"/d/{kind}", OWNED)
                client.set(f"/d/{kind}", b"secret")
        if label == "move.4.copy":
            target = client._sessions.by_name[moves[shard]]
            for kind in ("open", "sealed"):
                path = client._layout.node(f"/d/{kind}").path
                seen.append((target.get(path)[0], target.get_acls(path)[0]))

    monkeypatch.setattr(failpoints, "hook", hook)
    Mover(client).move(moves)
    assert len(seen) == 2
    for data, acls in seen:
        assert data == b"secret"
        assert not any(acl.id.scheme == "world" for acl in acls)
    for kind in ("open", "sealed"):
        acls, stat = client.get_acls(f"/d/{kind}")
        assert sorted(acls) == sorted(OWNED)
        assert stat.aversion == (1 if kind == "open" else 2)


@pytest.mark.parametrize("kind", ["sealed", "owned"])
def test_what_becomes_of_closed_nodes_while_they_are_copied_is_copied(
    make: Maker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And they are closed a few at a time, each time if the fence is still the same."""
    acls = {"sealed": SEALED, "owned": OWNED}[kind]
    boss, mover = make(auth_data=[ME, SUPERUSER]), make(auth_data=[ME])
    names = ["same", "set", "acl", "opened", "filled", "gone"]
    for name in names:
        boss.create(f"/d/{name}", b"1", makepath=True)
        for _ in range(2):
            boss.set_acls(f"/d/{name}", acls)
    shard = boss._layout.node("/d/set").shard
    moves = {shard: elsewhere(boss, "/d/set")[shard]}
    before: dict[str, Any] = {}
    looks: list[str] = []

    def hook(label: str, when: str) -> None:
        if label == "move.2.copy":
            boss.set("/d/set", b"2")
            boss.set_acls("/d/acl", [*acls, *APPEND])
            boss.set_acls("/d/opened", OPEN_ACL_UNSAFE)
            boss.create("/d/filled/x", b"x")
            boss.delete("/d/gone")
            paths = [f"/d/{name}" for name in names[:-1]]
            before.update(state(boss, ["/d", *paths, "/d/filled/x"]))

    def looking(client: Any, check: tuple[str, int]) -> None:
        looks.append(check[0])
        unchanged(client, check)

    monkeypatch.setattr(failpoints, "hook", hook)
    monkeypatch.setattr(copying, "unchanged", looking)
    monkeypatch.setattr(copying, "WINDOW", 2)
    Mover(mover).move(moves)
    assert len(looks) == 2, "four are closed, two at a time"
    same(before, state(boss, list(before)))
    assert boss.exists("/d/gone") is None
    assert {finding.kind for finding in Checker(boss).run()} <= {"leftover"}


@pytest.mark.parametrize("version", [-1, 0])
def test_an_acl_that_is_set_while_the_shard_is_frozen_is_not_lost(
    make: Maker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A server sets an ACL without looking at the fence. Its version at the old place
    was 1, and so it was at the new one, because the mover had made that of 0."""
    client, boss = make(auth_data=[ME]), make(auth_data=[BOSS])
    client.create("/own", acl=OWNED)
    client.create("/own/x")
    client.set("/own", b"2")
    shard = client._layout.node("/own").shard
    moves = {shard: elsewhere(client, "/own")[shard]}
    assert client.table is not None
    source = client._sessions.by_name[client.table.owners[shard]]
    copied, go_on = threading.Event(), threading.Event()
    submit = source.submit

    def hook(label: str, when: str) -> None:
        if label == "move.4.close" and not copied.is_set():
            copied.set()
            go_on.wait(PATIENCE_SECONDS)

    def late(request: Any, reply: Any) -> None:
        """It was on its way while the shard was frozen, and copied."""
        assert copied.wait(PATIENCE_SECONDS)
        submit(request, reply)
        wait_until(lambda: source.exists(request.path).aversion == 1, "it is set")
        go_on.set()

    def held(request: Any, reply: Any) -> Any:
        if not isinstance(request, SetACL) or copied.is_set():
            return submit(request, reply)
        threads.append(threading.Thread(target=late, args=(request, reply)))
        threads.append(threading.Thread(target=lambda: Mover(boss).move(moves)))
        for thread in threads:
            thread.start()
        return None

    threads: list[threading.Thread] = []
    monkeypatch.setattr(failpoints, "hook", hook)
    monkeypatch.setattr(source, "submit", held)
    client.set_acls("/own", OWNED[:1], version)
    for thread in threads:
        thread.join()
    acls, stat = client.get_acls("/own")
    assert acls == OWNED[:1]
    assert stat.aversion == 2
    with pytest.raises(NoAuthError):
        boss.get("/own")


def test_a_node_may_have_the_name_that_counting_once_used(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make()
    client.create("/d/%dummy", b"1", makepath=True)

    def hook(label: str, when: str) -> None:
        if label == "move.2.copy":
            client.delete(client.create("/d/s-", sequence=True))

    monkeypatch.setattr(failpoints, "hook", hook)
    shard = client._layout.node("/d/%dummy").shard
    Mover(client).move({shard: elsewhere(client, "/d/%dummy")[shard]})
    assert client.get("/d/%dummy")[0] == b"1"
    assert client.create("/d/s-", sequence=True) == "/d/s-0000000002"


def test_nothing_is_cleared_at_an_ensemble_that_is_another_member(make: Maker) -> None:
    client = make()
    client.create("/d/x", b"1", makepath=True)
    moves = elsewhere(client, "/d/x")
    mover = Mover(client)
    back = {shard: mover.table.owners[shard] for shard in moves}
    mover.move(moves)
    shard, name = next(iter(back.items()))
    target, source = mover._at(name), mover._at(moves[shard])
    said = target.get(IDENTITY)[0]
    target.set(IDENTITY, source.name.encode())
    copier = Copier(shard, source, target)
    copier.look()
    assert copier.before is not None
    with pytest.raises(MoveFailed, match=f"{name} says that it is {source.name}"):
        copier.prepare()
    assert target.get(copier.root)[1].version == copier.before
    target.set(IDENTITY, said)
    mover.move(back)
    assert client.get("/d/x")[0] == b"1"
