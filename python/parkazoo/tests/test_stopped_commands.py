"""A command that stops at any step, is overtaken by another, and goes on: no harm.

For each step of `init`, `init --import`, `add-ensemble`, `remove-ensemble`,
`rebalance` and `rebalance --abort`: a real process is stopped there (SIGSTOP). While
its sessions live, another is refused and it gets its work done when it is continued.
When they have ended, or only the one that says who is at work, another does the same
or undoes it, and perhaps more; then the first is continued, and nothing that the
other has done may be any different after that.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl

from conftest import EnsembleFactory, started
from parkazoo.mapping import EnsembleRemoved, Table
from servers import PATIENCE_SECONDS, SUPERUSER, Ensemble
from stopping import Stopped
from test_killed_commands import (
    ABORT,
    ADD,
    IMPORT,
    INIT,
    REFENCE,
    REMOVE,
    REMOVE_SEAT,
    ROOT,
    command,
    done,
    fill,
    members,
    put_ahead,
    settled,
    told,
    whole,
)

pytestmark = pytest.mark.timeout(900)

ALIVE, EXPIRED, SEAT_LOST = "alive", "expired", "seat lost"
SESSION_SECONDS = {ALIVE: 50.0, EXPIRED: 4.0, SEAT_LOST: 50.0}
OVERTAKEN = [EXPIRED, SEAT_LOST]
# In the middle of what an import asks of the client, too, and as it says it has ended.
IMPORT_STOPPED = [
    *IMPORT,
    "create.0.child:before#2",
    "create.1.claim:before",
    "create.2.link:before",
    "create.3.commit:before",
    "acl.1.home:before",
    "acl.2.bucket:before",
    "table.1.decided:after",
    "table.2.told:after",
]
GIVEN_UP = ["import.0.alone:after", "create.0.child:before#2", "acl.1.home:before"]


def stopped(hosts: str, failpoint: str, ending: str, *words: str) -> Stopped:
    arguments = ["--hosts", hosts, *words]
    seconds = SESSION_SECONDS[ending]
    return Stopped("victim_command.py", arguments, failpoint, seconds)


def overtake(victim: Stopped, ending: str, ensembles: list[Ensemble]) -> None:
    """End what says that the victim is at work."""
    if ending == EXPIRED:
        victim.expire(ensembles)
        return
    table = newest(ensembles)
    seats = {table.ensembles[table.seat], *former_seats(ensembles, table)}
    for ensemble in ensembles:
        if ensemble.hosts in seats:
            victim.lose(ensemble)


def newest(ensembles: list[Ensemble]) -> Table:
    return max(copies(ensembles).values(), key=lambda table: table.generation)


def former_seats(ensembles: list[Ensemble], table: Table) -> set[str]:
    """A seat that is handing over is one until it is told who the new one is."""
    return {
        copy.ensembles[copy.seat]
        for hosts, copy in copies(ensembles).items()
        if copy.generation >= table.generation - 1
    }


def copies(ensembles: list[Ensemble]) -> dict[str, Table]:
    found = {}
    for ensemble in ensembles:
        try:
            found[ensemble.hosts] = told(ensemble.hosts)
        except (EnsembleRemoved, NoNodeError):
            continue
    return found


def state(ensembles: list[Ensemble]) -> dict[str, Any]:
    """All that a command changes: every copy of the table, byte for byte."""
    found: dict[str, Any] = {}
    for ensemble in ensembles:
        try:
            found[ensemble.hosts] = told(ensemble.hosts).serialize()
        except (EnsembleRemoved, NoNodeError) as error:
            found[ensemble.hosts] = repr(error)
    return found


def goes_on_harmlessly(victim: Stopped, ensembles: list[Ensemble], hosts: str) -> None:
    """Nothing is any different when who was overtaken has come to its end."""
    before = state(ensembles)
    code = victim.go_on()
    assert "Traceback" not in victim.told(), victim.told()
    assert state(ensembles) == before, f"{code}: {victim.told()}"
    found = command(hosts, "--json", "check")
    kinds = {finding["kind"] for finding in json.loads(found.stdout)}
    assert kinds <= {"stray", "leftover"}, found.stdout + victim.told()
    whole(hosts)
    settled(hosts)


@pytest.mark.parametrize("failpoint", INIT)
def test_an_init_that_goes_on_after_another_has_ended_it_changes_nothing(
    ensembles: EnsembleFactory, failpoint: str
) -> None:
    """And after the namespace has grown."""
    taken = ensembles(3)
    first, second, third = (ensemble.hosts for ensemble in taken)
    hosts = f"{first};{second}"
    with stopped(hosts, failpoint, ALIVE, "init") as victim:
        done(hosts, "init")
        fill(hosts)
        done(hosts, "add-ensemble", third)
        goes_on_harmlessly(victim, taken, hosts)


def originals(hosts: str) -> None:
    """What is to be brought in: nobody may create below it."""
    plain = KazooClient(hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    paths = ["/d0", "/d0/a", "/d0/b", "/d1", "/d1/a"]
    for path in paths:
        plain.create(path, b"todo")
    for path in reversed(paths):
        plain.set_acls(path, [make_acl("world", "anyone", read=True)])
    plain.set_acls("/", ROOT)
    plain.stop()
    plain.close()


@pytest.mark.parametrize("ending", OVERTAKEN)
@pytest.mark.parametrize(
    ("by", "failpoint"),
    [*(("--import", f) for f in IMPORT_STOPPED), *(("--beside", f) for f in GIVEN_UP)],
)
def test_an_import_that_goes_on_after_another_has_ended_it_brings_nothing_back(
    ensembles: EnsembleFactory, by: str, failpoint: str, ending: str
) -> None:
    """Not even to nodes of the same names that programs have made since."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    originals(taken[0].hosts)
    with stopped(hosts, failpoint, ending, "init", "--import") as victim:
        overtake(victim, ending, taken)
        if failpoint.startswith("table."):
            refused = command(hosts, "init", by)
            assert "no import into it is under way" in refused.stderr
        else:
            done(hosts, "init", by)
        with started(hosts, auto_init=False, auth_data=[SUPERUSER]) as client:
            for name in set(client.get_children("/")) - {"zookeeper"}:
                client.delete(f"/{name}", recursive=True)
        fill(hosts)
        goes_on_harmlessly(victim, taken, hosts)
        assert failpoint.startswith("table.") or victim.process.returncode == 2


