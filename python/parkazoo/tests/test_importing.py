"""`parkazoo init --import`: a namespace made of what plain ZooKeeper held."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError
from kazoo.protocol.serialization import Create, Create2
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from conftest import EnsembleFactory, started
from parkazoo import (
    NotInitialized,
    ParKazooClient,
    cli,
    directory,
    failpoints,
    importing,
)
from parkazoo.check import Checker
from parkazoo.layout import CONFIG
from parkazoo.mapping import Table
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
    command = ["--hosts", hosts, "--auth", ":".join(OWNER)]
    assert cli.main([*command, "init", "--import"]) == 0
    said = capsys.readouterr()
    assert f"{len(nodes)} nodes imported" in said.out
    assert f"\n{len(nodes)} nodes brought in\n" in said.err

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
    assert cli.main([*command, "check"]) == 1
    assert "unfinished import: data of plain ZooKeeper" in capsys.readouterr().out
    assert cli.main([*command, "init"]) == 2
    assert "init --import" in capsys.readouterr().err
    assert cli.main([*command, "init", end]) == 0
    assert cli.main([*command, "status"]) == 0
    with started(hosts, auth_data=[OWNER], auto_init=False) as client:
        if end == "--import":
            for path, data in nodes.items():
                assert client.get(path)[0] == data, path


@pytest.mark.parametrize("end", ["--import", "--beside"])
@pytest.mark.parametrize("half", [False, True])
def test_what_an_import_that_broke_off_left_open_is_closed(
    ensembles: EnsembleFactory,
    capsys: pytest.CaptureFixture[str],
    half: bool,
    end: str,
) -> None:
    """Everybody had ADMIN in its directories once it had been given up; or, if it was
    killed between a directory and its bucket, even when it had ended well."""
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    plain = plainly(old.hosts)
    nodes = fill(plain)
    plain.create("/app/anyone/below", makepath=True)
    plain.set_acls("/app/anyone", [*READ_ONLY, importing._OURS])
    command = ["--hosts", hosts, "--auth", ":".join(OWNER)]
    set_acls, mirror = ParKazooClient.set_acls, directory.mirror

    def closes(client: ParKazooClient, path: str, *rest: Any) -> Any:
        if path == "/app/own":
            raise ConnectionLoss("the servers have gone")
        return set_acls(client, path, *rest)

    def mirrors(bucket: Any, *rest: Any) -> Any:
        if bucket.directory == "/app/fixed":  # nobody may set its ACL any more
            raise ConnectionLoss("the servers have gone")
        return mirror(bucket, *rest)

    with pytest.MonkeyPatch.context() as patched:
        if half:
            patched.setattr(directory, "mirror", mirrors)
        else:
            patched.setattr(ParKazooClient, "set_acls", closes)
        assert cli.main([*command, "init", "--import"]) == 2
    if not half:
        capsys.readouterr()
        assert cli.main(["--hosts", hosts, "init", end]) == 2
        assert "/app/own" in capsys.readouterr().err
    assert cli.main([*command, "init", end]) == 0
    with started(hosts, auth_data=[OWNER], auto_init=False) as client:
        brought = [path for path in [*nodes, "/app/anyone"] if client.exists(path)]
        assert {"/app", "/app/fixed", "/app/anyone"} <= set(brought)
        assert half or "/app/own" in brought
        for path in brought:
            assert client.get_acls(path)[0] == plain.get_acls(path)[0], path
        assert list(Checker(client).run()) == []
    with started(hosts, auto_init=False) as stranger, pytest.raises(NoAuthError):
        stranger.create("/app/fixed/more")
    plain.stop()
    plain.close()


def test_an_import_that_only_the_seat_knows_to_have_ended_keeps_nobody_out(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was killed when it had told the seat: who could reach the others only was kept
    out until the command was given again."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    plain = plainly(hosts.split(";")[0])
    plain.create("/app/config", b"1", makepath=True)
    plain.stop()
    plain.close()

    def breaks_off(*_: Any) -> None:
        raise ConnectionLoss("the servers have gone")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importing._Copying, "root", breaks_off)
        assert cli.main(["--hosts", hosts, "init", "--import"]) == 2
    seat, other = sorted(hosts.split(";"))
    with pytest.raises(NotInitialized, match="init --import"):
        ParKazooClient(other, timeout=30).start()
    plain = plainly(seat)
    table = Table.deserialize(plain.get(CONFIG)[0])
    assert table.ensembles[table.seat] == seat and table.importing
    ended = replace(table, importing=False, generation=table.generation + 1)
    plain.set(CONFIG, ended.serialize())
    plain.stop()
    plain.close()
    with started(other, auto_init=False) as client:
        assert client.get_children("/") == ["zookeeper"]


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


def test_null_data_arrives_as_null_data(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java's clients make such nodes; the import ended with a stack trace."""
    one, other = ensembles(2)
    hosts = f"{one.hosts};{other.hosts}"
    for ensemble, below in ((one, "1"), (other, "2")):
        plain = plainly(ensemble.hosts)
        for path in ("/null", "/null/" + below):
            made = plain.handler.async_result()
            plain._call(Create(path, None, OPEN_ACL_UNSAFE, 0), made)
            made.get()
        plain.create("/empty", b"" if ensemble is one else None)
        assert plain.get("/null")[0] is None
        plain.stop()
        plain.close()
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 2
    assert "/empty on" in capsys.readouterr().err, "it is not the same as null"
    plain = plainly(other.hosts)
    plain.set("/empty", b"")
    plain.stop()
    plain.close()
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 0
    with started(hosts, auto_init=False) as client:
        for path in ("/null", "/null/1", "/null/2"):
            assert client.get(path)[0] is None, path
        assert client.get("/empty")[0] == b""


