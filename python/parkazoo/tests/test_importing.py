"""`parkazoo init --import`: a namespace made of what plain ZooKeeper held."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory, started
from parkazoo import NotInitialized, ParKazooClient, cli
from parkazoo.check import Checker
from servers import PATIENCE_SECONDS

OWNER = ("digest", "me:secret")
READ_ONLY = [make_acl("world", "anyone", read=True)]
OWN = [make_digest_acl("me", "secret", all=True)]


def fill(client: KazooClient) -> dict[str, bytes]:
    """Nodes as a team leaves them, with what each holds."""
    client.add_auth(*OWNER)
    nodes = {
        "/app": b"root of it",
        "/app/config": b"",
        "/app/config/deep": b"x" * 10_000,
        "/app/config/deep/er": "\u00fc".encode(),
        "/app/own": b"mine",
        "/app/own/below": b"mine, too",
        "/app/fixed": b"read only",
        "/app/fixed/below": b"read only, too",
        "/flat": b"leaf",
    }
    for path, data in nodes.items():
        own = path.startswith("/app/own")
        client.create(path, data, acl=OWN if own else None)
    for number in range(5):
        client.create(f"/app/config/n{number}", b"%d" % number)
        nodes[f"/app/config/n{number}"] = b"%d" % number
    client.set_acls("/app/fixed/below", READ_ONLY)
    client.set_acls("/app/fixed", READ_ONLY)
    client.create("/app/config/mine", b"", ephemeral=True)
    return nodes


def test_data_of_plain_zookeeper_is_brought_in(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    plain = KazooClient(old.hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    nodes = fill(plain)
    before = {path: plain.get(path) for path in nodes}

    assert cli.main(["--hosts", hosts, "init"]) == 2
    assert "parkazoo init --import" in capsys.readouterr().err
    command = ["--hosts", hosts, "--auth", ":".join(OWNER), "--json"]
    assert cli.main([*command, "init", "--import"]) == 0
    assert json.loads(capsys.readouterr().out)["imported"] == len(nodes)

    owner = ParKazooClient(hosts, timeout=30, auth_data=[OWNER], auto_init=False)
    stranger = ParKazooClient(hosts, timeout=30, auto_init=False)
    for client in (owner, stranger):
        client.start(PATIENCE_SECONDS)
    for path, data in nodes.items():
        assert owner.get(path)[0] == data, path
        assert owner.get_acls(path)[0] == plain.get_acls(path)[0], path
    with pytest.raises(NoNodeError):
        owner.get("/app/config/mine")  # an ephemeral: its owner makes it anew
    assert len(owner.get_children("/app/config")) == 6
    for refused in ("/app/own/new", "/app/fixed/new"):
        with pytest.raises(NoAuthError):
            stranger.create(refused)
    assert stranger.create("/app/config/new") == "/app/config/new"
    assert list(Checker(owner).run()) == []

    assert {path: plain.get(path) for path in nodes} == before, "originals changed"
    for client in (owner, stranger, plain):
        client.stop()
        client.close()


def plainly(hosts: str, **options: Any) -> KazooClient:
    client = KazooClient(hosts, timeout=30, **options)
    client.start(PATIENCE_SECONDS)
    return client


def test_what_may_not_be_read_is_named_before_anything_is_made(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The import ended with a bare NoAuthError, and left a namespace that programs
    started in, and saw nothing of what there had been."""
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    plain = plainly(old.hosts)
    fill(plain)
    try:
        assert cli.main(["--hosts", hosts, "init", "--import"]) == 2
        said = capsys.readouterr().err
        assert "/app/own on" in said and "--auth" in said
        assert plain.exists("/parkazoo") is None
    finally:
        plain.stop()
        plain.close()
    with pytest.raises(NotInitialized):
        ParKazooClient(hosts, timeout=30).start(PATIENCE_SECONDS)


@pytest.mark.parametrize("end", ["--import", "--beside"])
def test_an_import_that_has_not_ended_keeps_programs_waiting(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    plain = plainly(old.hosts)
    nodes = fill(plain)
    plain.stop()
    plain.close()
    command = ["--hosts", hosts, "--auth", ":".join(OWNER)]

    def breaks_off(*_: Any) -> None:
        raise ConnectionLoss("the servers have gone")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParKazooClient, "set_acls", breaks_off)
        assert cli.main([*command, "init", "--import"]) == 2
    for auto_init in (True, False):
        with pytest.raises(NotInitialized, match="init --import"):
            ParKazooClient(hosts, timeout=30, auto_init=auto_init).start()
    capsys.readouterr()
    assert cli.main([*command, "--json", "status"]) == 1
    assert json.loads(capsys.readouterr().out)["importing"] is True
    assert cli.main([*command, "status"]) == 1
    assert "NOT USED BY PROGRAMS" in capsys.readouterr().out
    assert cli.main([*command, "init"]) == 2
    assert "init --import" in capsys.readouterr().err
    assert cli.main([*command, "init", end]) == 0
    assert cli.main([*command, "status"]) == 0
    with started(hosts, auth_data=[OWNER], auto_init=False) as client:
        if end == "--import":
            for path, data in nodes.items():
                assert client.get(path)[0] == data, path


def test_what_differs_on_two_ensembles_is_not_imported(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = ensembles(2)
    hosts = f"{one.hosts};{other.hosts}"
    for ensemble, data in ((one, b"1"), (other, b"2")):
        plain = plainly(ensemble.hosts)
        plain.create("/same/below", b"both", makepath=True)
        plain.create("/differs", data)
        plain.stop()
        plain.close()
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 2
    said = capsys.readouterr().err
    assert "/differs on" in said and "/same" not in said
    plain = plainly(other.hosts)
    assert plain.exists("/parkazoo") is None
    plain.set("/differs", b"1")
    plain.stop()
    plain.close()
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 0
    with started(hosts, auto_init=False) as client:
        assert client.get("/differs")[0] == b"1"
        assert client.get("/same/below")[0] == b"both"