@pytest.mark.parametrize("failpoint", IMPORT_STOPPED)
def test_an_import_that_was_only_away_gets_its_work_done(
    ensembles: EnsembleFactory, failpoint: str
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    originals(taken[0].hosts)
    with stopped(hosts, failpoint, ALIVE, "init", "--import") as victim:
        others: list[tuple[str, ...]] = [("rebalance",)]
        if not failpoint.startswith("table."):
            others += [("init", "--import"), ("init", "--beside")]
        for words in others:
            refused = command(hosts, *words)
            assert refused.returncode == 2, refused
            assert "somebody else is changing" in refused.stderr
        assert victim.go_on() == 0, victim.told()
    with started(hosts, auto_init=False) as client:
        for path in ("/d0/a", "/d0/b", "/d1/a"):
            assert client.get(path)[0] == b"todo"
    settled(hosts)


@pytest.mark.parametrize("ending", OVERTAKEN)
@pytest.mark.parametrize("undone", [False, True], ids=["again", "undone"])
@pytest.mark.parametrize("failpoint", ADD)
def test_an_add_that_goes_on_after_another_took_over_changes_nothing(
    ensembles: EnsembleFactory, failpoint: str, undone: bool, ending: str
) -> None:
    taken = ensembles(3)
    first, second, third = (ensemble.hosts for ensemble in taken)
    hosts = f"{first};{second}"
    done(hosts, "init")
    fill(hosts)
    with stopped(hosts, failpoint, ending, "add-ensemble", third) as victim:
        overtake(victim, ending, taken)
        if undone:
            done(hosts, "rebalance", "--abort")
            if third in members(hosts):
                done(hosts, "remove-ensemble", "e2")
        else:
            done(hosts, "add-ensemble", third)
        goes_on_harmlessly(victim, taken if not undone else taken[:2], hosts)
    if undone:
        assert set(members(hosts)) == {first, second}


@pytest.mark.parametrize("ending", OVERTAKEN)
@pytest.mark.parametrize(
    ("leaving", "failpoint"),
    [*(("e0", f) for f in REMOVE_SEAT), *(("e2", f) for f in REMOVE)],
)
def test_a_remove_that_goes_on_after_another_took_over_changes_nothing(
    ensembles: EnsembleFactory, leaving: str, failpoint: str, ending: str
) -> None:
    """And after the ensemble has been taken in again, with nodes on it."""
    taken = ensembles(3)
    every = ";".join(ensemble.hosts for ensemble in taken)
    done(every, "init")
    fill(every)
    status = json.loads(command(every, "--json", "status").stdout)
    hosts = status["ensembles"][leaving]["hosts"]
    staying = ";".join(e.hosts for e in taken if e.hosts != hosts)
    with stopped(staying, failpoint, ending, "remove-ensemble", leaving) as victim:
        overtake(victim, ending, taken)
        done(staying, "remove-ensemble", leaving)
        done(staying, "add-ensemble", hosts)
        goes_on_harmlessly(victim, taken, staying)
    assert sorted(members(staying).values()) == [341, 341, 342]


@pytest.mark.parametrize("ending", OVERTAKEN)
@pytest.mark.parametrize("failpoint", [pair[1] for pair in ABORT])
def test_an_abort_that_goes_on_after_another_took_over_changes_nothing(
    ensembles: EnsembleFactory, failpoint: str, ending: str
) -> None:
    """And after what it undid has been done all the same."""
    taken = ensembles(2)
    one, two = (ensemble.hosts for ensemble in taken)
    done(one, "init")
    fill(one)
    done(one, "add-ensemble", two, "--no-rebalance")
    first = next(pair[0] for pair in ABORT if pair[1] == failpoint)
    with stopped(one, f"{first}#9", EXPIRED, "rebalance") as mover:
        mover.expire(taken)
        with stopped(one, failpoint, ending, "rebalance", "--abort") as victim:
            overtake(victim, ending, taken)
            done(one, "rebalance")
            goes_on_harmlessly(victim, taken, one)
            goes_on_harmlessly(mover, taken, one)
    assert sorted(members(one).values()) == [512, 512]


@pytest.mark.parametrize("ending", OVERTAKEN)
@pytest.mark.parametrize("failpoint", REFENCE)
def test_raising_fences_that_goes_on_after_another_has_done_it_changes_nothing(
    ensembles: EnsembleFactory, failpoint: str, ending: str
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    done(hosts, "init")
    fill(hosts)
    put_ahead(hosts)
    with stopped(hosts, failpoint, ending, "check", "--repair") as victim:
        overtake(victim, ending, taken)
        done(hosts, "check", "--repair")
        goes_on_harmlessly(victim, taken, hosts)


@pytest.mark.parametrize(
    ("words", "failpoint"),
    [
        *((("add-ensemble",), f) for f in ADD),
        *((("remove-ensemble", "e0"), f) for f in REMOVE_SEAT),
    ],
)
def test_a_command_that_was_only_away_gets_its_work_done(
    ensembles: EnsembleFactory, words: tuple[str, ...], failpoint: str
) -> None:
    taken = ensembles(3)
    first, second, third = (ensemble.hosts for ensemble in taken)
    adds = words[0] == "add-ensemble"
    hosts = f"{first};{second}" if adds else f"{first};{second};{third}"
    done(hosts, "init")
    fill(hosts)
    if adds:
        words = (*words, third)
    with stopped(hosts, failpoint, ALIVE, *words) as victim:
        for other in (words, ("rebalance",), ("rebalance", "--abort")):
            refused = command(hosts, *other)
            assert refused.returncode == 2, refused
            assert "somebody else is changing" in refused.stderr
        assert victim.go_on() == 0, victim.told()
    sizes = sorted(members(hosts).values())
    assert sizes == ([341, 341, 342] if adds else [512, 512])
    whole(hosts)
    settled(hosts)
