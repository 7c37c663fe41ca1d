"""How a command ends: what it says, where, with which exit code, and when stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from conftest import EnsembleFactory, started
from parkazoo import cli, ending
from servers import free_port, wait_until
from stopping import Stopped

Said = pytest.CaptureFixture[str]
FREEZE = "move.3.freeze:after"


def answer(capsys: Said, hosts: str, *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert cli.main(["--hosts", hosts, "--json", *words]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--timeout 0 status", "more than none"),
        ("--timeout -1 status", "more than none"),
        ("--timeout nan status", "more than none"),
        ("--timeout soon status", "more than none"),
        ("--hosts a;;b status", "nothing stands"),
        ("--hosts a;b;a status", "stands in two ensembles"),
        ("tree --depth -1", "0 or more"),
        ("where /a//b", "write one `/`"),
        ("where //", "write one `/`"),
        ("rebalance --plan --abort", "not allowed with"),
        ("check --delete-orphans", "give `--repair`"),
        ("add-ensemble a:1/app", "without chroot"),
        ("set-hosts e0 a:1;b:1", "one ensemble"),
        ("grow", "invalid choice"),
        ("where", "PATH"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(
    capsys: Said, words: str, why: str
) -> None:
    assert cli.main(words.split()) == 2
    said = capsys.readouterr()
    assert why in said.err and said.out == ""
    assert cli.main(["--json", *words.split()]) == 2
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["kind"] == "Usage"
    assert said.err == f"parkazoo: {error['message']}\n" and why in said.err


def test_every_option_and_every_word_is_explained(capsys: Said) -> None:
    for command in ("init", "where", "tree", "check", "add-ensemble",
                    "remove-ensemble", "set-hosts", "rebalance"):  # fmt: skip
        with pytest.raises(SystemExit, match="0"):
            cli.main([command, "--help"])
        lines = capsys.readouterr().out.split("\n\n", 1)[1].splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            bare = line.startswith("  ") and len(line[2:].strip().split("  ")) == 1
            named = bare and line[2] != " "
            assert not named or following.startswith("          "), line


def test_an_error_is_the_one_document_of_a_command_that_failed(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    one, nobody = ensembles(1)[0].hosts, f"127.0.0.1:{free_port()}"
    error = answer(capsys, one, "status", code=2)["error"]
    assert error["kind"] == "NotInitialized" and "parkazoo init" in error["message"]
    error = answer(capsys, nobody, "--timeout", "1", "status", code=2)["error"]
    assert f"no answer from {nobody} within 1 s" in error["message"]
    both = f"{one};{nobody}"
    error = answer(capsys, both, "--timeout", "2", "init", code=2)["error"]
    assert error["message"].startswith(f"no answer from {nobody} within 2 s")
    assert "status" not in error["message"]


@pytest.mark.parametrize(
    ("to", "code", "why"),
    [
        (">&-", 2, "stdout is closed"),
        ("> /dev/full", 2, "No space left on device"),
        ("| true", 141, ""),
    ],
)
def test_an_answer_that_nobody_gets_is_no_success_and_no_stack_trace(
    ensembles: EnsembleFactory, to: str, code: int, why: str
) -> None:
    hosts = ensembles(1)[0].hosts
    assert cli.main(["--hosts", hosts, "init"]) == 0
    for words in ("status", "--json tree"):
        line = f"'{sys.executable}' -m parkazoo.cli --hosts '{hosts}' {words} {to}"
        ended = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}"],
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        assert ended.returncode == code, ended
        assert why in ended.stderr and "Traceback" not in ended.stderr
        assert len(ended.stderr.splitlines()) == (1 if why else 0)


def test_where_says_by_its_exit_code_whether_a_node_is_there(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """As `tree` does."""
    hosts = ensembles(1)[0].hosts
    assert cli.main(["--hosts", hosts, "init"]) == 0
    assert answer(capsys, hosts, "where", "/")["exists"] is True
    found = answer(capsys, hosts, "where", "/a", code=1)
    assert found["exists"] is False and found["ensemble"] == "e0"
    assert cli.main(["--hosts", hosts, "where", "/a"]) == 1
    assert "/a  (is not there; it would be here)" in capsys.readouterr().out
    assert answer(capsys, hosts, "tree", "/a", code=1) == []


def test_a_plan_is_shown_by_pairs_of_ensembles(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    one, two, three = (ensemble.hosts for ensemble in ensembles(3))
    hosts = f"{one};{two}"
    assert cli.main(["--hosts", hosts, "init"]) == 0
    assert cli.main(["--hosts", hosts, "add-ensemble", three, "--no-rebalance"]) == 0
    assert len(answer(capsys, hosts, "rebalance", "--plan")) == 341
    assert cli.main(["--hosts", hosts, "rebalance", "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [tuple(line.split(":")[0].split(" -> ")) for line in lines[:-1]]
    assert shown == [("e0", "e2"), ("e1", "e2")]
    assert lines[-1] == "341 shards would move"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_move_that_is_told_to_end_stops_in_order_and_says_how_to_go_on(
    ensembles: EnsembleFactory, capsys: Said, number: int
) -> None:
    """SIGTERM ended it at once, and shards stayed frozen; and of an interrupted
    `remove-ensemble` it was said that `rebalance` goes on with it."""
    one, two, three = (ensemble.hosts for ensemble in ensembles(3))
    hosts = f"{one};{two}"
    assert cli.main(["--hosts", hosts, "init"]) == 0
    for words, next_line in (
        (["add-ensemble", three], "next: `parkazoo rebalance` to go on"),
        (["remove-ensemble", "e2"], "next: `parkazoo remove-ensemble e2` again"),
        (["rebalance", "--among", "e0,e2"], "next: `parkazoo rebalance --among e0,e2`"),
    ):
        given = ["--hosts", hosts, *words]
        with Stopped("victim_command.py", given, FREEZE, 60) as mover:
            assert answer(capsys, hosts, "status")["unfinished"] is False
            assert cli.main(["--hosts", hosts, "status"]) == 0
            assert "are on their way" in capsys.readouterr().out
            mover.process.send_signal(number)
            assert mover.go_on() == 1, mover.told()
            assert next_line in mover.told()
        assert answer(capsys, hosts, "status")["moving"] == []
    with started(hosts) as client:
        client.create("/d/x", makepath=True)


def test_status_tells_a_move_that_was_left_from_one_that_goes_on(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """Requests to its shards wait, and `status` said that all was well."""
    one, two = (ensemble.hosts for ensemble in ensembles(2))
    assert cli.main(["--hosts", one, "init"]) == 0
    given = ["--hosts", one, "add-ensemble", two]
    with Stopped("victim_command.py", given, FREEZE, 4) as mover:
        mover.process.kill()
    wait_until(
        lambda: cli.main(["--hosts", one, "status"]) == 1, "its session has ended"
    )
    said = capsys.readouterr().out
    assert "A MOVE WAS LEFT UNFINISHED" in said and "rebalance --abort" in said
    assert answer(capsys, one, "status", code=1)["unfinished"] is True
    assert cli.main(["--hosts", one, "rebalance", "--abort"]) == 0
    assert answer(capsys, one, "status")["unfinished"] is False


def test_a_command_that_looks_is_ended_by_sigterm_in_a_word(
    ensembles: EnsembleFactory,
) -> None:
    words = ["--hosts", f"127.0.0.1:{free_port()}", "--timeout", "60", "status"]
    looking = subprocess.Popen(
        [sys.executable, "-c", "import sys; from parkazoo import cli;"
         "print('in', file=sys.stderr, flush=True); sys.exit(cli.main())", *words],
        stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert looking.stderr is not None
    assert looking.stderr.readline() == "in\n"
    wait_until(lambda: handles(looking.pid, signal.SIGTERM), "it has begun")
    looking.terminate()
    assert looking.wait(60) == 2
    said = looking.stderr.read()
    assert said == "parkazoo: interrupted; the same command may be given again\n"
    looking.stderr.close()


def handles(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_what_still_waits(number: int) -> None:
    told: list[bool] = []
    with ending.stopped_by(lambda: told.append(True)):
        os.kill(os.getpid(), number)
        assert told == [True]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert told == [True]
