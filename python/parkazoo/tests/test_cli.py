"""The command line itself: what every command takes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from conftest import EnsembleFactory
from parkazoo import cli


def test_what_every_command_takes_may_stand_before_its_name_or_after(
    ensembles: EnsembleFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = ensembles(1)[0].hosts
    assert cli.main(["init", "--hosts", hosts]) == 0
    monkeypatch.setenv("PARKAZOO_HOSTS", hosts)
    capsys.readouterr()
    for words in (
        ["--hosts", hosts, "--json", "where", "/"],
        ["where", "/", "--hosts", hosts, "--json"],
        ["--json", "where", "--timeout", "20", "/"],
    ):
        assert cli.main(words) == 0
        assert json.loads(capsys.readouterr().out)["exists"] is True


def test_who_asks_may_be_said_before_a_commands_name_and_after_it() -> None:
    words = ["--auth", "digest:a:1", "status", "--auth", "digest:b:2"]
    options = cli._parser().parse_args([*words, "--auth", "ip:c"])
    assert cli._auth(options) == [("digest", "a:1"), ("digest", "b:2"), ("ip", "c")]
    assert cli._auth(cli._parser().parse_args(["status"])) == []


def test_a_reader_who_has_seen_enough_is_no_reason_for_a_stack_trace(
    ensembles: EnsembleFactory,
) -> None:
    hosts = ensembles(1)[0].hosts
    assert cli.main(["--hosts", hosts, "init"]) == 0
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "parkazoo.cli", "--hosts", hosts, "tree"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (2, "")
