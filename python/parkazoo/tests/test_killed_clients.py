"""A client that dies at any step of any operation leaves a tree others can use.

For each labelled step, before it is sent and after it is answered: the process is
killed there, and then another client must find that the operation happened if it was
that far, and did not otherwise, can do everything in the places it touched, sees
nothing of an older life in a directory made anew, and finds nothing for `check` to
complain about once it has repaired.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from conftest import EnsembleFactory
from parkazoo import ParKazooClient, remove
from parkazoo.errors import MoveFailed
from parkazoo.failpoints import AFTER, BEFORE, LABELS
from parkazoo.move import Mover
from servers import wait_until
from victim import SESSION_SECONDS, finish, prepare

pytestmark = pytest.mark.timeout(900)

# Which operation of victim.py reaches which steps.
REACHED_BY = {
    "create.0": "first_child",
    "create.1": "first_child",
    "create.2": "first_child",
    "create.3": "first_child",
    "create.4": "refused_child",
    "delete.0": "remove_leaf",
    "delete.2": "remove_directory",
    "delete.3": "remove_directory",
    "set.1": "set_value",
    "acl.1": "set_acls",
    "acl.2": "set_acls",
    "recursive.1": "remove_tree",
    "recursive.2": "remove_tree",
    "transaction.1": "transaction",
    "intent.1": "transaction_across",
    "intent.3": "transaction_across",
    "intent.4": "transaction_across",
}
# Steps of operations that are not one machine are announced after they are done.
ONLY = {"move": (AFTER,), "intent": (AFTER,)}
REACHED_BY |= {f"move.{number}": "move" for number in range(1, 7)}
CASES = [
    (REACHED_BY[label.rpartition(".")[0]], f"{label}:{when}")
    for label in LABELS
    if label not in ("recursive.2.done", "intent.5.undo")
    for when in ONLY.get(label.partition(".")[0], (BEFORE, AFTER))
]
# Steps that one operation takes several times: die at a later one, too.
CASES += [
    ("remove_tree", "recursive.2.done:before"),
    ("remove_tree", "delete.0.node:after#3"),
    ("remove_tree", "delete.2.close:before#2"),
    ("remove_tree", "delete.3.home:before#2"),
    ("remove_tree", "delete.3.home:after#2"),
    ("transaction_across", "intent.3.apply:before"),
    ("transaction_across", "intent.3.apply:before#3"),
    ("transaction_across", "intent.3.apply:after#2"),
    ("transaction_across", "intent.3.apply:after#3"),
    ("buckets_across", "create.1.claim:before"),
    ("buckets_across", "create.1.claim:after"),
    ("buckets_across", "create.2.link:before"),
    ("buckets_across", "create.2.link:after"),
    ("buckets_across", "transaction.1.commit:after#2"),
    ("buckets_across", "intent.3.apply:after"),
    ("buckets_across", "intent.3.apply:after#2"),
    ("buckets_across", "intent.3.apply:after#3"),
]

# What the first left, a second finishes, and dies at that: operation, and where each.
FINISHERS = [
    ("transaction_across", "intent.3.apply:after#2", "intent.5.undo:after"),
    ("transaction_across", "intent.3.apply:after#2", "intent.5.undo:after#2"),
    ("remove_tree", "recursive.1.intent:after", "delete.0.node:before"),
    ("remove_tree", "delete.0.node:after#3", "delete.0.node:after#3"),
    ("remove_tree", "delete.2.close:after", "delete.3.home:before"),
    ("remove_tree", "delete.3.home:after", "delete.3.home:after"),
]


@pytest.fixture
def hosts(ensembles: EnsembleFactory) -> str:
    return ";".join(ensemble.hosts for ensemble in ensembles(3))


@pytest.fixture
def client(hosts: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Finishes what others left when it is told to, not when it happens to look."""
    monkeypatch.setattr(remove, "LOOK_SECONDS", 3600.0)
    client = ParKazooClient(hosts, timeout=SESSION_SECONDS)
    client.start(60)
    prepare(client)
    yield client
    client.stop()
    client.close()


