"""A program that was left on plain Kazoo beside a namespace made of its data."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from conftest import EnsembleFactory, running
from parkazoo import cli

WRITTEN = "still uses plain Kazoo"


def test_check_sees_what_plain_kazoo_writes_after_an_import(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """It wrote where programs of the namespace do not look, and nobody was told."""
    old, new = ensembles(2)
    command = ["--hosts", f"{old.hosts};{new.hosts}"]
    with running(KazooClient(old.hosts, timeout=30)) as left:
        for path in ("/app/set", "/app/stays", "/app/gone"):
            left.create(path, b"old", makepath=True)
        left.create("/app/mine", ephemeral=True)
        assert cli.main([*command, "init", "--import"]) == 0
        left.delete("/app/mine")  # as when its session ends
        assert cli.main([*command, "check"]) == 0
        assert WRITTEN not in capsys.readouterr().out
        left.set("/app/set", b"new")
        left.create("/app/made/below", makepath=True)
        assert cli.main([*command, "check"]) == 1
        said = capsys.readouterr().out
    first = old.hosts == min(old.hosts, new.hosts)
    name = "e0" if first else "e1"
    lines = [line for line in said.splitlines() if "/app" in line]
    for path in ("/app/set", "/app/made", "/app/made/below"):
        # Which of the two is called what depends on their addresses.
        assert any(f"{name}:{path}:" in line for line in lines), said
    assert len(lines) == 3 and WRITTEN in said


def test_check_looks_at_nothing_that_was_left_aside(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """`init --beside` says that others go on using what is there."""
    (old,) = ensembles(1)
    with running(KazooClient(old.hosts, timeout=30)) as other:
        other.create("/theirs")
        assert cli.main(["--hosts", old.hosts, "init", "--beside"]) == 0
        other.set("/theirs", b"new")
        assert cli.main(["--hosts", old.hosts, "check"]) == 0
