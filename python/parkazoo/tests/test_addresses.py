"""An ensemble whose servers get other addresses stays the member it was."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from typing import Any

import pytest
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, started
from parkazoo import ParKazooClient, cli
from servers import Ensemble, free_port, wait_until
from test_client import nothing_wrong

Said = pytest.CaptureFixture[str]


# Kazoo waits up to a minute between two attempts; these are to be quicker.
PATIENT: dict[str, Any] = {
    "timeout": 40,
    "connection_retry": {"max_tries": -1, "max_delay": 1},
}


def move_to_another_port(ensemble: Ensemble) -> None:
    (server,) = ensemble.servers
    ensemble.stop()
    server.client_port = free_port()
    server.configure([server])
    ensemble.start()


def table_of(hosts: str, capsys: Said) -> dict[str, str]:
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "--json", "status"]) == 0
    found = json.loads(capsys.readouterr().out)["ensembles"]
    return {name: entry["hosts"] for name, entry in found.items()}


@pytest.mark.parametrize("which", ["e0", "e1"], ids=["seat", "member"])
def test_an_ensemble_at_another_port_is_found_by_those_who_run_and_who_start(
    ensembles: EnsembleFactory, capsys: Said, which: str
) -> None:
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, **PATIENT) as client:
        for number in range(8):
            client.create(f"/d{number}/held", ephemeral=True, makepath=True)
        states: list[str] = []
        client.add_listener(states.append)
        listed = table_of(hosts, capsys)
        moving = next(e for e in taken if e.hosts == listed[which])
        stays = next(e for e in taken if e is not moving)
        before = moving.hosts
        move_to_another_port(moving)
        wait_until(lambda: client.state == KazooState.SUSPENDED, "it is missed")

        # Whoever is asked knows the old address only, or the one that answers.
        asked = hosts if which == "e0" else stays.hosts
        assert cli.main(["--hosts", asked, "set-hosts", which, moving.hosts]) == 0
        wait_until(lambda: len(states) > 1, "it is found again")
        assert states == [KazooState.SUSPENDED, KazooState.CONNECTED]
        with started(stays.hosts, auto_init=False, **PATIENT) as late:
            for number in range(8):
                assert late.exists(f"/d{number}/held").ephemeralOwner
                assert client.set(f"/d{number}/held", b"mine").version == 1
            assert table_of(stays.hosts, capsys)[which] == moving.hosts
            assert moving.hosts != before
            assert nothing_wrong(late)


def test_two_that_have_moved_at_once_are_found_by_who_names_both(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """The command for each stopped at the other, and said to run it for that first."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    assert cli.main(["--hosts", hosts, "init"]) == 0
    listed = table_of(hosts, capsys)
    named = {n: next(e for e in taken if e.hosts == h) for n, h in listed.items()}
    for ensemble in taken:
        move_to_another_port(ensemble)
    after = ";".join(ensemble.hosts for ensemble in taken)
    command = ["--timeout", "5", "--hosts", hosts, "set-hosts"]
    assert cli.main([*command, "e0", named["e0"].hosts]) == 2
    assert "`--hosts` with all of the new addresses" in capsys.readouterr().err
    for name, ensemble in named.items():
        assert cli.main(["--hosts", after, "set-hosts", name, ensemble.hosts]) == 0
    found = table_of(taken[0].hosts, capsys)
    assert found == {name: ensemble.hosts for name, ensemble in named.items()}


def test_the_address_of_somebody_else_is_refused(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    first, second, third = ensembles(3)
    hosts = f"{first.hosts};{second.hosts}"
    assert cli.main(["--hosts", hosts, "init"]) == 0
    listed = table_of(hosts, capsys)
    name = next(n for n, h in listed.items() if h == second.hosts)
    for given, why in (
        (first.hosts, "is a server of"),
        (third.hosts, "is not a server of .* holds nothing of a namespace"),
        (f"{second.hosts},{third.hosts}", "are not the servers of one ensemble"),
        (f"127.0.0.1:{free_port()}", "none of .* answers"),
    ):
        capsys.readouterr()
        code = cli.main(["--hosts", hosts, "set-hosts", name, given])
        said = capsys.readouterr().err
        assert code == 2, given
        assert re.search(why, said), (given, said)
    assert cli.main(["--hosts", hosts, "set-hosts", "e7", second.hosts]) == 2
    assert table_of(hosts, capsys) == listed


@pytest.mark.parametrize("name", ["e0", "e1"])
def test_the_server_of_another_namespace_is_what_is_named(
    ensembles: EnsembleFactory, capsys: Said, name: str
) -> None:
    """It was looked at first, and the seat said to hold another namespace; and, where
    it had a member of that name, its own table was found to be right already."""
    first, second, third = (ensemble.hosts for ensemble in ensembles(3))
    hosts = f"{first};{second}"
    for made in (hosts, third):
        assert cli.main(["--hosts", made, "init"]) == 0
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "set-hosts", name, third]) == 2
    said = capsys.readouterr().err
    assert f"{third} belongs to another namespace" in said and "backup" not in said


