"""The mapping and the layout, which are pure: no server is needed to be wrong."""

from __future__ import annotations

import pytest

from parkazoo import ParKazooClient, hosts
from parkazoo.layout import Layout, decode, encode, fence
from parkazoo.mapping import (
    SHARDS,
    ConfigurationInvalid,
    EnsembleRemoved,
    Rules,
    Table,
    balanced,
    shard_of,
)

PATHS = ["/", "/a", "/a/b", "/a:b", "/a%b/c", "/%c", "/%p:", "/a%w1/b", "/ü/ñ", "/%r"]
THREE = {"e0": "h0:1", "e1": "h1:1", "e2": "h2:1"}


def test_shards_are_the_same_for_ever() -> None:
    assert [shard_of(key) for key in ("", "/", "/a", "/d")] == [20, 67, 125, 953]


@pytest.mark.parametrize("path", PATHS)
def test_anchor_names_can_be_read_back(path: str) -> None:
    assert decode(encode(path)) == path
    assert "/" not in encode(path)


def test_no_two_directories_share_an_anchor() -> None:
    assert len({encode(path) for path in ["", *PATHS]}) == len(PATHS) + 1


def test_siblings_share_a_bucket_and_their_parent_a_shard() -> None:
    layout = Layout(Rules())
    first, second = layout.node("/q/a"), layout.node("/q/b")
    assert first.bucket is second.bucket
    assert first.path.startswith(fence(first.shard))


def test_companions_live_beside_each_other() -> None:
    layout = Layout(Rules())
    assert layout.node("/q/entries/1").shard == layout.node("/q/taken/1").shard


def test_colocation_puts_a_subtree_on_one_shard() -> None:
    layout = Layout(Rules(colocate=("/apps/*",)))
    shards = {layout.node(p).shard for p in ("/apps/x/1", "/apps/x/a/b", "/apps/x/a/c")}
    assert len(shards) == 1
    assert layout.node("/apps/y/1").shard not in shards


def test_a_weak_directory_spreads_its_children() -> None:
    layout = Layout(Rules(weak=(("/w", 8),)))
    used = {layout.node(f"/w/{n}").bucket for n in range(200)}
    assert used == set(layout.buckets("/w")) and len(used) == 8


def test_a_table_is_read_as_it_was_written() -> None:
    table = Table.initial(THREE, Rules(weak=(("/w", 8),))).with_owner(3, "e1", 7)
    table = table.with_plan({4: "e2"}).with_frozen({5: "e0"})
    assert Table.deserialize(table.serialize()) == table


def test_a_removed_ensemble_says_where_the_namespace_is() -> None:
    with pytest.raises(EnsembleRemoved, match="h0:1;h1:1;h2:1"):
        Table.deserialize(Table.initial(THREE).tombstone())


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format": 99}'])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationInvalid):
        Table.deserialize(data)


def test_one_more_ensemble_moves_its_share_and_nothing_else() -> None:
    table = Table.initial(THREE)
    wider = table.with_ensembles({**THREE, "e3": "h3:1"})
    moves = balanced(wider, wider.ensembles)
    assert len(moves) == SHARDS // 4
    assert set(moves.values()) == {"e3"}


def test_one_less_ensemble_moves_what_it_had() -> None:
    table = Table.initial(THREE)
    moves = balanced(table, ["e0", "e1"])
    assert set(moves) == set(table.shards("e2"))
    for shard, owner in moves.items():
        table = table.with_owner(shard, owner, 1)
    assert [len(table.shards(name)) for name in THREE] == [512, 512, 0]
    assert balanced(table, ["e0", "e1"]) == {}


def test_initial_tables_do_not_depend_on_who_makes_them() -> None:
    assert Table.initial(THREE).serialize() == Table.initial(dict(THREE)).serialize()


def test_a_chroot_stands_once() -> None:
    assert hosts.split("a,b;c/app") == (["a,b", "c"], "/app")
    with pytest.raises(ValueError, match="stands once"):
        hosts.split("a/app;b/app")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("a;;b", "nothing stands"),
        ("a;b;", "nothing stands"),
        (";a", "nothing stands"),
        ("a; ;b/app", "nothing stands"),
        ("a;a", "a:2181 stands in two"),
        ("a:1,b:2;c,b:2/app", "b:2 stands in two"),
    ],
)
def test_what_can_only_be_a_slip_in_a_hosts_string_is_refused(
    given: str, why: str
) -> None:
    """A namespace was founded over what was left of it, without a word."""
    with pytest.raises(ValueError, match=why):
        hosts.split(given)
    with pytest.raises(ValueError, match=why):
        ParKazooClient(given)


def test_one_ensemble_may_name_a_server_twice_as_with_kazoo() -> None:
    assert hosts.split("a:1,a:1") == (["a:1,a:1"], "")