def run_victim(hosts: str, operation: str, failpoint: str) -> int:
    script = Path(__file__).resolve().parent / "victim.py"
    victim = subprocess.run(
        [sys.executable, str(script), hosts, operation],
        env={**os.environ, "PARKAZOO_FAILPOINT": failpoint},
        stdout=subprocess.PIPE,
        timeout=240,
    )
    assert b"connected" in victim.stdout
    assert (b"done" in victim.stdout) == (victim.returncode == 0)
    return victim.returncode


@pytest.mark.parametrize(("operation", "failpoint"), CASES)
def test_a_client_killed_at_a_step_leaves_a_usable_tree(
    hosts: str, client: Any, operation: str, failpoint: str
) -> None:
    assert run_victim(hosts, operation, failpoint) == -signal.SIGKILL, "never got there"
    OUTCOMES[operation](client, took_effect(operation, failpoint))
    use_everything(client)
    settle(client, hosts)


@pytest.mark.parametrize(("operation", "first", "second"), FINISHERS)
def test_who_dies_finishing_the_work_of_another_leaves_it_to_a_third(
    hosts: str, client: Any, operation: str, first: str, second: str
) -> None:
    assert run_victim(hosts, operation, first) == -signal.SIGKILL, "never got there"
    assert run_victim(hosts, "finish", second) == -signal.SIGKILL, "never got there"
    OUTCOMES[operation](client, took_effect(operation, first))
    use_everything(client)
    settle(client, hosts)


@pytest.mark.parametrize("operation", sorted(set(REACHED_BY.values())))
def test_a_client_that_is_not_killed_gets_it_done(
    hosts: str, client: Any, operation: str
) -> None:
    assert run_victim(hosts, operation, "") == 0
    OUTCOMES[operation](client, took_effect(operation, ""))
    use_everything(client)
    settle(client, hosts)


# -- all or nothing ------------------------------------------------------------------

# The step with whose answer an operation has taken effect, whatever its client hears:
# killed behind it, it must have done so, and killed before, not.
DECIDED = {
    "first_child": "create.3.commit:after",
    "remove_leaf": "delete.0.node:after",
    "remove_directory": "delete.3.home:after",
    "set_value": "set.1.value:after",
    "set_acls": "acl.1.home:after",
    "remove_tree": "recursive.1.intent:after",  # others finish it
    "transaction": "transaction.1.commit:after",
    "transaction_across": "intent.3.apply:after#3",  # others undo it before that
    "buckets_across": "intent.3.apply:after#3",
}


def took_effect(operation: str, killed_at: str) -> bool:
    """Of the steps of an operation, all but one come after the one that decides, or
    in the order of their numbers before it."""
    decided = DECIDED.get(operation)
    if decided is None or not killed_at:
        return decided is not None
    if operation == "remove_tree":  # the first step of all
        return killed_at != "recursive.1.intent:before"
    return _place(killed_at) >= _place(decided)


def _place(failpoint: str) -> tuple[int, int, bool]:
    """Where a failpoint comes among those of its operation."""
    label, _, when = failpoint.partition(":")
    when, _, count = when.partition("#")
    return int(label.split(".")[1]), int(count or 1), when == AFTER


def value(client: Any, path: str) -> bytes | None:
    with contextlib.suppress(NoNodeError):
        data: bytes = client.get(path)[0]
        return data
    return None


def first_child_or_none(client: Any, made: bool) -> None:
    assert value(client, "/v/d") == b"old"
    assert value(client, "/v/d/x") == (b"new" if made else None)
    assert client.get_children("/v/d") == (["x"] if made else [])
    assert client.exists("/v/d").numChildren == (1 if made else 0)


def no_child_below_the_ephemeral(client: Any, _: bool) -> None:
    wait_until(lambda: not client.exists("/v/e"), "its session's end")
    assert value(client, "/v/e/x") is None


def directory_or_none(client: Any, gone: bool) -> None:
    assert value(client, "/v/used") == (None if gone else b"")
    if gone:
        with pytest.raises(NoNodeError):
            client.get_children("/v/used")
    else:
        assert client.get_children("/v/used") == []


def leaf_or_none(client: Any, gone: bool) -> None:
    assert value(client, "/v/leaf") == (None if gone else b"old")


