"""Recursive deletes and transactions over shards, finished by others, in every order.

The scenarios are the smallest in which who began, who finishes and who uses the same
paths anew can hurt each other; the planted faults show that the explorer would notice.
"""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Create, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from model import documented
from model_intents import Broken, Explorer, Tree, World
from parkazoo import intents, record, remove

FINISH = ("finish",)
ALL_D = ("recursive", "/d")
BOTH = ("/a/t", "/b/t")
ACROSS = ("transaction", tuple(Create(p, b"", OPEN_ACL_UNSAFE, 0) for p in BOTH))
# What was before is in a node of its own.
HIDING = ("transaction", (ACROSS[1][0], SetData("/a/hidden", b"", -1), ACROSS[1][1]))
TREE = ["/d", "/d/x"]
PARENTS = ["/a", "/a/o", "/b", "/b/o"]
SECRET = [*PARENTS, "/a/hidden"]
ANEW = [("delete", "/d/x"), ("delete", "/d"), ("create", "/d"), ("create", "/d/x")]

SCENARIOS: dict[str, dict[str, Any]] = {
    "an owner that crashes, and a finisher": dict(
        processes=[[ALL_D], [FINISH]], nodes=TREE, crashes=1
    ),
    "an owner that goes on without one session, and a finisher": dict(
        processes=[[ALL_D], [FINISH]], nodes=TREE, losses=1
    ),
    "two finishers": dict(
        processes=[[FINISH], [FINISH]], nodes=TREE, left=(ALL_D, 2)
    ),
    "a finisher and a new life": dict(
        processes=[[FINISH], ANEW], nodes=TREE, left=(ALL_D, 2)
    ),
    "a finisher of little and a new life": dict(
        processes=[[FINISH], ANEW], nodes=TREE, left=(ALL_D, 5)
    ),
    "a transaction without one session, and a finisher": dict(
        processes=[[ACROSS], [FINISH]], nodes=PARENTS, losses=1
    ),
    "a transaction that goes on in its next session, and a finisher": dict(
        processes=[[ACROSS], [FINISH]], nodes=PARENTS, losses=1, renewed=True
    ),
    "a transaction that crashes, and a finisher": dict(
        processes=[[ACROSS], [FINISH]], nodes=PARENTS, crashes=1
    ),
    "a transaction, a finisher, and somebody in its place": dict(
        processes=[[ACROSS], [FINISH], [("create", "/b/t")]], nodes=PARENTS, losses=1
    ),
    "a hiding transaction that goes on in its next session, and a finisher": dict(
        processes=[[HIDING], [FINISH]], nodes=SECRET, losses=1, renewed=True
    ),
    "a hiding transaction that crashes, and a finisher": dict(
        processes=[[HIDING], [FINISH]], nodes=SECRET, crashes=1
    ),
    **{
        f"two finishers of a transaction after {steps} steps": dict(
            processes=[[FINISH], [FINISH]], nodes=PARENTS, left=(ACROSS, steps)
        )
        for steps in (4, 5, 6)
    },
    "an owner or a finisher without an answer": dict(
        processes=[[ALL_D], [FINISH]], nodes=TREE, unanswered=1, losers=2
    ),
    "two finishers, and one has no answer": dict(
        processes=[[FINISH], [FINISH]], nodes=TREE, left=(ALL_D, 2), unanswered=1
    ),
    "a transaction or a finisher without an answer": dict(
        processes=[[ACROSS], [FINISH], [FINISH]], nodes=PARENTS, unanswered=1, losers=2
    ),
    "a hiding transaction or a finisher without an answer": dict(
        processes=[[HIDING], [FINISH]], nodes=SECRET, unanswered=1, losers=2
    ),
    "a transaction or a finisher without an answer, and somebody in its place": dict(
        processes=[[ACROSS], [FINISH], [("create", "/b/t")]],
        nodes=PARENTS, unanswered=1, losers=2,
    ),
    "a transaction without an answer and one session, and a finisher": dict(
        processes=[[ACROSS], [FINISH]],
        nodes=PARENTS, unanswered=1, losses=1, losers=2, renewed=True,
    ),
}  # fmt: skip
LARGE: dict[str, dict[str, Any]] = {
    "a transaction without one session, and two finishers": dict(
        processes=[[ACROSS], [FINISH], [FINISH]], nodes=PARENTS, losses=1
    ),
    "a transaction that goes on in its next session, and two finishers": dict(
        processes=[[ACROSS], [FINISH], [FINISH]], nodes=PARENTS, losses=1, renewed=True
    ),
    "a transaction and a finisher, each without one session, and a finisher": dict(
        processes=[[ACROSS], [FINISH], [FINISH]], nodes=PARENTS, losses=2, losers=2
    ),
    "an owner, a finisher and a new life": dict(
        processes=[[ALL_D], [FINISH], ANEW[:3]], nodes=TREE, losses=1
    ),
    "an owner or a finisher without an answer and one session": dict(
        processes=[[ALL_D], [FINISH]],
        nodes=TREE,
        unanswered=1,
        losses=1,
        losers=2,
        renewed=True,
    ),
    "an owner or a finisher without an answer, and a new life": dict(
        processes=[[ALL_D], [FINISH], ANEW[:3]], nodes=TREE, unanswered=1, losers=2
    ),
}


