"""`check` while shards move and members come: it finds, and deletes, nothing living."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import EnsembleFactory, Maker, started
from parkazoo import ParKazooClient, check, failpoints
from parkazoo.check import Checker, Finding
from parkazoo.errors import MoveFailed
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS


def apart(client: ParKazooClient, below: str) -> str:
    """A directory that is to be on another ensemble than what is in it."""
    table = client.table
    assert table is not None
    for number in range(1000):
        path = f"{below}/d{number}"
        node, bucket = client._layout.node(path), client._layout.buckets(path)[0]
        if table.owners[node.shard] != table.owners[bucket.shard]:
            return path
    raise AssertionError("all on one ensemble")


def move(client: ParKazooClient, shard: int) -> None:
    mover = Mover(client)
    owner = mover.table.owners[shard]
    mover.move({shard: next(n for n in mover.table.ensembles if n != owner)})


def beside(checker: Checker, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Let somebody do this when `checker` has begun, and has the table of then."""
    before = checker._intents

    def intents(repair: bool) -> Iterator[Finding]:
        yield from before(repair)
        work()

    monkeypatch.setattr(checker, "_intents", intents)


HOW = [{}, {"repair": True}, {"repair": True, "delete_orphans": True}]


@pytest.mark.parametrize("how", HOW, ids=["plain", "repair", "delete"])
@pytest.mark.parametrize("which", ["home", "bucket"])
def test_a_shard_that_moves_after_the_beginning(
    make: Maker, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool], which: str
) -> None:
    """The directory was looked for where it had been, and its children deleted as
    orphans; its empty bucket was, as a stray, and sequence numbers began anew."""
    client, other = make(), make()
    client.ensure_path("/p/q")
    full = apart(client, "/p/q")
    client.create(f"{full}/y/z", b"acknowledged", makepath=True)
    used = apart(client, "/p")
    for _ in range(3):
        client.delete(client.create(f"{used}/n", sequence=True, makepath=True))
    checker = Checker(other)

    def shards() -> list[int]:
        layout = client._layout
        if which == "home":
            return [layout.node(path).shard for path in (full, used)]
        return [layout.buckets(path)[0].shard for path in (full, used)]

    beside(checker, monkeypatch, lambda: [move(client, s) for s in shards()])
    assert list(checker.run(**how)) == []
    assert client.get(f"{full}/y/z")[0] == b"acknowledged"
    assert client.create(f"{used}/n", sequence=True).endswith("3")


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("look", [1, 2])
def test_a_shard_that_moves_as_its_directory_is_looked_at(
    make: Maker, monkeypatch: pytest.MonkeyPatch, delete: bool, look: int
) -> None:
    client, other = make(), make()
    client.ensure_path("/p/q")
    path = apart(client, "/p/q")
    client.create(f"{path}/x", b"acknowledged", makepath=True)
    home = client._layout.node(path)
    checker = Checker(other)
    anchor, looks = checker._anchor, []

    def moved_before(shard: int, name: str, directory: str) -> Finding | None:
        if directory == path:
            looks.append(path)
            if len(looks) == look:
                move(client, home.shard)
        return anchor(shard, name, directory)

    monkeypatch.setattr(checker, "_anchor", moved_before)
    assert list(checker.run(repair=True, delete_orphans=delete)) == []
    assert looks
    assert client.get(f"{path}/x")[0] == b"acknowledged"


