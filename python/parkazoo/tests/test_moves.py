"""Moving shards between real ensembles: what must be the same afterwards."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import KazooState
from kazoo.security import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    make_acl,
    make_digest_acl,
)

from conftest import EnsembleFactory
from parkazoo import MoveFailed, ParKazooClient, cli
from parkazoo.check import Checker
from parkazoo.copying import Copier
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, wait_until
from test_client import Maker, nothing_wrong


def elsewhere(client: ParKazooClient, *paths: str) -> dict[int, str]:
    """A move of every shard these nodes and their children are on."""
    table, layout = client.table, client._layout
    assert table is not None
    names = list(table.ensembles)
    shards = {layout.node(path).shard for path in paths}
    shards |= {bucket.shard for path in paths for bucket in layout.buckets(path)}
    return {
        shard: names[(names.index(table.owners[shard]) + 1) % len(names)]
        for shard in shards
    }


def test_versions_numbers_and_data_survive_a_move(make: Maker) -> None:
    client, other = make(), make()
    client.create("/v", b"top")
    for _ in range(7):
        client.create("/v/s-", sequence=True)
    for number in range(3):
        client.set("/v/s-0000000001", f"{number}".encode())
    client.delete("/v/s-0000000006")
    before = client.get("/v"), client.get("/v/s-0000000001")
    Mover(client).move(elsewhere(client, "/v", "/v/s-0000000001"))
    for reader in (client, other):
        (data, stat), (value, child) = reader.get("/v"), reader.get("/v/s-0000000001")
        assert (data, stat.version, stat.cversion, stat.numChildren) == (
            b"top",
            before[0][1].version,
            before[0][1].cversion,
            6,
        )
        assert (value, child.version) == (b"2", 3)
    with pytest.raises(BadVersionError):
        other.set("/v/s-0000000001", b"", 2)
    assert other.set("/v/s-0000000001", b"", 3).version == 4
    assert other.create("/v/s-", sequence=True) == "/v/s-0000000007"
    assert nothing_wrong(client)


def test_watches_survive_a_move_and_tell_nothing_of_it(make: Maker) -> None:
    client, watcher = make(), make()
    client.create("/w/full/x", b"1", makepath=True)
    client.ensure_path("/w/empty")
    client.ensure_path("/w/late")
    seen: list[Any] = []

    def note(tag: str) -> Any:
        return lambda event: seen.append((tag, event.type))

    watcher.get("/w/full/x", watch=note("data"))
    watcher.exists("/w/full/none", watch=note("absent"))
    watcher.get_children("/w/full", watch=note("children"))
    watcher.get_children("/w/empty", watch=note("empty"))
    watcher.exists("/w/late/deep", watch=note("deep"))
    for _ in range(2):
        Mover(client).move(
            elsewhere(client, "/w/full/x", "/w/full", "/w/empty", "/w/late")
        )
        time.sleep(0.3)
    assert seen == []
    client.set("/w/full/x", b"2")
    client.create("/w/full/none")
    client.create("/w/empty/first")
    client.create("/w/late/deep")
    wait_until(lambda: len(seen) >= 5, "every watch is told")
    assert sorted(seen) == [
        ("absent", "CREATED"),
        ("children", "CHILD"),
        ("data", "CHANGED"),
        ("deep", "CREATED"),
        ("empty", "CHILD"),
    ]


def test_a_held_lock_stays_held_and_passes_on(make: Maker) -> None:
    holder, waiter, mover = make(), make(), make()
    lock, second = holder.Lock("/lock", "holder"), waiter.Lock("/lock", "waiter")
    assert lock.acquire()
    got = waiter.handler.async_result()
    waiter.handler.spawn(lambda: got.set(second.acquire(timeout=PATIENCE_SECONDS)))
    wait_until(lambda: len(lock.contenders() or []) == 2, "the waiter stands in line")
    Mover(mover).move(elsewhere(mover, "/lock", "/lock/x"))
    assert lock.contenders() == ["holder", "waiter"]
    assert not got.ready()
    lock.release()
    assert got.get(timeout=PATIENCE_SECONDS) is True
    second.release()
    assert nothing_wrong(mover)


def test_an_owner_that_does_not_answer_stops_the_move(make: Maker) -> None:
    client, owner = make(), make()
    client.create("/o")
    owner.create("/o/e", b"", ephemeral=True)
    owner._adopting.look = lambda: None  # type: ignore[method-assign]
    moves = elsewhere(client, "/o/e")
    with pytest.raises(MoveFailed, match="did not re-create"):
        Mover(client, ephemeral_seconds=0.5).move(moves)
    assert client.exists("/o/e") is not None
    client.create("/o/f")  # the shard is in use again
    assert nothing_wrong(client)


def test_a_move_left_frozen_is_undone(make: Maker) -> None:
    client = make()
    client.create("/f/x", makepath=True)
    moves = elsewhere(client, "/f/x")
    mover = Mover(client)
    mover._freeze(mover.publish(mover.table.with_plan(moves)), moves)
    kinds = {finding.kind for finding in Checker(make()).run()}
    assert kinds == {"unfinished"}
    asked = client.create_async("/f/y")
    time.sleep(0.3)
    assert not asked.ready(), "nothing passes a frozen fence"
    mover.abort()
    assert asked.get(timeout=PATIENCE_SECONDS) == "/f/y"
    assert nothing_wrong(client)


def test_a_mover_that_was_overtaken_deletes_nothing(make: Maker) -> None:
    """It was away when others took over and moved the same shards to the same
    place; what it does late would have emptied them there."""
    client, other = make(), make()
    client.create("/o/x", b"1", makepath=True)
    moves = elsewhere(client, "/o/x")
    late = Mover(client)
    table = late.table
    copiers = [
        Copier(shard, late._at(table.owners[shard]), late._at(to))
        for shard, to in moves.items()
    ]
    for copier in copiers:
        copier.look()
    late.publish(table.with_plan(moves))
    before = late.publish

    def overtaken(table: Any, *rest: Any) -> Any:
        Mover(other).move(moves)
        return before(table, *rest)

    late.publish = overtaken  # type: ignore[method-assign]
    with pytest.raises(MoveFailed, match="somebody else"):
        late._give_up(list(moves))
    for copier in copiers:
        with pytest.raises(MoveFailed, match="somebody else"):
            copier.prepare()
    assert other.get("/o/x")[0] == b"1"
    assert nothing_wrong(other)


def test_a_mover_that_lost_its_connection_lets_others_move(make: Maker) -> None:
    client, other = make(), make()
    states: list[str] = []
    client.add_listener(states.append)
    with Mover(client).alone():
        with pytest.raises(MoveFailed, match="somebody else"):
            Mover(other).abort()
        client._call(_CONNECTION_DROP, None)
    assert Mover(other).abort() == []
    assert KazooState.LOST not in states, "its session lives"


@pytest.mark.timeout(900)  # it moves a third of all shards, twice
def test_the_command_line(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = ensembles(3)
    hosts = f"{first.hosts};{second.hosts}"

    def run(*arguments: str, code: int = 0, at: str = hosts) -> Any:
        assert cli.main(["--hosts", at, "--json", *arguments]) == code
        return json.loads(capsys.readouterr().out or "null")

    assert cli.main(["--hosts", hosts, "status"]) == 2
    assert "parkazoo init" in capsys.readouterr().err
    made = run("init", "--colocate", "/apps/*")
    assert made["rules"]["colocate"] == ["/apps/*"]
    # Given again it changes nothing, and no rule is quietly left out.
    assert run("init", "--colocate", "/apps/*") == made
    assert cli.main(["--hosts", hosts, "init", "--weak", "/w:4"]) == 2
    assert "rules cannot change" in capsys.readouterr().err
    for nonsense in (
        ["init", "--weak", "/w:many"],
        ["where", "/a/../b"],
        ["add-ensemble", f"{third.hosts}/chroot"],
        ["add-ensemble", f"{third.hosts};{first.hosts}"],
        ["add-ensemble", "--name", "a/b", third.hosts],
        ["--hosts", f"{first.hosts}/a;{second.hosts}/a", "status"],
    ):
        assert cli.main(["--hosts", hosts, *nonsense]) == 2
        capsys.readouterr()
    client = ParKazooClient(hosts)
    client.start(PATIENCE_SECONDS)
    for number in range(8):
        client.create(f"/d{number}/x", makepath=True)
    assert len(run("rebalance", "--plan")) == 0
    for joined, shards in ((True, 341), (False, 0)):
        answer = run("add-ensemble", third.hosts)
        assert answer["name"] == "e2" and answer["hosts"] == third.hosts
        assert answer["joined"] == joined and answer["shards_moved"] == shards
    again = ["--hosts", hosts, "add-ensemble", third.hosts]
    assert cli.main(again) == 0
    assert "is a member already: e2" in capsys.readouterr().err
    status = run("status", at=third.hosts)
    assert [e["shards"] for e in status["ensembles"].values()] == [342, 341, 341]
    where = run("where", "/d1/x")
    assert where["exists"] and where["ensemble"] in ("e0", "e1", "e2")
    assert len(run("tree", "/", "--depth", "1")) == 9
    assert run("where", "/x", at=f"{hosts}/d1") == where
    assert run("check") == []
    assert run("remove-ensemble", "e2")["shards_moved"] == 341
    assert cli.main(["--hosts", third.hosts, "status"]) == 2
    assert "taken out" in capsys.readouterr().err
    assert sorted(client.get_children("/d1")) == ["x"]
    client.stop()
    client.close()


@pytest.mark.parametrize("auth", [[], [("digest", "me:secret")]], ids=["world", "me"])
def test_an_ephemeral_keeps_its_acl_and_the_version_of_that(
    make: Maker, auth: list[Any]
) -> None:
    """Nobody may set it any more, not even its owner, who makes it again."""
    client, owner = make(), make(auth_data=auth)
    client.create("/o")
    owner.create("/o/e", b"mine", ephemeral=True)
    for _ in range(2):
        owner.set_acls("/o/e", make_acl_of(owner.auth_data))
    owner.set_acls("/o/e", [make_acl("world", "anyone", read=True)])
    before = owner.get_acls("/o/e")
    assert before[1].aversion == 3
    session = owner.get("/o/e")[1].ephemeralOwner
    Mover(client, ephemeral_seconds=PATIENCE_SECONDS).move(elsewhere(client, "/o/e"))
    acls, stat = client.get_acls("/o/e")
    assert (acls, stat.aversion) == (before[0], 3)
    assert client.get("/o/e")[1].ephemeralOwner not in (0, session)
    owner.stop()
    assert client.exists("/o/e") is None


def make_acl_of(auth: Any) -> list[Any]:
    return CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE


def test_an_ephemeral_whose_acl_its_owner_may_not_see_stays_as_it_is(
    make: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    """A server shows digests to who has ADMIN, and "x" to others; made anew with that,
    nobody would have had ADMIN any more."""
    admin, owner = ("digest", "admin:secret"), make()
    client = make(auth_data=[admin])
    client.create("/o")
    acl = [make_digest_acl("admin", "secret", all=True), *READ_ONLY]
    owner.create("/o/e", b"mine", acl=acl, ephemeral=True)
    before = client.get_acls("/o/e")[0]
    assert any(a.id.id.endswith(":x") for a in owner.get_acls("/o/e")[0])
    with pytest.raises(MoveFailed, match="ADMIN"):
        Mover(client, ephemeral_seconds=5).move(elsewhere(client, "/o/e"))
    assert client.get_acls("/o/e")[0] == before
    client.set_acls("/o/e", OPEN_ACL_UNSAFE)
    told = [r.getMessage() for r in caplog.records if "made anew" in r.getMessage()]
    assert len(told) == 1 and "its ACL is hidden" in told[0]
    assert nothing_wrong(client)


READ_ONLY = [make_acl("world", "anyone", read=True)]


def test_an_ephemeral_that_was_set_very_often_moves_with_its_version(
    make: Maker,
) -> None:
    """All of its versions in one transaction were more than a server takes, which
    dropped the owner's connection, again and again."""
    client, owner = make(), make()
    client.create("/o")
    path = "/o/" + "e" * 60
    owner.create(path, b"mine", ephemeral=True)
    for _ in range(80):
        change = owner.transaction()
        for _ in range(200):
            change.set_data(path, b"last")
        assert change.commit()[-1].version
    states: list[str] = []
    owner.add_listener(states.append)
    Mover(client).move(elsewhere(client, path))
    data, stat = client.get(path)
    assert (data, stat.version) == (b"last", 16000)
    assert owner.set(path, b"later", 16000).version == 16001
    assert states == []
    owner.stop()
    assert client.exists(path) is None