class Container(Create2):  # type: ignore[misc]
    """Kazoo cannot make one; Curator does, as the parent of its locks and the like."""

    type = 19


class Timed(Create2):  # type: ignore[misc]
    """A node with a time to live, of an hour."""

    type = 21

    def serialize(self) -> bytes:
        return bytes(super().serialize()) + (3_600_000).to_bytes(8, "big")


def test_containers_and_nodes_with_a_time_to_live_become_plain_ones(
    ensembles: EnsembleFactory,
) -> None:
    old, new = ensembles(2)
    plain = plainly(old.hosts)

    def make(request: Any) -> None:
        made = plain.handler.async_result()
        plain._call(request, made)
        made.get()

    for path, kind, flags in (
        ("/queue", Container, 4),
        ("/queue/empty", Container, 4),
        ("/timed", Timed, 5),
        ("/timed/alone", Timed, 5),
    ):
        make(kind(path, b"kept", OPEN_ACL_UNSAFE, flags))
    plain.create("/queue/1", b"todo")
    plain.create("/timed/1", b"todo")
    plain.stop()
    plain.close()
    hosts = f"{old.hosts};{new.hosts}"
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 0
    with started(hosts, auto_init=False) as client:
        assert client.get("/queue")[0] == client.get("/timed")[0] == b"kept"
        assert sorted(client.get_children("/queue")) == ["1", "empty"]
        assert sorted(client.get_children("/timed")) == ["1", "alone"]


def test_a_closed_directory_of_two_ensembles_is_filled_from_both(
    ensembles: EnsembleFactory,
) -> None:
    """The second found it closed by the first, each time: that never ended."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    for ensemble, names in zip(taken, (("a", "b"), ("b", "c")), strict=True):
        plain = plainly(ensemble.hosts)
        for name in names:
            plain.create(f"/sealed/deep/{name}", name.encode(), makepath=True)
        for path in ("/sealed/deep/b", "/sealed/deep", "/sealed"):
            plain.set_acls(path, READ_ONLY)
        plain.stop()
        plain.close()
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 0
    with started(hosts, auto_init=False) as client:
        assert sorted(client.get_children("/sealed/deep")) == ["a", "b", "c"]
        for path in ("/sealed", "/sealed/deep", "/sealed/deep/b"):
            assert client.get_acls(path)[0] == READ_ONLY
            with pytest.raises(NoAuthError):
                client.create(f"{path}/more")


def test_an_import_given_again_brings_nothing_back(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """What programs had deleted since was there again, and those that started meanwhile
    were kept out."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    plain = plainly(hosts.split(";")[0])
    plain.create("/jobs/1", b"todo", makepath=True)
    plain.stop()
    plain.close()
    assert cli.main(["--hosts", hosts, "init", "--import"]) == 0
    with started(hosts, auto_init=False) as client:
        client.delete("/jobs/1")
        before = client.table
        for given in (hosts, ";".join(reversed(hosts.split(";")))):
            capsys.readouterr()
            assert cli.main(["--hosts", given, "init", "--import"]) == 2
            assert "no import into it is under way" in capsys.readouterr().err
        assert client.get_children("/jobs") == []
        assert client.table == before
    assert cli.main(["--hosts", hosts, "init"]) == 0