def test_a_silent_server_is_waited_for_as_long_as_was_said(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """It took fifteen seconds, or eight."""
    hosts, nobody = ensembles(1)[0].hosts, f"127.0.0.1:{free_port()}"
    begun = time.monotonic()
    assert cli.main(["--hosts", hosts, "init"]) == 0
    machine = time.monotonic() - begun  # how slow it is just now
    for words in (["add-ensemble", nobody], ["set-hosts", "e0", nobody]):
        begun = time.monotonic()
        assert cli.main(["--hosts", hosts, "--timeout", "2", *words]) == 2
        assert time.monotonic() - begun < 6 + 3 * machine
        assert nobody in capsys.readouterr().err


def test_one_of_two_that_both_take_themselves_for_the_member_is_refused(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """It was brought up from a backup, while the one it is of went on."""
    first, second = ensembles(2)
    hosts = f"{first.hosts};{second.hosts}"
    assert cli.main(["--hosts", hosts, "init"]) == 0
    listed = table_of(hosts, capsys)
    name = next(n for n, h in listed.items() if h == second.hosts)
    with Ensemble() as twin:
        twin.stop()
        second.stop()
        (source,), (target,) = second.servers, twin.servers
        shutil.rmtree(target.directory / "data")
        shutil.copytree(source.directory / "data", target.directory / "data")
        second.start()
        twin.start()
        capsys.readouterr()
        assert cli.main(["--hosts", hosts, "set-hosts", name, twin.hosts]) == 2
        assert f"another {name} still runs" in capsys.readouterr().err
        assert table_of(hosts, capsys) == listed
        both = f"{second.hosts},{twin.hosts}"
        assert cli.main(["--hosts", hosts, "set-hosts", name, both]) == 2
        assert "is a copy of its own" in capsys.readouterr().err
        second.stop()
        assert cli.main(["--hosts", first.hosts, "set-hosts", name, twin.hosts]) == 0
        assert table_of(first.hosts, capsys)[name] == twin.hosts


def test_adding_a_member_under_other_hosts_says_what_changes_them(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    first, second = ensembles(2)
    hosts = f"{first.hosts};{second.hosts}"
    assert cli.main(["--hosts", hosts, "init"]) == 0
    listed = table_of(hosts, capsys)
    name = next(n for n, h in listed.items() if h == second.hosts)
    port = second.servers[0].client_port

    more = f"{second.hosts},127.0.0.1:{free_port()}"
    assert cli.main(["--hosts", hosts, "add-ensemble", more]) == 0
    assert f"`parkazoo set-hosts {name} {more}`" in capsys.readouterr().err
    alias = f"localhost:{port}"
    assert cli.main(["--hosts", hosts, "add-ensemble", alias]) == 2
    assert f"`parkazoo set-hosts {name} {alias}`" in capsys.readouterr().err
    assert table_of(hosts, capsys) == listed

    assert cli.main(["--hosts", hosts, "set-hosts", name, alias]) == 0
    assert table_of(hosts, capsys)[name] == alias


@pytest.mark.parametrize("degraded", [False, True], ids=["strict", "degraded"])
def test_addresses_that_nobody_has_any_more_do_not_hold_up_a_start(
    ensembles: EnsembleFactory, degraded: bool
) -> None:
    """Each was waited for as long as a session lasts, one after the other, before the
    table was used that has the new ones."""
    first, second = ensembles(2)
    with started(f"{first.hosts};{second.hosts}") as client:
        client.create("/x")
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    away = [f"127.0.0.1:{free_port()}"]
    away += [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
    beside = f"{first.hosts},127.0.0.1:{silent[0].getsockname()[1]}"
    for hosts in ([*away, first.hosts], [beside, *away[2:]]):
        client = ParKazooClient(";".join(hosts), timeout=15, degraded=degraded)
        client.start()
        assert client.connected and client.exists("/x") is not None
        client.stop()
        client.close()
    for one in silent:
        one.close()
