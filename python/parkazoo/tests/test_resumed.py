"""A client that ends without `stop` leaves its sessions, and another, given their ids
and passwords, goes on with them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import EnsembleFactory, started
from parkazoo import ParKazooClient
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_after_lost import end, in_use
from test_client import nothing_wrong
from test_degraded import DIRECTORIES

HERE = Path(__file__).resolve().parent
SESSION_SECONDS = 12.0

# Makes an ephemeral in each directory, says what its sessions are, and is killed.
LEAVES = """
import json, os, signal, sys
from parkazoo import ParKazooClient

hosts, directories, seconds, lazy = json.loads(sys.argv[1])
client = ParKazooClient(hosts, timeout=seconds, lazy=lazy)
client.start(60)
for path in directories:
    client.create(f"{path}/held", ephemeral=True, makepath=True)
ids = {name: [number, word.hex()] for name, (number, word) in client.client_ids.items()}
print(json.dumps([ids, client.client_id[0]]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_behind(
    hosts: str, directories: list[str] = DIRECTORIES, lazy: bool = False
) -> tuple[dict[str, Any], Any]:
    """What a client that was killed gave as its `client_ids` and `client_id`."""
    words = json.dumps([hosts, directories, SESSION_SECONDS, lazy])
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, words], stdout=subprocess.PIPE, check=False
    )
    ids, home = json.loads(done.stdout)
    given = {n: (number, bytes.fromhex(word)) for n, (number, word) in ids.items()}
    return given, next(one for one in given.values() if one[0] == home)


def held(client: ParKazooClient, directories: list[str] = DIRECTORIES) -> list[int]:
    """Whose the ephemerals are that are still there."""
    found = [client.exists(f"{path}/held") for path in directories]
    return [stat.ephemeralOwner for stat in found if stat is not None]


@pytest.mark.parametrize("named", ["all", "last"])
@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_the_sessions_of_a_client_that_was_killed_go_on(
    ensembles: EnsembleFactory, lazy: bool, named: str
) -> None:
    """Giving `client_ids` ended in a KeyError."""
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    given, _ = left_behind(hosts)
    assert set(given) == {"e0", "e1", "e2"}
    with started(
        hosts if named == "all" else taken[-1].hosts,
        client_id=given,
        timeout=SESSION_SECONDS,
        lazy=lazy,
    ) as client:
        assert client.client_ids == given
        assert client.client_id in given.values()
        time.sleep(SESSION_SECONDS + 4)
        assert len(held(client)) == len(DIRECTORIES)
        assert set(held(client)) == {number for number, _ in given.values()}
        assert client.client_ids == given
        assert nothing_wrong(client)
    with started(hosts) as client:
        assert held(client) == []


@pytest.mark.parametrize("turned", [False, True])
def test_one_session_is_taken_for_that_of_the_root(
    ensembles: EnsembleFactory, turned: bool
) -> None:
    """It was taken for that of the ensemble named first, whichever that was."""
    hosts = [ensemble.hosts for ensemble in ensembles(3)]
    _, home = left_behind(";".join(hosts))
    order = hosts[::-1] if turned else hosts
    with started(";".join(order), client_id=home) as client:
        assert client.client_id == home


def test_if_one_of_the_sessions_has_ended_all_are_made_anew(
    ensembles: EnsembleFactory,
) -> None:
    """Or who resumes them would believe in a lock of the one that has."""
    taken = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    given, _ = left_behind(hosts)
    with started(hosts) as other:
        listed = dict(other.table.ensembles)  # type: ignore[union-attr]
        end(listed["e1"], given["e1"])
        heard: list[str] = []
        client = ParKazooClient(hosts, client_id=given, timeout=SESSION_SECONDS)
        client.add_listener(heard.append)
        client.start(PATIENCE_SECONDS)
        try:
            wait_until(
                lambda: client.connected and len(client.client_ids) == 3, "it is whole"
            )
            wait_until(lambda: held(other) == [], "the others have ended, too")
            assert not set(client.client_ids.values()) & set(given.values())
            client.create("/d0/held", ephemeral=True)
        finally:
            client.stop()
            client.close()


def test_sessions_of_a_namespace_that_is_not_there_are_not_waited_for(
    ensembles: EnsembleFactory,
) -> None:
    one, two = ensembles(2)
    hosts = f"{one.hosts};{two.hosts}"
    gone: dict[str, Any] = {"e0": (82838284824, b"x" * 16), "e7": (1, b"y" * 16)}
    for given in (gone, gone["e0"], {"e7": gone["e7"]}):
        for lazy in (False, True):
            with started(hosts, client_id=given, lazy=lazy) as client:
                assert not set(client.client_ids.values()) & set(gone.values())
                client.ensure_path("/a/b")


def test_a_lazy_client_resumes_what_was_open_and_opens_no_more(
    ensembles: EnsembleFactory,
) -> None:
    taken: list[Ensemble] = ensembles(3)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts) as first:
        home = first._home
        assert home is not None
        root = home.hosts_string
    given, _ = left_behind(root, [], lazy=True)
    assert len(given) == 1
    with started(hosts, client_id=given, lazy=True) as client:
        assert client.client_ids == given
        assert in_use(client) == set(given)
