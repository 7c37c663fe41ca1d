"""A command that is killed at any step leaves a namespace the next one mends.

For each step of `init`, `init --import`, `add-ensemble`, `remove-ensemble`,
`rebalance` and `rebalance --abort`: a real process is killed there. Then either the
same command is given again, and must get it done, or the operator changes his mind
and undoes it, and in the end every node is there, `check` has nothing to say, and
nobody is let in who was not before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from conftest import EnsembleFactory, started
from parkazoo.failpoints import COMMAND_LABELS
from parkazoo.layout import CONFIG, fence
from parkazoo.mapping import EnsembleRemoved, Table
from servers import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.timeout(900)

SCRIPT = Path(__file__).resolve().parent / "victim_command.py"
COMMAND_SECONDS = 400.0
DIRECTORIES = 6
CLOSED = [make_acl("world", "anyone", read=True)]
# Not the ACL of every root, and as open.
ROOT = [*OPEN_ACL_UNSAFE, make_digest_acl("me", "secret", read=True)]

INIT = [
    "init.0.founded:after",
    *(f"init.1.fences:after#{n}" for n in (1, 2)),
    "init.2.root:after",
    *(f"init.3.names:after#{n}" for n in (1, 2)),
    *(f"init.4.table:after#{n}" for n in (1, 2)),
]
IMPORT = [
    *(f"import.0.alone:after#{n}" for n in (1, 2)),
    *(f"import.1.node:after#{n}" for n in (1, 2, 3, 5)),
    *(f"import.2.acl:after#{n}" for n in (1, 2)),
    *(f"import.4.renewed:after#{n}" for n in (1, 3)),  # the root's
]
# Where an import is killed, and where the one who ends it or gives it up.
CLOSE = [
    ("--import", "acl.2.bucket:before", "import.4.renewed:after"),
    ("--import", "acl.1.home:before", "import.5.removed:after"),
    ("--beside", "acl.2.bucket:before", "import.3.close:after#1"),
    ("--beside", "acl.1.home:before", "import.3.close:after#2"),
]
# A table is decided when an ensemble joins, for the plan, the freeze and the switch.
ADD = [
    "add.1.furnish:before",
    "add.1.furnish:after",
    *(f"table.1.decided:after#{n}" for n in (1, 2, 3, 4)),
    *(f"table.2.told:after#{n}" for n in (1, 2, 4)),
    "move.2.copy:after",
    "move.4.copy:after#2",
    "move.4.close:after#2",
    "move.6.clean:after",
]
REMOVE = [
    "remove.2.empty:after",
    "remove.3.noted:after",
    "remove.4.farewell:before",
    "remove.4.farewell:after",
    "move.3.freeze:after#2",
]
REMOVE_SEAT = [
    "table.1.decided:after",
    "table.2.told:after",
    "remove.1.handover:after",
    "move.5.switch:after",
    *REMOVE,
]
# Where a rebalance is killed, and where the one who undoes it.
ABORT = [
    ("move.2.copy:after", "table.1.decided:after"),
    ("move.3.freeze:after", "table.2.told:after"),
    ("move.4.copy:after", "abort.1.clear:after"),
    ("move.4.copy:after", "abort.1.clear:after#3"),
    ("move.3.freeze:after", "abort.2.thaw:after"),
    ("move.4.copy:after", "abort.2.thaw:after#5"),
    ("move.3.freeze:after", "table.1.decided:after#2"),
    ("move.3.freeze:after", "table.2.told:after#2"),
]
REFENCE = [
    "refence.1.raised:after",
    "refence.1.raised:after#2",
    "table.1.decided:after",
    "table.2.told:after",
]


def command(hosts: str, *words: str, failpoint: str = "") -> Any:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--hosts", hosts, *words],
        env={**os.environ, "PARKAZOO_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )


def kill(hosts: str, failpoint: str, *words: str) -> None:
    run = given(hosts, *words, failpoint=failpoint)
    assert run.returncode == -signal.SIGKILL, f"never got there: {run}"


def done(hosts: str, *words: str) -> Any:
    last = given(hosts, *words)
    assert last.returncode == 0, last
    return last


def given(hosts: str, *words: str, failpoint: str = "") -> Any:
    """The command, given again while the session of a killed one still lives."""
    last: Any = None

    def went() -> bool:
        nonlocal last
        last = command(hosts, *words, failpoint=failpoint)
        return "somebody else is changing" not in last.stderr + last.stdout

    wait_until(went, "the killed command's session has ended", COMMAND_SECONDS)
    return last


def settled(hosts: str) -> None:
    command(hosts, "check", "--repair")
    checked = command(hosts, "check")
    assert checked.returncode == 0, checked
    status = json.loads(command(hosts, "--json", "status").stdout)
    assert status["moving"] == []


def fill(hosts: str) -> None:
    with started(hosts, auto_init=False) as client:
        for number in range(DIRECTORIES):
            for name in ("a", "b"):
                client.create(f"/d{number}/{name}", b"kept", makepath=True)


def whole(hosts: str) -> None:
    """Every node is there, and everything can be done where it is."""
    with started(hosts, auto_init=False) as client:
        assert len(client.get_children("/")) == DIRECTORIES + 1, "and /zookeeper"
        for number in range(DIRECTORIES):
            directory = f"/d{number}"
            assert sorted(client.get_children(directory)) == ["a", "b"]
            assert client.get(f"{directory}/a")[0] == b"kept"
            client.set(f"{directory}/b", b"kept")
            client.create(f"{directory}/c/d", makepath=True)
            client.delete(f"{directory}/c", recursive=True)


def put_ahead(hosts: str) -> None:
    """Set three fences by hand, which the table then does not know."""
    with started(hosts) as client:
        assert client.table is not None
        for number in range(3):
            shard = client._layout.buckets(f"/d{number}")[0].shard
            owner = client._sessions.by_name[client.table.owners[shard]]
            owner.set(fence(shard), b"active")


def members(hosts: str) -> dict[str, int]:
    status = json.loads(command(hosts, "--json", "status").stdout)
    return {entry["hosts"]: entry["shards"] for entry in status["ensembles"].values()}


def test_every_step_of_a_command_is_tried() -> None:
    cases = [*INIT, *IMPORT, *ADD, *REMOVE_SEAT, *REMOVE, *REFENCE]
    cases += [place for pair in ABORT for place in pair]
    cases += [place for _, _, place in CLOSE]
    assert set(COMMAND_LABELS) <= {case.partition(":")[0] for case in cases}


# -- making a namespace --------------------------------------------------------------


@pytest.mark.parametrize("failpoint", INIT)
def test_init_killed_at_a_step_is_given_again(
    ensembles: EnsembleFactory, failpoint: str
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    kill(hosts, failpoint, "init")
    done(hosts, "init")
    fill(hosts)
    whole(hosts)
    settled(hosts)


@pytest.mark.parametrize("failpoint", INIT)
def test_init_killed_at_a_step_is_ended_by_the_first_program(
    ensembles: EnsembleFactory, failpoint: str
) -> None:
    first, second, third = (ensemble.hosts for ensemble in ensembles(3))
    hosts = f"{first};{second}"
    kill(hosts, failpoint, "init")
    with started(hosts):
        pass
    fill(hosts)
    whole(hosts)
    done(hosts, "add-ensemble", third)
    whole(hosts)
    settled(hosts)


@pytest.mark.parametrize("failpoint", IMPORT)
def test_an_import_killed_at_a_step_is_given_again_and_leaves_nothing_open(
    ensembles: EnsembleFactory, failpoint: str
) -> None:
    old, new = (ensemble.hosts for ensemble in ensembles(2))
    paths = closed_originals(old)
    kill(f"{old};{new}", failpoint, "init", "--import")
    done(f"{old};{new}", "init", "--import")
    assert all_closed(f"{old};{new}", paths) == paths
    with started(f"{old};{new}", auto_init=False) as client:
        assert sorted(client.get_acls("/")[0]) == sorted(ROOT)
    settled(f"{old};{new}")


@pytest.mark.parametrize(("end", "first", "second"), CLOSE)
def test_who_ends_a_killed_import_is_killed_and_leaves_nothing_open(
    ensembles: EnsembleFactory, end: str, first: str, second: str
) -> None:
    old, new = (ensemble.hosts for ensemble in ensembles(2))
    hosts = f"{old};{new}"
    paths = closed_originals(old)
    plain = KazooClient(old, timeout=30)
    plain.start(PATIENCE_SECONDS)
    plain.create("/0", b"deleted before it is given again")
    kill(hosts, first, "init", "--import")
    plain.delete("/0")
    plain.stop()
    plain.close()
    kill(hosts, second, "init", end)
    done(hosts, "init", end)
    brought = all_closed(hosts, paths)
    assert brought == (paths if end == "--import" else ["/a", "/a/b", "/a/b/c"])
    checked = command(hosts, "check")
    assert checked.returncode == 0, checked


def closed_originals(hosts: str) -> list[str]:
    plain = KazooClient(hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    paths = ["/a", "/a/b", "/a/b/c", "/e", "/e/f"]
    for path in paths:
        plain.create(path, path.encode())
    for path in reversed(paths):
        plain.set_acls(path, CLOSED)
    plain.set_acls("/", ROOT)
    plain.stop()
    plain.close()
    return paths


def all_closed(hosts: str, paths: list[str]) -> list[str]:
    """Those that were brought in: nobody can do there what was forbidden."""
    with started(hosts, auto_init=False) as client:
        brought = [path for path in paths if client.exists(path) is not None]
        for path in brought:
            assert client.get(path)[0] == path.encode()
            assert client.get_acls(path)[0] == CLOSED, path
            with pytest.raises(NoAuthError):
                client.create(f"{path}/more")
    return brought


# -- ensembles that come and go --------------------------------------------------------


@pytest.mark.parametrize("undone", [False, True], ids=["again", "undone"])
@pytest.mark.parametrize("failpoint", ADD)
def test_add_ensemble_killed_at_a_step_is_given_again_or_undone(
    ensembles: EnsembleFactory, failpoint: str, undone: bool
) -> None:
    first, second, third = (ensemble.hosts for ensemble in ensembles(3))
    hosts = f"{first};{second}"
    done(hosts, "init")
    fill(hosts)
    kill(hosts, failpoint, "add-ensemble", third)
    if undone:
        done(hosts, "rebalance", "--abort")
        if third in members(hosts):
            done(hosts, "remove-ensemble", "e2")
        assert set(members(hosts)) == {first, second}
    else:
        done(hosts, "add-ensemble", third)
        assert sorted(members(hosts).values()) == [341, 341, 342]
    whole(hosts)
    settled(hosts)


@pytest.mark.parametrize(
    ("leaving", "failpoint"),
    [*(("e0", f) for f in REMOVE_SEAT), *(("e2", f) for f in REMOVE)],
)
@pytest.mark.parametrize("undone", [False, True], ids=["again", "undone"])
def test_remove_ensemble_killed_at_a_step_is_given_again_or_undone(
    ensembles: EnsembleFactory, leaving: str, failpoint: str, undone: bool
) -> None:
    listed = {e.hosts for e in ensembles(3)}
    every = ";".join(listed)
    done(every, "init")
    fill(every)
    status = json.loads(command(every, "--json", "status").stdout)
    hosts = status["ensembles"][leaving]["hosts"]
    staying = ";".join(listed - {hosts})
    kill(staying, failpoint, "remove-ensemble", leaving)
    if undone:
        done(staying, "rebalance", "--abort")
        # One that is out already is taken in again.
        done(staying, "add-ensemble", hosts)
        assert sorted(members(staying).values()) == [341, 341, 342]
    else:
        done(staying, "remove-ensemble", leaving)
        assert members(staying) == dict.fromkeys(listed - {hosts}, 512)
        with pytest.raises(EnsembleRemoved):
            told(hosts)
    whole(staying)
    settled(staying)


def told(hosts: str) -> Table:
    """The table on an ensemble, or the word that was left there."""
    plain = KazooClient(hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    try:
        return Table.deserialize(plain.get(CONFIG)[0])
    finally:
        plain.stop()
        plain.close()


# -- moves, and their undoing ----------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), ABORT)
def test_who_is_killed_undoing_a_move_leaves_it_to_the_next(
    ensembles: EnsembleFactory, first: str, second: str
) -> None:
    one, two = (ensemble.hosts for ensemble in ensembles(2))
    done(one, "init")
    fill(one)
    done(one, "add-ensemble", two, "--no-rebalance")
    # The batch that is under way then is one with nodes in it.
    kill(one, f"{first}#9", "rebalance")
    wait_until(
        lambda: (
            command(one, "rebalance", "--abort", failpoint=second).returncode
            == -signal.SIGKILL
        ),
        "the undoing got as far as that",
        COMMAND_SECONDS,
    )
    done(one, "rebalance", "--abort")
    whole(one)
    done(one, "rebalance")
    assert sorted(members(one).values()) == [512, 512]
    whole(one)
    settled(one)


# -- fences that are not as the table says ---------------------------------------------


@pytest.mark.parametrize("failpoint", REFENCE)
def test_who_is_killed_raising_a_fence_leaves_it_to_the_next(
    ensembles: EnsembleFactory, failpoint: str
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    done(hosts, "init")
    fill(hosts)
    put_ahead(hosts)
    kill(hosts, failpoint, "check", "--repair")
    done(hosts, "check", "--repair")
    whole(hosts)
    settled(hosts)
