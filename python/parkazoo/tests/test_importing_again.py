"""`parkazoo init --import` given again, after the originals have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from conftest import EnsembleFactory, started
from parkazoo import NotInitialized, ParKazooClient, cli, failpoints
from parkazoo.check import Checker
from parkazoo.mapping import join
from servers import SUPERUSER
from test_importing import CLOSED_ROOT, OWN, OWNER, READ_ONLY, fill, plainly


def broken_off(command: list[str], at: str) -> None:
    """`at` is a failpoint's label, and how often it is passed before that."""
    label, _, count = at.partition("#")
    passed: list[str] = []

    def hook(reached: str, when: str) -> None:
        passed.extend([reached] if reached == label else [])
        if len(passed) == int(count or 1):
            raise ConnectionLoss("the servers have gone")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        assert cli.main(command) == 2


def same(hosts: str, plain: KazooClient) -> None:
    """The namespace is what the originals are: names, data and ACLs."""
    with started(hosts, auto_init=False, auth_data=[OWNER]) as client:
        seen = list(below(plain, "/"))
        assert list(below(client, "/")) == seen
        for path in ["/", *seen]:
            assert client.get(path)[0] == plain.get(path)[0], path
            acls = client.get_acls(path)[0]
            assert sorted(acls) == sorted(plain.get_acls(path)[0]), path
        assert list(Checker(client).run()) == []


def below(client: Any, path: str) -> Iterator[str]:
    for name in sorted(client.get_children(path)):
        child = join(path, name)
        if child in ("/zookeeper", "/parkazoo"):
            continue
        if not client.exists(child).ephemeralOwner:
            yield child
            yield from below(client, child)


def change(plain: KazooClient) -> None:
    """What programs do to `fill`'s nodes that have gone back to plain ZooKeeper."""
    plain.set("/app/config/deep", b"changed")
    plain.set("/app/own", b"changed, mine")
    plain.set_acls("/app/config/deep", OWN)
    plain.set_acls("/app/config/n0", READ_ONLY)
    plain.set_acls("/app/config", [*OWN, *READ_ONLY])
    plain.delete("/app/config/n1")
    plain.delete("/app/own/below")
    plain.create("/app/config/n1/now/deeper", b"", makepath=True)
    plain.create("/app/own/other", b"mine, new", acl=OWN)
    plain.delete("/app/config/n2")
    plain.create("/app/config/n2", b"of a session", ephemeral=True)
    plain.create("/app/config/deep/er/still", b"", acl=OWN)
    plain.delete("/gone", recursive=True)
    plain.create("/flat/now", b"a directory")
    plain.set("/", b"the root's own, changed")
    plain.set_acls("/", CLOSED_ROOT)


@pytest.mark.parametrize(
    ("at", "rule"),
    [
        ("import.1.node#19", []),
        ("import.1.node#19", ["--weak", "/app:4"]),
        ("import.1.node#19", ["--colocate", "/app"]),
        ("import.1.node#3", []),
        ("import.2.acl#3", []),
    ],
)
def test_an_import_given_again_brings_in_what_the_originals_are_now(
    ensembles: EnsembleFactory, at: str, rule: list[str]
) -> None:
    """It ended well, and what it had brought in before it broke off was as it had been
    then: old data, ACLs since closed, and nodes since deleted."""
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    command = ["--hosts", hosts, "--auth", ":".join(OWNER), "init", "--import", *rule]
    plain = plainly(old.hosts)
    fill(plain)
    plain.create("/gone/closed/in", b"", makepath=True)
    plain.create("/gone/far/away", b"", makepath=True)
    plain.set_acls("/gone/closed", [*OWN, *READ_ONLY])
    broken_off(command, at)
    change(plain)
    assert cli.main(command) == 0
    same(hosts, plain)
    plain.stop()
    plain.close()


@pytest.mark.parametrize("at", ["import.4.renewed#4", "import.5.removed"])
def test_an_import_given_again_that_breaks_off_again_is_gone_on_with(
    ensembles: EnsembleFactory, at: str
) -> None:
    """The originals change back between: nothing is of the second attempt, either."""
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    command = ["--hosts", hosts, "--auth", ":".join(OWNER), "init", "--import"]
    plain = plainly(old.hosts)
    fill(plain)
    plain.create("/gone/far/away", b"", makepath=True)
    broken_off(command, "import.1.node#17")
    change(plain)
    broken_off(command, at)
    plain.set_acls("/", OPEN_ACL_UNSAFE)
    plain.set("/", b"")
    plain.delete("/app/config/n2")
    plain.create("/app/config/n2/again", b"", makepath=True)
    plain.set("/app/own", b"mine")
    plain.set_acls("/app/config/deep", READ_ONLY)
    assert cli.main(command) == 0
    same(hosts, plain)
    plain.stop()
    plain.close()


