"""The command line itself: what every command takes, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from conftest import EnsembleFactory, started
from parkazoo import arguments, cli, commands
from parkazoo.errors import SHOWN
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS


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
    options = commands.parser(cli.RUN).parse_args([*words, "--auth", "ip:c"])
    assert arguments.auth(options) == [
        ("digest", "a:1"),
        ("digest", "b:2"),
        ("ip", "c"),
    ]
    assert arguments.auth(commands.parser(cli.RUN).parse_args(["status"])) == []


def test_an_ensemble_that_is_named_twice_counts_once() -> None:
    """It was given two shares."""
    parser = commands.parser(cli.RUN)
    assert parser.parse_args(["rebalance", "--among", "e1, e0,e1"]).among == [
        "e1",
        "e0",
    ]


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
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_rule_that_would_never_match_is_refused(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--colocate '/jobs/**'` was taken, for ever, for a node named `**`."""
    hosts = ensembles(1)[0].hosts
    for words in (["--colocate", "/jobs/**"], ["--weak", "/jobs/a*:4"]):
        assert cli.main(["--hosts", hosts, "init", *words]) == 2
        assert "one whole component" in capsys.readouterr().err
    assert cli.main(["--hosts", hosts, "init", "--colocate", "/jobs/*"]) == 0


def test_what_may_not_be_read_is_shown_by_its_name(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tree`, `check` and `add-ensemble` ended with a bare NoAuthError."""
    hosts, more = (ensemble.hosts for ensemble in ensembles(2))
    own = [make_digest_acl("bob", "pw", all=True)]
    with started(hosts, auth_data=[("digest", "bob:pw")]) as client:
        for number in range(8):
            client.create(f"/shut{number}", acl=own)
            client.create(f"/shut{number}/x", acl=own)
        client.create("/open/x", makepath=True)

    def run(*words: str, code: int) -> str:
        capsys.readouterr()
        assert cli.main(["--hosts", hosts, *words]) == code
        return "".join(capsys.readouterr())

    bob = ("--auth", "digest:bob:pw")
    said = run("tree", code=1)
    assert "shut0" in said and "--auth" in said and "open" in said and "  x" in said
    said = run("check", code=1)
    assert "unreadable /shut0" in said and "--auth" in said
    said = run("add-ensemble", more, code=2)
    assert "/shut" in said and "--auth" in said
    said = run("where", "/shut0/x", code=2)
    assert "/shut0/x" in said and "--auth" in said
    for words in (["tree"], ["check"], ["add-ensemble", more], ["check"]):
        run(*bob, *words, code=0)


def test_what_may_not_be_read_keeps_its_own_shard_and_no_other(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever came after the first of them stayed, and nothing said so."""
    hosts, more = (ensemble.hosts for ensemble in ensembles(2))
    own = [make_digest_acl("bob", "pw", all=True)]
    with started(hosts, auth_data=[("digest", "bob:pw")]) as client:
        for number in range(24):
            client.create(f"/open/d{number}/x", makepath=True)
            client.create(f"/shut/d{number}/x", makepath=True)
            client.set_acls(f"/shut/d{number}/x", own)

    def run(*words: str, code: int) -> tuple[Any, str]:
        capsys.readouterr()
        assert cli.main(["--hosts", hosts, "--json", *words]) == code
        out, err = capsys.readouterr()
        return json.loads(out), err

    said, err = run("add-ensemble", more, code=2)
    kept = said["kept"]
    assert said["joined"] and len(kept) > SHOWN and said["error"]["message"] in err
    assert said["shards_moved"] == said["shards_total"] - len(kept)
    assert all(why.startswith("/shut/d") for why in kept.values())
    assert f"and {len(kept) - 1 - SHOWN} more" in err and "--auth" in err
    shards = run("status", code=0)[0]["ensembles"][said["name"]]["shards"]
    assert shards == said["shards_moved"]
    again = run("rebalance", code=2)[0]
    assert (again["shards_moved"], again["kept"]) == (0, kept)
    assert run("check", code=0)[0] == []
    bob = ("--auth", "digest:bob:pw")
    assert run(*bob, "rebalance", code=0)[0]["shards_moved"] == len(kept)
    assert run(*bob, "check", code=0)[0] == []


def test_what_a_tree_counts_is_what_it_shows(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ensembles(1)[0].hosts
    with started(hosts) as client:
        client.create("/a")
    for words, first, lines in ((["/"], "/  [e0] 1 child,", 2),
                                (["/zookeeper"], "/zookeeper  [e0]", 3)):  # fmt: skip
        assert cli.main(["--hosts", hosts, "tree", *words]) == 0
        said = capsys.readouterr().out
        assert said.startswith(first) and said.count("\n") == lines


def test_who_comes_second_is_told_how_long_a_killed_command_counts(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ensembles(1)[0].hosts
    with started(hosts) as client, Mover(client).alone():
        assert cli.main(["--hosts", hosts, "rebalance"]) == 2
    assert "killed" in (said := capsys.readouterr().err) and "ten seconds" in said


def test_an_ensemble_with_data_of_others_joins_only_if_that_is_meant(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts, used = (ensemble.hosts for ensemble in ensembles(2))
    plain = KazooClient(used, timeout=30)
    plain.start(PATIENCE_SECONDS)
    plain.create("/theirs", b"data")
    assert cli.main(["--hosts", hosts, "init"]) == 0
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "add-ensemble", used]) == 2
    said = capsys.readouterr().err
    assert "/theirs" in said and "--beside" in said
    assert plain.exists("/parkazoo") is None
    assert cli.main(["--hosts", hosts, "add-ensemble", used, "--beside"]) == 0
    assert plain.get("/theirs")[0] == b"data"
    plain.stop()
    plain.close()


def test_words_and_names_that_this_terminal_has_not(
    ensembles: EnsembleFactory,
) -> None:
    """Both ended with a stack trace."""
    (taken,) = ensembles(1)
    with started(taken.hosts) as client:
        client.ensure_path("/üñí")
    command = [sys.executable, "-m", "parkazoo.cli", "--hosts", taken.hosts, "--json"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words in ([b"where", b"/x\xff"], [b"--auth", b"digest:u:\xff", b"status"]):
        ended = subprocess.run([*command, *words], capture_output=True)
        assert ended.returncode == 2 and b"Traceback" not in ended.stderr
        assert "bytes of no text" in json.loads(ended.stdout)["error"]["message"]
    for words in ([b"where", "/üñí".encode()], [b"tree"], [b"check"]):
        ended = subprocess.run(
            [*command[:-1], *words], capture_output=True, env=ascii_only
        )
        assert ended.returncode == 0, ended.stderr
    found = subprocess.run([*command[:3], "--version"], capture_output=True, text=True)
    assert found.returncode == 0 and found.stdout[0].isdigit()


def test_a_comma_between_a_member_and_an_ensemble_that_is_to_join_is_refused(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said to be a member already, and exited with 0; nothing had joined."""
    first, second, third = ensembles(3)
    hosts = f"{first.hosts};{second.hosts}"
    with started(hosts) as client:
        client.create("/x")
    typed = f"{third.hosts},{second.hosts}"
    assert cli.main(["--hosts", hosts, "add-ensemble", typed]) == 2
    said = capsys.readouterr().err
    assert f"{third.hosts} is not a server of the e" in said and "write `;`" in said
    assert cli.main(["--hosts", hosts, "add-ensemble", third.hosts]) == 0


def test_progress_is_written_over_on_a_terminal_and_in_lines_elsewhere(
    ensembles: EnsembleFactory,
) -> None:
    hosts, more = (ensemble.hosts for ensemble in ensembles(2))
    command = [sys.executable, "-m", "parkazoo.cli", "--hosts", hosts]
    subprocess.run([*command, "init"], check=True, timeout=120)
    log = subprocess.run(
        [*command, "add-ensemble", more], capture_output=True, text=True, timeout=120
    ).stderr
    assert "\r" not in log and log.splitlines()[-1].startswith("512/512 shards")
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [*command, "remove-ensemble", "e1"], stdout=subprocess.PIPE, stderr=writer
    ) as ended:
        os.close(writer)
        seen = read_all(reader)
        out, _ = ended.communicate(timeout=PATIENCE_SECONDS)
    os.close(reader)
    assert ended.returncode == 0 and b"moved 512 of 512" in out
    assert seen.count("\r0/512 shards") == 1 and "\r512/512 shards" in seen
    assert seen.endswith("\n") and seen.count("\n") == 1


def read_all(terminal: int) -> str:
    """All that is written to a terminal, which holds no more than a page of it."""
    parts = []
    with contextlib.suppress(OSError):  # the last who could write has ended
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def test_what_is_wrong_with_who_asks_and_whom_is_said(
    capsys: pytest.CaptureFixture[str], ensembles: EnsembleFactory
) -> None:
    """A scheme was forgotten, and a name is known to nobody."""
    hosts = ensembles(1)[0].hosts
    assert cli.main(["--hosts", hosts, "init"]) == 0
    assert cli.main(["--hosts", hosts, "--auth", "alice:pw", "status"]) == 2
    assert "Do they know alice" in (said := capsys.readouterr().err)
    assert "digest:NAME:PASSWORD" in said
    nowhere = ["--hosts", "no-such-host.invalid:2181", "--timeout", "2", "status"]
    assert cli.main(nowhere) == 2
    assert (
        "no address is known here for no-such-host.invalid" in capsys.readouterr().err
    )
