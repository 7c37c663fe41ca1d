"""Which tests only `./check --full` runs, as `full.txt` says."""

from __future__ import annotations

from functools import cache

from servers import HERE

LIST = HERE / "full.txt"


@cache
def lines() -> tuple[str, ...]:
    """The entries, in their order, each with its "!" if it has one."""
    found = (line.strip() for line in LIST.read_text().splitlines())
    return tuple(line for line in found if line and not line.startswith("#"))


def fits(entry: str, test: str) -> bool:
    """Is this test (`file.py::name[case]`) meant by an entry without its "!"?"""
    return test == entry or test.startswith((f"{entry}::", f"{entry}["))


def only_in_full(test: str) -> bool:
    decided = False
    for line in lines():
        if fits(line.lstrip("!"), test):
            decided = not line.startswith("!")
    return decided