def judged(scenario: dict[str, Any]) -> int:
    """Explore it; what every caller was told must be so when all has ended."""
    explorer = Explorer(**scenario)

    def judge(world: World, trees: dict[str, Tree]) -> None:
        there = explorer.logical(trees)
        begun = {entry[0] for process in world.processes for entry in process.work}
        if scenario.get("left"):
            begun.add(scenario["left"][0][0])
        if "transaction" in begun:
            transaction_is_whole(explorer, world, there)
        else:
            tree_is_as_told(explorer, world, there)

    return explorer.run(judge)


def transaction_is_whole(explorer: Explorer, world: World, there: set[str]) -> None:
    made = there & set(BOTH)
    for process in world.processes:
        for entry, outcome in told(explorer, process):
            if entry == ("create", "/b/t") and not isinstance(outcome, Exception):
                # Its place was free, so nothing of the transaction may stay.
                if made != {"/b/t"}:
                    raise Broken(f"a part of it stayed: {made}")
                made = set()
    for process in world.processes:
        for entry, outcome in told(explorer, process):
            done = entry[0] == "transaction" and not isinstance(outcome, Exception)
            if done and made != set(BOTH):
                raise Broken(f"it was acknowledged, and there is {made}")
    if made not in (set(), set(BOTH)):
        raise Broken(f"a part of a transaction: {made}")


def tree_is_as_told(explorer: Explorer, world: World, there: set[str]) -> None:
    anew = [p for p in world.processes if ("create", "/d") in p.work]
    if not anew:
        taken_back = any(
            isinstance(outcome, ConnectionLoss)
            for process in world.processes
            for _, outcome in told(explorer, process)
        )
        whole = {"/d", "/d/x"} <= there and set(dict(world.lives).values()) == {1}
        if world.marked and "/d" in there and not (taken_back and whole):
            raise Broken("it was to go, and is there")
        return
    for entry, outcome in told(explorer, anew[0]):
        made = entry[0] == "create" and not isinstance(outcome, Exception)
        # Whoever still owns the delete takes all that it finds with it.
        owned = any(ALL_D in process.work for process in world.processes)
        if made and not owned and entry[1] not in there:
            raise Broken(f"{entry[1]} was made anew, nobody deleted it, and it is lost")


def told(explorer: Explorer, process: Any) -> list[tuple[Any, Any]]:
    return list(zip(process.work, explorer.outcomes(process) or [], strict=False))


# How many states each has, as in docs/design.md: a scenario that has become smaller
# might find no fault any more.
STATES = {
    "an owner that crashes, and a finisher": 294,
    "an owner that goes on without one session, and a finisher": 820,
    "two finishers": 234,
    "a finisher and a new life": 11_522,
    "a finisher of little and a new life": 1_784,
    "a transaction without one session, and a finisher": 810,
    "a transaction that goes on in its next session, and a finisher": 1_434,
    "a transaction that crashes, and a finisher": 200,
    "a transaction, a finisher, and somebody in its place": 3_346,
    "a hiding transaction that goes on in its next session, and a finisher": 1_690,
    "a hiding transaction that crashes, and a finisher": 216,
    "two finishers of a transaction after 4 steps": 295,
    "two finishers of a transaction after 5 steps": 393,
    "two finishers of a transaction after 6 steps": 217,
    "an owner or a finisher without an answer": 765,
    "two finishers, and one has no answer": 1_922,
    "a transaction or a finisher without an answer": 9_109,
    "a hiding transaction or a finisher without an answer": 673,
    "a transaction or a finisher without an answer, and somebody in its place": 1_939,
    "a transaction without an answer and one session, and a finisher": 18_615,
}
LARGE_STATES = {
    "a transaction without one session, and two finishers": 19_250,
    "a transaction that goes on in its next session, and two finishers": 44_994,
    "a transaction and a finisher, each without one session, and a finisher": 227_719,
    "an owner, a finisher and a new life": 126_533,
    "an owner or a finisher without an answer and one session": 84_029,
    "an owner or a finisher without an answer, and a new life": 94_488,
}


