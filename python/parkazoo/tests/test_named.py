"""Log lines and errors say which ensemble they are about."""

from __future__ import annotations

import logging

import pytest
from kazoo.exceptions import ConnectionLoss

from conftest import EnsembleFactory, started
from parkazoo import cli
from servers import free_port, wait_until
from test_late import directory_on


def test_a_lost_connection_is_told_with_the_name_of_its_ensemble(
    ensembles: EnsembleFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """With three ensembles "Connection dropped" said nothing of which."""
    taken = ensembles(2)
    logger = logging.getLogger("parkazoo.test")
    caplog.set_level(logging.INFO, logger.name)
    with started(";".join(e.hosts for e in taken), logger=logger) as client:
        assert client.table is not None
        name = list(client.table.ensembles)[1]
        path = directory_on(client, name)
        lost = next(e for e in taken if e.hosts == client.table.ensembles[name])
        lost.pause()
        asked = client.set_async(f"{path}/first", b"")
        shown = f"ensemble {name} ({lost.hosts})"
        wait_until(lambda: not client._sessions.by_name[name]._queue, "it is sent")
        lost.kill()
        with pytest.raises(ConnectionLoss) as told:
            asked.get(timeout=60)
        assert shown in str(told.value)
        wait_until(
            lambda: f"{shown}: Connection dropped" in caplog.text, "it is logged"
        )
        lost.start()


def test_status_of_a_dead_host_does_not_advise_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hosts = f"127.0.0.1:{free_port()}"
    command = ["--hosts", hosts, "--timeout", "1"]
    assert cli.main([*command, "status"]) == 2
    said = capsys.readouterr().err
    assert "`parkazoo status`" not in said and "another ensemble" in said
    assert cli.main([*command, "check"]) == 2
    assert "`parkazoo status`" in capsys.readouterr().err


def test_the_second_ensemble_is_announced_with_what_it_ends(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every transaction was one until then; from then on some are refused."""
    first, second, third = ensembles(3)
    command = ["--hosts", first.hosts]
    assert cli.main([*command, "init"]) == 0
    assert cli.main([*command, "add-ensemble", second.hosts, "--no-rebalance"]) == 0
    said = capsys.readouterr().err
    assert "CrossShardTransaction" in said and "parkazoo where PATH" in said
    assert cli.main([*command, "add-ensemble", third.hosts, "--no-rebalance"]) == 0
    assert "CrossShardTransaction" not in capsys.readouterr().err
