"""Every interleaving of the step machines keeps the promises of ZooKeeper's tree.

The scenarios are the smallest in which each pair of operations can hurt another;
the planted faults show that the explorer would notice.
"""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.serialization import Create, Delete, GetChildren
from kazoo.security import OPEN_ACL_UNSAFE

from model import Broken, Explorer, documented
from parkazoo import buckets, directory
from parkazoo.layout import LINK
from parkazoo.mapping import Rules
from parkazoo.steps import Call, Multi, MultiFailed

X, Y, D = ("create", "/d/x"), ("create", "/d/y"), ("create", "/d")
NOT_X, NOT_D = ("delete", "/d/x"), ("delete", "/d")
ALL_D, LIST_D = ("recursive", "/d"), ("children", "/d")
EPHEMERAL_D = ("create", "/d", 1)
WEAK = Rules(weak=(("/d", 2),))

SCENARIOS: dict[str, dict[str, Any]] = {
    "two creators and a remover": dict(processes=[[X], [Y], [NOT_D]], nodes=["/d"]),
    "creator against remover who makes it anew": dict(
        processes=[[X], [NOT_D, D]], nodes=["/d"], crashes=1
    ),
    "two removers, one makes it anew": dict(
        processes=[[X], [NOT_D, D], [NOT_D]], nodes=["/d"]
    ),
    "a used directory and two removers": dict(
        processes=[[Y], [NOT_X, NOT_D, D], [NOT_D]], nodes=["/d", "/d/x"]
    ),
    "a new life with a new child": dict(
        processes=[[NOT_D, D, Y], [NOT_D]], nodes=["/d", "/d/x"], setup=[NOT_X],
        crashes=1,
    ),
    "recursive deletes meet": dict(
        processes=[[ALL_D], [ALL_D]], nodes=["/d", "/d/x"], crashes=1
    ),
    "recursive delete meets creators": dict(
        processes=[[ALL_D, D], [Y]], nodes=["/d", "/d/x"], crashes=1
    ),
    "an ephemeral takes the directory's place": dict(
        processes=[[X], [NOT_D, EPHEMERAL_D]], nodes=["/d"], crashes=1
    ),
    "listing while it all goes": dict(
        processes=[[LIST_D], [X, NOT_X, NOT_D]], nodes=["/d"]
    ),
    "stale reads, creator and remover": dict(
        processes=[[X], [NOT_D, D]], nodes=["/d"], stale=True
    ),
    "stale reads, a used directory": dict(
        processes=[[Y], [NOT_X, NOT_D]], nodes=["/d", "/d/x"], stale=True, crashes=1
    ),
    "a weak directory": dict(
        processes=[[X], [NOT_D]], nodes=["/d"], rules=WEAK, crashes=1
    ),
    "a weak directory with two creators": dict(
        processes=[[X], [Y], [NOT_D]], nodes=["/d"], rules=WEAK
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_attempts(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who keep hindering each other would make the run endless.

    With three processes a machine gives up at once: starting again is the same as
    another creator's start, and that is among the scenarios.
    """
    if "scenario" not in request.fixturenames:
        return
    scenario = request.getfixturevalue("scenario")
    attempts = 1 if len(scenario["processes"]) > 2 else 2
    for module in (buckets, directory):
        monkeypatch.setattr(module, "ATTEMPTS_MAX", attempts)


# How many states each has, as in docs/design.md: a scenario that has become smaller
# might find no fault any more.
STATES = {
    "two creators and a remover": 8_921,
    "creator against remover who makes it anew": 986,
    "two removers, one makes it anew": 721,
    "a used directory and two removers": 4_116,
    "a new life with a new child": 6_443,
    "recursive deletes meet": 2_463,
    "recursive delete meets creators": 989,
    "an ephemeral takes the directory's place": 1_024,
    "listing while it all goes": 74,
    "stale reads, creator and remover": 353,
    "stale reads, a used directory": 688,
    "a weak directory": 705,
    "a weak directory with two creators": 6_621,
}


@pytest.mark.parametrize(
    ("scenario", "states"),
    [(SCENARIOS[name], states) for name, states in STATES.items()],
    ids=STATES,
)
def test_every_order_of_steps_is_a_run_of_one_tree(
    scenario: dict[str, Any], states: int
) -> None:
    assert Explorer(**scenario).run() == states


def test_every_scenario_is_run_and_documented() -> None:
    assert STATES.keys() == SCENARIOS.keys()
    documented(STATES)


# -- planted faults: what the explorer is worth ----------------------------------


def _link_by_one_name(home: Any, links: list[str], link: str) -> Any:
    """A link without an identity, as in the first draft: made, or found there."""
    try:
        yield Call(
            home.shard, Multi((Create(home.path + LINK, b"", OPEN_ACL_UNSAFE, 0),))
        )
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExistsError):
            raise


def _close_but_spare_claims(bucket: Any) -> Any:
    """A remover that deletes the bucket and leaves the claims of creators alone."""
    try:
        yield Call(bucket.shard, Multi((Delete(bucket.path, -1),)))
    except MultiFailed as failed:
        if isinstance(failed.error, NotEmptyError):
            raise failed.error from None


def _close_on_a_read(bucket: Any) -> Any:
    """A remover that believes a read which says there is no anchor."""
    try:
        yield Call(bucket.shard, GetChildren(bucket.anchor, None))
    except NoNodeError:
        return
    yield from CLOSE(bucket)


CLOSE = buckets._close
PLANTED: dict[str, tuple[str, Any, str]] = {
    "links without identity": (
        "_link", _link_by_one_name, "a new life with a new child",
    ),
    "claims survive the remover": (
        "_close", _close_but_spare_claims, "creator against remover who makes it anew",
    ),
    "a stale read ends the closing": (
        "_close", _close_on_a_read, "stale reads, creator and remover",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "broken", "scenario"),
    [(name, broken, SCENARIOS[where]) for name, broken, where in PLANTED.values()],
    ids=PLANTED,
)
def test_a_planted_fault_is_found(
    name: str, broken: Any, scenario: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, name, broken)
    with pytest.raises(Broken) as found:
        Explorer(**scenario).run()
    print(found.value)
