"""The Stat of a directory is one it had at a moment while it was asked for.

A directory's Stat is put together from two servers' answers, which a client asks for
together when it guesses that the node is a directory. The explorer of `model` plays
both guesses against others who fill, empty, remove and remake the directory.
"""

from __future__ import annotations

from typing import Any

import pytest

from model import Broken, Explorer, Operation, Process
from parkazoo import buckets, directory
from parkazoo.layout import Layout
from parkazoo.mapping import Rules, parent

X, Y, D = ("create", "/d/x"), ("create", "/d/y"), ("create", "/d")
NOT_X, NOT_Y, NOT_D = ("delete", "/d/x"), ("delete", "/d/y"), ("delete", "/d")
WEAK = Rules(weak=(("/d", 2),))


class StatExplorer(Explorer):
    """Knows ("stat", path, guess) and ("set", path, guess), too."""

    def machine(self, operation: Operation, tag: str) -> Any:
        if operation[0] not in ("stat", "set"):
            return super().machine(operation, tag)
        kind, path, linked = operation
        layout = Layout(self.layout.rules)
        layout.learn(path, linked)
        if kind == "stat":
            return directory.exists(layout, path)
        return directory.set_data(layout, path, b"", -1)

    @staticmethod
    def facts(operation: Operation, tree: dict[str, int]) -> frozenset[Any]:
        if operation[0] not in ("stat", "set"):
            return Explorer.facts(operation, tree)
        path = operation[1]
        if path not in tree:
            return frozenset({("stat", None), "absent"})
        return frozenset({("stat", sum(parent(other) == path for other in tree))})

    @staticmethod
    def check_outcome(process: Process, outcome: Any) -> None:
        kind = process.operations[0][0]
        if kind == "set" and isinstance(outcome, Exception):
            Explorer.check_outcome(process, outcome)
        elif kind in ("stat", "set"):
            count = None if outcome is None else outcome.numChildren
            if ("stat", count) not in process.facts:
                raise Broken(f"{kind}: {count} children, of {set(process.facts)}")
        else:
            Explorer.check_outcome(process, outcome)


SCENARIOS: dict[str, dict[str, Any]] = {
    "it is filled and removed": dict(others=[[X, NOT_X, NOT_D]], nodes=["/d"]),
    "a full one is emptied and made anew": dict(
        others=[[NOT_X, NOT_D, D, Y]], nodes=["/d", "/d/x"]
    ),
    "two fill and empty it": dict(others=[[X, NOT_X], [Y, NOT_Y]], nodes=["/d"]),
    "it is made and filled, and a client dies": dict(
        others=[[D, X], [NOT_D]], nodes=[], crashes=1
    ),
    "a weak one is filled and emptied": dict(
        others=[[X, NOT_X, NOT_D]], nodes=["/d"], rules=WEAK
    ),
}


@pytest.mark.parametrize("linked", [False, True], ids=["guessed leaf", "guessed dir"])
@pytest.mark.parametrize("kind", ["stat", "set"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_directorys_stat_was_true_while_it_was_asked_for(
    scenario: dict[str, Any], kind: str, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(scenario)
    processes = [[(kind, "/d", linked)], *options.pop("others")]
    for module in (buckets, directory):
        attempts = 1 if len(processes) > 2 else 2
        monkeypatch.setattr(module, "ATTEMPTS_MAX", attempts)
    assert StatExplorer(processes, **options).run() > 10


def test_a_stat_without_its_bucket_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a guess that is taken for an answer."""

    def believed(layout: Layout, path: str, stat: Any, found: Any) -> Any:
        return stat
        yield

    monkeypatch.setattr(directory, "_completed", believed)
    explorer = StatExplorer([[("stat", "/d", False)], [NOT_X]], ["/d", "/d/x", "/d/y"])
    with pytest.raises(Broken):
        explorer.run()
