"""Clients and frameworks that programs use, unmodified and with their defaults, and the table of them in the guide."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from programs import GUIDES, LANGUAGES, Programs
from targets import Target

Tried = dict[tuple[str, str], dict[str, str]]

PAGE = GUIDES / "from-redis.md"
BEGIN, END = "<!-- what was tried: begin -->\n", "<!-- what was tried: end -->\n"

FLUSHES = "python"
STRINGS, PIPELINE, SCAN, NOTHING = "strings", "pipeline", "scan", "nothing of a transaction"
CLIENTS = ["redis-py", "node-redis", "ioredis", "go-redis", "Jedis", "Lettuce"]
REFUSED_ON_PURPOSE = {
    **{(client, "transaction"): "transaction" for client in CLIENTS},
    ("redis-py", "`Lock`"): "EVALSHA",
    ("Django", "cache: `set_many`"): "transaction",
    ("Django", "cache: `incr`, `decr`"): "INCRBY",
    ("Django", "cache: `clear`"): "FLUSHDB",
}


@pytest.fixture(scope="session")
def tried(target: Target, programs: Programs) -> Tried:
    prefix = f"tried:{uuid.uuid4().hex[:12]}"
    # By itself: Django empties its cache with FLUSHDB, and at Redis that takes the others' keys along.
    first = programs.round(FLUSHES, target.addresses[0], prefix)
    others = [name for name in LANGUAGES if name != FLUSHES]
    with ThreadPoolExecutor() as pool:
        rounds = [first, *pool.map(lambda name: programs.round(name, target.addresses[0], prefix), others)]
        reports = [report for round_ in rounds for report in round_]
    return {(report["client"], report["probe"]): report for report in reports}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_connects_with_its_defaults_and_makes_a_round(tried: Tried, client: str) -> None:
    for probe in (STRINGS, PIPELINE, SCAN):
        assert tried[client, probe]["result"] == "yes", probe


@pytest.mark.only("tontine", "Redis carries transactions out")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_transaction_writes_nothing(tried: Tried, client: str) -> None:
    assert "transaction" in tried[client, "transaction"]["result"]
    assert tried[client, NOTHING]["result"] == "yes"


def test_every_probe_is_carried_out_or_refused_on_purpose(target: Target, tried: Tried) -> None:
    for probe, report in tried.items():
        if target.name == "redis":
            assert report["result"] == "yes" or probe[1] == NOTHING, report
        elif probe in REFUSED_ON_PURPOSE:
            assert REFUSED_ON_PURPOSE[probe] in report["result"], report
        else:
            assert report["result"] == "yes", report
    assert REFUSED_ON_PURPOSE.keys() <= tried.keys()


@pytest.mark.only("tontine", "the table says what Tontine does")
def test_the_guide_shows_what_was_tried(tried: Tried) -> None:
    """UPDATE_EXPECT=1 writes the table anew."""
    table = "| client or framework | version | what was tried | result |\n|---|---|---|---|\n"
    for (client, probe), report in tried.items():
        if probe != NOTHING:
            table += f"| {client} | {report['version']} | {probe} | {in_words(client, probe, report)} |\n"
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    if os.environ.get("UPDATE_EXPECT"):
        PAGE.write_text(before + BEGIN + table + END + after)
        shown = table
    assert shown == table, f"{PAGE} shows another table; UPDATE_EXPECT=1 writes it anew"


def in_words(client: str, probe: str, report: dict[str, str]) -> str:
    if report["result"] == "yes":
        return "works"
    word = REFUSED_ON_PURPOSE[client, probe]
    return "refused: `MULTI`; nothing is written" if word == "transaction" else f"refused: `{word}`"
