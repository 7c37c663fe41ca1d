"""`parkazoo init --import`: a namespace made of what plain ZooKeeper held."""

from __future__ import annotations

import json

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import make_acl, make_digest_acl

from conftest import EnsembleFactory
from parkazoo import ParKazooClient, cli
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
