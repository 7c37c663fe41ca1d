"""Each promise of guarantees.md has its test in the quick suite, and the table that
says so (promises.md) is true."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

import pytest

from selection import fits, lines, only_in_full
from servers import HERE

DOCS = HERE.parent / "docs"
# These explain, and promise nothing.
NO_PROMISES = {"How it works, in one paragraph"}
NOT_PROMISED = "**Not guaranteed"


class Promise(NamedTuple):
    section: str
    words: str
    test: str


def table() -> list[Promise]:
    found = []
    for line in (DOCS / "promises.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "section":
            section, words, test = cells
            found.append(Promise(section, words, test.strip("` |")))
    return found


def sections() -> dict[str, str]:
    """The text of each, without what it says is not guaranteed."""
    found: dict[str, str] = {}
    section, promised = "", True
    for line in (DOCS / "guarantees.md").read_text().splitlines():
        if line.startswith("#"):
            promised = True
            if line.startswith("## "):
                section = line.removeprefix("## ")
        elif line.startswith(NOT_PROMISED):
            promised = False
        elif promised and section:
            found[section] = found.get(section, "") + line + "\n"
    return {name: text for name, text in found.items() if name not in NO_PROMISES}


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((HERE / file).read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))


def is_quick(test: str) -> bool:
    """Of a test without a case: is any of its cases?"""
    if not only_in_full(test):
        return True
    back = (line[1:] for line in lines() if line.startswith("!"))
    return any(fits(test, line) for line in back)


@pytest.mark.parametrize("promise", table(), ids=lambda promise: promise.words[:60])
def test_a_promise_has_its_test_in_the_quick_suite(promise: Promise) -> None:
    assert promise.words in sections()[promise.section], "these are not its words"
    file, _, name = promise.test.partition("::")
    assert name.partition("[")[0] in functions_in(file), "there is no such test"
    assert is_quick(promise.test), "only ./check --full runs it"


def test_no_promise_is_left_out() -> None:
    """Each list item and each line of a table is one, and each section has some."""
    promised: dict[str, list[str]] = {}
    for promise in table():
        promised.setdefault(promise.section, []).append(promise.words)
    left_out = []
    for section, text in sections().items():
        assert section in promised, f"no promise of {section!r} has a test"
        for line in text.splitlines():
            item = line.startswith("- ") or (
                line.startswith("| ") and not line.endswith((" behind it |", "whose |"))
            )
            if item and not any(words in line for words in promised[section]):
                left_out.append(f"{section}: {line[:80]}")
    assert left_out == [], "docs/promises.md names no test of these"