def old_or_new_value(client: Any, new: bool) -> None:
    assert value(client, "/v/leaf") == (b"new" if new else b"old")


def acls_can_be_set(client: Any, new: bool) -> None:
    acls, stat = client.get_acls("/v/full")
    assert stat.aversion == (1 if new else 0)
    client.set_acls("/v/full", acls)


def tree_is_whole_or_gone(client: Any, gone: bool) -> None:
    """Once the intent is there, others finish it; before it, nothing is gone."""
    finish(client)
    if gone:
        assert value(client, "/v/tree") is None
        with pytest.raises(NoNodeError):
            client.get_children("/v/tree")
        return
    for directory in ("/v/tree", "/v/tree/b", "/v/tree/b/c"):
        for name in ("n1", "n2", "n3"):
            assert value(client, f"{directory}/{name}") == b"old"


def both_or_none(client: Any, made: bool) -> None:
    found = {value(client, "/v/full/t1"), value(client, "/v/full/t2")}
    assert found == ({b"new"} if made else {None})


def all_or_none(client: Any) -> bool:
    """Not isolated, but decided: whoever comes by finishes what was begun. Was it?"""
    finish(client)
    paths = ("/v/a1/t", "/v/a2/t", "/v/a3/t")
    found = {value(client, path) for path in paths}
    assert found in ({None}, {b"new"})
    return found == {b"new"}


def done_or_undone(client: Any, made: bool) -> None:
    assert all_or_none(client) == made


def buckets_as_before_or_after(client: Any, made: bool) -> None:
    finish(client)
    assert [value(client, path) for path in ("/v/a1/t", "/v/d/t", "/v/used")] == (
        [b"new", b"new", None] if made else [None, None, b""]
    )
    assert client.get_children("/v/d") == (["t"] if made else [])


def nothing_moved_astray(client: Any, _: bool) -> None:
    """Whoever comes after undoes what was begun; every node is where it should."""

    def undone() -> bool:
        with contextlib.suppress(MoveFailed):  # while the dead mover's session lives
            Mover(client).abort()
            return True
        return False

    wait_until(undone, "the dead mover is gone")
    assert client.table is not None and not client.table.moving
    for path in ("/v/d", "/v/leaf", "/v/full/x", "/v/tree/b/c/n3", "/v/a1/other"):
        assert value(client, path) == b"old", path
    assert sorted(client.get_children("/v/tree")) == ["b", "n1", "n2", "n3"]
    assert client.get_children("/v/used") == []


OUTCOMES = {
    "move": nothing_moved_astray,
    "first_child": first_child_or_none,
    "refused_child": no_child_below_the_ephemeral,
    "remove_directory": directory_or_none,
    "remove_leaf": leaf_or_none,
    "set_value": old_or_new_value,
    "set_acls": acls_can_be_set,
    "remove_tree": tree_is_whole_or_gone,
    "transaction": both_or_none,
    "transaction_across": done_or_undone,
    "buckets_across": buckets_as_before_or_after,
}


# -- afterwards -----------------------------------------------------------------------


def use_everything(client: Any) -> None:
    """Each directory the operations touch can be filled, emptied, and made anew,
    and a new life shows no child of an old one."""
    for path in ("/v/d", "/v/used", "/v/full", "/v/tree", "/v/tree/b", "/v/a1"):
        if value(client, path) is None:
            client.ensure_path(path)
            assert client.get_children(path) == [], path
        client.create(f"{path}/probe", b"1")
        assert "probe" in client.get_children(path)
        client.delete(f"{path}/probe")
    for path in ("/v/d", "/v/used", "/v/full", "/v/tree", "/v/a1"):
        client.delete(path, recursive=True)
        assert client.exists(path) is None
        client.create(path, b"again")
        assert client.get_children(path) == [], path
        client.create(f"{path}/probe", b"2")
        assert client.get_children(path) == ["probe"]


def settle(client: Any, hosts: str) -> None:
    """`parkazoo check --repair` leaves nothing to complain about."""
    command = [sys.executable, "-m", "parkazoo.cli", "--hosts", hosts, "check"]
    subprocess.run([*command, "--repair"], check=False, timeout=240)
    checked = subprocess.run(command, timeout=240, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