@pytest.mark.parametrize(
    ("scenario", "states"),
    [(SCENARIOS[name], states) for name, states in STATES.items()],
    ids=STATES,
)
def test_in_every_order_work_left_behind_is_finished_once(
    scenario: dict[str, Any], states: int
) -> None:
    assert judged(scenario) == states


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scenario", "states"),
    [(LARGE[name], states) for name, states in LARGE_STATES.items()],
    ids=LARGE_STATES,
)
def test_so_it_is_with_one_more_process(scenario: dict[str, Any], states: int) -> None:
    assert judged(scenario) == states


def test_every_scenario_is_run_and_documented() -> None:
    assert STATES.keys() == SCENARIOS.keys()
    assert LARGE_STATES.keys() == LARGE.keys()
    documented({**STATES, **LARGE_STATES})


# -- planted faults: what the explorer is worth ----------------------------------

DELETE_ALL, HOLD, FORGET, TAKE = (
    remove._delete_all, remove._hold, intents.forget, intents.take,
)  # fmt: skip


def _delete_by_name(client: Any, path: str, life: Any = None, guard: Any = ()) -> None:
    """A finisher that looks at the mark once, and then deletes by name."""
    DELETE_ALL(client, path)


def _hold_and_do_not_look(client: Any, path: str, life: Any, checks: Any) -> None:
    """A finisher that leaves its claim, and does not look at the mark after that."""
    before, remove._bears_mark = remove._bears_mark, lambda *_: True
    try:
        HOLD(client, path, life, checks)
    finally:
        remove._bears_mark = before


def _forget_whosoever(
    ensemble: Any, intent: str, version: int = -1, hidden: bool = False
) -> bool:
    """An owner that takes its intent away, whoever may have taken it over."""
    FORGET(ensemble, intent)
    return True


def _prevent_nobody(client: Any, shard: int, identity: str) -> bool:
    """Who undoes a transaction leaves no mark where its part is yet to be done."""
    return True


def _decide_unseen(
    ensemble: Any, intent: str, document: dict[str, Any], version: int
) -> int | None:
    """Who undoes a transaction does not write that down first."""
    return version


def _disown_whosoever(ensemble: Any, intent: str) -> None:
    """Who does not know whether an intent is its own ends whose it is."""
    ensemble.delete(f"{intent}/owner")


def _release_nobody(client: Any, ensemble: Any, intent: str) -> None:
    """Who cannot go on keeps the intent for as long as it lives."""


PLANTED: dict[str, tuple[Any, str, Any, str]] = {
    "deleting by name": (
        remove, "_delete_all", _delete_by_name, "a finisher and a new life",
    ),
    "a claim, and no look after it": (
        remove, "_hold", _hold_and_do_not_look, "a finisher and a new life",
    ),
    "an intent that anybody takes away": (
        intents, "forget", _forget_whosoever,
        "a transaction that goes on in its next session, and a finisher",
    ),
    "no mark that says never": (
        intents, "_prevent", _prevent_nobody,
        "a transaction without one session, and a finisher",
    ),
    "undoing that is not written down": (
        intents, "decide_undone", _decide_unseen,
        "a transaction and a finisher, each without one session, and a finisher",
    ),
    "an ownership that anybody ends": (
        record, "_disown", _disown_whosoever,
        "a transaction or a finisher without an answer",
    ),
    "an intent that is not let go": (
        intents, "release", _release_nobody,
        "a transaction or a finisher without an answer, and somebody in its place",
    ),
    "a recursive delete that is not let go": (
        remove, "release", _release_nobody, "an owner or a finisher without an answer",
    ),
}  # fmt: skip


EVERY = {**SCENARIOS, **LARGE}


@pytest.mark.parametrize(
    ("module", "name", "broken", "scenario"),
    [(m, name, broken, EVERY[where]) for m, name, broken, where in PLANTED.values()],
    ids=PLANTED,
)
def test_a_planted_fault_is_found(
    module: Any,
    name: str,
    broken: Any,
    scenario: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(Broken) as found:
        judged(scenario)
    print(found.value)