def test_what_is_an_orphan_is_found_where_it_has_moved(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What moves is looked at again, not passed over."""
    client, other = make(), make()
    client.ensure_path("/p/q")
    path = apart(client, "/p/q")
    client.create(f"{path}/x", makepath=True)
    table, home = client.table, client._layout.node(path)
    assert table is not None
    at_home = client._sessions.session(table.owners[home.shard])
    for link in at_home.get_children(home.path):
        at_home.delete(f"{home.path}/{link}")
    at_home.delete(home.path)
    bucket = client._layout.buckets(path)[0]
    checker = Checker(other)
    beside(checker, monkeypatch, lambda: move(client, bucket.shard))
    (found,) = checker.run(repair=True, delete_orphans=True)
    assert (found.kind, found.where, found.repaired) == ("orphan", path, True)
    assert list(Checker(other).run()) == []


def test_a_bucket_that_is_used_meanwhile_is_no_stray(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty anchor was found, then a bucket made in it, and that deleted."""
    client, other = make(), make()
    client.ensure_path("/p/d")
    bucket = client._layout.buckets("/p/d")[0]
    table = client.table
    assert table is not None
    client._sessions.session(table.owners[bucket.shard]).create(bucket.anchor)
    checker = Checker(other)
    mend = checker._mend

    def late(*about: Any) -> bool:
        for _ in range(3):
            client.delete(client.create("/p/d/n", sequence=True))
        return mend(*about)

    monkeypatch.setattr(checker, "_mend", late)
    (found,) = checker.run(repair=True)
    assert (found.kind, found.repaired) == ("stray", False)
    assert client.create("/p/d/n", sequence=True).endswith("3")


def test_a_member_that_comes_or_goes_meanwhile(
    ensembles: EnsembleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` ended with KeyError."""
    a, b, c = ensembles(3)
    with started(f"{a.hosts};{b.hosts}") as client, started(a.hosts) as other:
        client.create("/p/q/x", makepath=True)

        def join() -> None:
            mover = Mover(client)
            mover.add_ensemble(c.hosts)
            mover.rebalance()

        checker = Checker(other)
        beside(checker, monkeypatch, join)
        assert list(checker.run()) == []
        gone = Mover(client).table.seat
        checker = Checker(other)
        beside(checker, monkeypatch, lambda: Mover(client).remove_ensemble(gone))
        assert list(checker.run()) == []
        assert client.exists("/p/q/x")


@pytest.mark.parametrize("repair", [False, True])
def test_a_loop_of_checks_beside_moves_loses_nothing(make: Maker, repair: bool) -> None:
    client, moving, other = make(), make(), make()
    acknowledged: dict[str, bytes] = {}
    for number in range(16):
        path = f"/p/d{number}/y"
        client.create(f"{path}/z", b"%d" % number, makepath=True)
        acknowledged[f"{path}/z"] = b"%d" % number
    shards = {
        client._layout.node(path.rpartition("/")[0]).shard for path in acknowledged
    }
    shards |= {client._layout.node(path).shard for path in acknowledged}
    done = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(2):
                mover = Mover(moving)
                names = list(mover.table.ensembles)
                turn = dict(zip(names, [*names[1:], names[0]], strict=True))
                for shard in sorted(shards):
                    try:
                        mover.move({shard: turn[mover.table.owners[shard]]})
                    except MoveFailed as error:
                        if "somebody else" not in str(error):
                            raise
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    mover = threading.Thread(target=work)
    mover.start()
    found, checks = [], 0
    while not done.is_set() or not checks:
        found += list(Checker(other).run(repair=repair, delete_orphans=repair))
        checks += 1
    mover.join()
    assert not failed
    assert checks > 1
    assert [f for f in found if f.kind != "unreachable"] == []
    assert {path: client.get(path)[0] for path in acknowledged} == acknowledged
    assert [f for f in Checker(other).run() if f.kind != "leftover"] == []


@contextlib.contextmanager
def frozen_by_one_that_dies(
    monkeypatch: pytest.MonkeyPatch, moving: ParKazooClient, shard: int
) -> Iterator[Any]:
    """A shard is frozen, and its mover dies, undoing nothing, when told to."""
    frozen, die = threading.Event(), threading.Event()

    class Dead(BaseException):
        pass

    def hook(label: str, when: str) -> None:
        if label == "move.3.freeze":
            frozen.set()
            die.wait(PATIENCE_SECONDS)
            monkeypatch.setattr(failpoints, "hook", None)
            raise Dead

    def work() -> None:
        with contextlib.suppress(Dead):
            move(moving, shard)

    def dies() -> None:
        die.set()
        mover.join()

    monkeypatch.setattr(failpoints, "hook", hook)
    mover = threading.Thread(target=work)
    mover.start()
    assert frozen.wait(PATIENCE_SECONDS)
    try:
        yield dies
    finally:
        dies()


@pytest.mark.parametrize("repair", [False, True])
def test_a_mover_that_dies_meanwhile_leaves_a_move_unfinished(
    make: Maker, monkeypatch: pytest.MonkeyPatch, repair: bool
) -> None:
    """Nothing was said of it, nor of what was frozen: somebody was at work when it was
    looked for what is unfinished."""
    client, moving, other = make(), make(), make()
    client.create("/p/q", makepath=True)
    shard = client._layout.buckets("/p")[0].shard
    with frozen_by_one_that_dies(monkeypatch, moving, shard) as dies:
        checker = Checker(other)
        beside(checker, monkeypatch, dies)
        found = [(f.kind, f.repaired) for f in checker.run(repair=repair)]
    assert ("unfinished", repair) in found and len(set(found)) == 1
    if not repair:
        Mover(other).abort()
    assert [f for f in Checker(other).run() if f.kind != "leftover"] == []
    assert client.exists("/p/q")


@pytest.mark.parametrize("repair", [False, True])
def test_what_hangs_on_a_frozen_shard_hides_no_unfinished_move(
    make: Maker, monkeypatch: pytest.MonkeyPatch, repair: bool
) -> None:
    """It was said that it moves, again and again, and that only."""
    client, moving, other = make(), make(), make()
    client.ensure_path("/p")
    path = apart(client, "/p")
    client.create(path)
    home, bucket = client._layout.node(path), client._layout.buckets(path)[0]
    assert client.table is not None
    owner = client.table.owners[bucket.shard]
    client._sessions.session(owner).create(bucket.anchor)  # without a bucket: a stray
    with frozen_by_one_that_dies(monkeypatch, moving, home.shard) as dies:
        checker = Checker(other)
        beside(checker, monkeypatch, dies)
        found = {(f.kind, f.repaired) for f in checker.run(repair=repair)}
    assert found == (
        {("unfinished", repair)} | ({("stray", True)} if repair else set())
    )


def test_a_session_that_lasts_a_while_after_its_mover_died(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frozen shard was said to move, again and again, in the seconds after a
    command was killed, and what is to be done about it was not said."""
    client, moving, other = make(), make(), make()
    client.create("/p/q", makepath=True)
    shard = client._layout.buckets("/p")[0].shard
    with frozen_by_one_that_dies(monkeypatch, moving, shard) as dies:
        checker = Checker(other)
        threading.Timer(8, dies).start()
        found = [f.kind for f in checker.run()]
    assert set(found) == {"unfinished"}


def test_one_finding_tells_of_all_that_is_on_its_way(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, moving, other = make(), make(), make()
    client.create("/p/q", makepath=True)
    shard = client._layout.buckets("/p")[0].shard
    monkeypatch.setattr(check, "ROUNDS", 3)
    with frozen_by_one_that_dies(monkeypatch, moving, shard):
        (found,) = Checker(other).run()
        assert found.kind == "unreachable" and "1 of them" in found.what
    Mover(other).abort()