def test_what_was_brought_in_and_is_not_ours_to_change_is_named(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The import does not end as long as something is not what its original is."""
    old, new = ensembles(2)
    hosts = f"{old.hosts};{new.hosts}"
    command = ["--hosts", hosts, "init", "--import"]
    plain = plainly(old.hosts)

    def make(path: str, data: bytes, acl: list[Any]) -> None:
        if plain.exists(path):
            plain.delete(path)
        plain.create(path, data, acl=acl)

    for path in ("/acl", "/data", "/less", "/same"):
        make(path, b"before", READ_ONLY)
    make("/z", b"", OPEN_ACL_UNSAFE)
    broken_off(command, "import.1.node#5")
    make("/acl", b"before", OPEN_ACL_UNSAFE)
    make("/data", b"after", READ_ONLY)
    make("/less", b"before", OPEN_ACL_UNSAFE)
    plain.create("/less/new", b"")
    plain.set_acls("/less", READ_ONLY)
    capsys.readouterr()
    assert cli.main(command) == 2
    said = capsys.readouterr()
    assert "imported" not in said.out
    assert "/acl, /data, /less/new. All else" in said.err, said.err
    with pytest.raises(NotInitialized, match="init --import"):
        ParKazooClient(hosts, timeout=30).start()
    for path in ("/acl", "/data"):
        make(path, b"before", READ_ONLY)
    plain.set_acls("/", READ_ONLY)
    assert cli.main(command) == 2
    assert "made of /less/new. All else" in capsys.readouterr().err
    plain.stop()
    plain.close()


def test_what_was_opened_below_a_closed_directory_is_closed_when_it_is_given_up(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stayed open to everybody: who gave the import up could not list the closed
    one, and took it that nothing was open in it."""
    old, new = ensembles(2)
    at = ["--hosts", f"{old.hosts};{new.hosts}"]
    mine = [*at, "--auth", ":".join(OWNER)]
    plain = plainly(old.hosts)
    plain.add_auth(*OWNER)
    for path in ("/own", "/own/sub", "/own/sub/x"):
        plain.create(path, b"", acl=OWN)
    plain.create("/z", b"")
    broken_off([*mine, "init", "--import"], "import.2.acl#2")
    plain.set_acls("/own/sub", [*OWN, *READ_ONLY])
    broken_off([*mine, "init", "--import"], "import.4.renewed")
    capsys.readouterr()
    assert cli.main([*at, "init", "--beside"]) == 2
    assert "/own" in capsys.readouterr().err
    assert cli.main([*mine, "init", "--beside"]) == 0
    with started(at[1], auth_data=[OWNER], auto_init=False) as client:
        assert sorted(client.get_acls("/own/sub")[0]) == sorted([*OWN, *READ_ONLY])
        assert list(Checker(client).run()) == []
    with started(at[1], auto_init=False) as stranger:
        for call in (stranger.delete, stranger.create):
            with pytest.raises(NoAuthError):
                call("/own/sub/x")
    plain.stop()
    plain.close()


def test_who_gives_up_twice_closes_what_the_first_had_begun_to_close(
    ensembles: EnsembleFactory,
) -> None:
    """Everybody could make and delete a directory's children, as they once might: the
    node was closed first, and then it did not show what its bucket was to be."""
    old, new = ensembles(2)
    at = ["--hosts", f"{old.hosts};{new.hosts}"]
    plain = plainly(old.hosts)
    plain.create("/d", b"")
    plain.create("/d/x", b"")
    plain.create("/z", b"")
    broken_off([*at, "init", "--import"], "import.2.acl")
    plain.set_acls("/d", READ_ONLY)
    broken_off([*at, "init", "--import"], "import.4.renewed")
    broken_off([*at, "init", "--beside"], "import.3.close")
    assert cli.main([*at, "init", "--beside"]) == 0
    with started(at[1], auto_init=False) as stranger:
        assert list(Checker(stranger).run()) == []
        for call in (stranger.delete, stranger.create):
            with pytest.raises(NoAuthError):
                call("/d/x")
    plain.stop()
    plain.close()


def test_what_joins_or_leaves_waits_for_an_import_to_end(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The import could not be gone on with, for it was not over just its members."""
    old, new, more = ensembles(3)
    at = ["--hosts", f"{old.hosts};{new.hosts}"]
    plain = plainly(old.hosts)
    fill(plain)
    broken_off([*at, "init", "--import", "--auth", ":".join(OWNER)], "import.1.node")
    for words in (["add-ensemble", more.hosts], ["remove-ensemble", "e1"]):
        capsys.readouterr()
        assert cli.main([*at, *words]) == 2
        assert "init --import" in capsys.readouterr().err
    assert cli.main([*at, "init", "--import", "--auth", ":".join(OWNER)]) == 0
    same(at[1], plain)
    plain.stop()
    plain.close()


def test_numbers_that_cannot_go_on_are_named(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The import ended well, and the next number was one that had been given."""
    old, new = ensembles(2)
    at = ["--hosts", f"{old.hosts};{new.hosts}"]
    command = [*at, "init", "--import"]
    plain = plainly(old.hosts)
    plain.add_auth(*SUPERUSER)
    plain.create("/q", b"")
    plain.create("/q/n-", b"", sequence=True)
    plain.create("/z", b"")
    plain.set_acls("/q", READ_ONLY)
    broken_off(command, "import.2.acl")
    for _ in range(5):
        plain.delete(plain.create("/q/n-", b"", sequence=True))
    capsys.readouterr()
    assert cli.main(command) == 2
    assert "made of /q" in capsys.readouterr().err
    assert cli.main([*command, "--auth", ":".join(SUPERUSER)]) == 0
    with started(at[1], auth_data=[SUPERUSER], auto_init=False) as client:
        assert client.create("/q/n-", sequence=True) == "/q/n-0000000006"
    plain.stop()
    plain.close()