def test_nothing_is_brought_into_a_namespace_that_is_used(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    plain = plainly(hosts.split(";")[0])
    plain.create("/jobs/1", b"todo", makepath=True)
    plain.stop()
    plain.close()
    assert cli.main(["--hosts", hosts, "init", "--beside"]) == 0
    with started(hosts, auto_init=False) as client:
        client.create("/jobs")
        assert cli.main(["--hosts", hosts, "init", "--import"]) == 2
        assert "programs may use" in capsys.readouterr().err
        assert client.get_children("/jobs") == []


def test_two_imports_at_once_are_one_after_the_other(
    ensembles: EnsembleFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that still ran when the other had ended brought deleted nodes back."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    plain = plainly(hosts.split(";")[0])
    for number in range(5):
        plain.create(f"/jobs/{number}", b"todo", makepath=True)
    plain.stop()
    plain.close()
    codes: list[int] = []
    import_again = ["--hosts", hosts, "init", "--import"]

    def at(label: str, when: str) -> None:
        if label == "import.1.node" and not codes:
            codes.append(-1)
            codes.append(cli.main(import_again))
            codes.append(cli.main(["--hosts", hosts, "init", "--beside"]))

    monkeypatch.setattr(failpoints, "hook", at)
    assert cli.main(import_again) == 0
    assert codes == [-1, 2, 2]
    said = capsys.readouterr().err
    assert said.count("somebody else is changing") == 2
    assert said.count("nodes looked at") == 1  # at once
    with started(hosts, auto_init=False) as client:
        assert len(client.get_children("/jobs")) == 5


CLOSED_ROOT = [*OWN, *READ_ONLY]


def close_root(hosts: str, data: bytes) -> None:
    plain = KazooClient(hosts, timeout=30, auth_data=[OWNER])
    plain.start(PATIENCE_SECONDS)
    plain.create("/app", b"data")
    plain.set("/", data)
    plain.set_acls("/", CLOSED_ROOT)
    plain.stop()
    plain.close()


def test_the_root_is_as_closed_as_it_was(ensembles: EnsembleFactory) -> None:
    """Everybody could create at the top, and delete what was there."""
    old, new = (ensemble.hosts for ensemble in ensembles(2))
    close_root(old, b"the root's own")
    hosts = f"{old};{new}"
    assert (
        cli.main(["--hosts", hosts, "--auth", ":".join(OWNER), "init", "--import"]) == 0
    )
    with started(hosts, auto_init=False) as anybody:
        assert anybody.get("/")[0] == b"the root's own"
        with pytest.raises(NoAuthError):
            anybody.create("/intruder")
        with pytest.raises(NoAuthError):
            anybody.delete("/app")
    with started(hosts, auto_init=False, auth_data=[OWNER]) as owner:
        assert sorted(owner.get_acls("/")[0]) == sorted(CLOSED_ROOT)
        owner.create("/more")
        assert list(Checker(owner).run()) == []


def test_roots_that_differ_are_refused(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (ensemble.hosts for ensemble in ensembles(2))
    for number, hosts in enumerate((one, other)):
        close_root(hosts, b"%d" % number)
    words = ["--hosts", f"{one};{other}", "--auth", ":".join(OWNER), "init"]
    assert cli.main([*words, "--import"]) == 2
    assert f"/ on {one} and on {other}" in capsys.readouterr().err


def test_a_queue_goes_on_behind_what_is_in_it(ensembles: EnsembleFactory) -> None:
    """New items came before those that were there, and met their names in the end."""
    old, new = ensembles(2)
    plain = KazooClient(old.hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    try:
        for directory in "/jobs", "/q":
            plain.ensure_path(directory)
            for _ in range(500):
                plain.create(f"{directory}/n-", sequence=True)
        for number in range(495):
            plain.delete(f"/jobs/n-{number:010}")
        for number in range(500):
            plain.delete(f"/q/n-{number:010}")
        root = int(plain.create("/", sequence=True)[1:])
        assert (
            cli.main(["--hosts", f"{old.hosts};{new.hosts}", "init", "--import"]) == 0
        )
        with started(f"{old.hosts};{new.hosts}") as client:
            made = client.create("/jobs/n-", sequence=True)
            assert (
                made == plain.create("/jobs/n-", sequence=True) == "/jobs/n-0000000500"
            )
            assert len(client.get_children("/jobs")) == 6
            assert client.create("/q/n-", sequence=True) == "/q/n-0000000000"
            assert int(client.create("/", sequence=True)[1:]) > root
            # What plain Kazoo has just made beside it, and nothing else.
            found = [(each.kind, each.where) for each in Checker(client).run()]
            assert client.table is not None
            name = {h: n for n, h in client.table.ensembles.items()}[old.hosts]
            assert found == [("outside", f"{name}:{made}")]
    finally:
        plain.stop()
        plain.close()
