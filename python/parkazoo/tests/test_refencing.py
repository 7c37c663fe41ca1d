"""After an older backup of one ensemble came back, shards that had been away since take
writes again."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import EnsembleFactory, Maker, started
from parkazoo import Contention, ParKazooClient, cli, failpoints, fencing
from parkazoo.check import Checker
from parkazoo.copying import GONE
from parkazoo.layout import fence
from parkazoo.move import Mover
from parkazoo.wire import Guarded
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_client import nothing_wrong
from test_strangers import DIRECTORIES

Said = pytest.CaptureFixture[str]


def check(hosts: str, capsys: Said, *words: str) -> tuple[int, list[Any]]:
    capsys.readouterr()
    code = cli.main(["--hosts", hosts, "--json", "check", *words])
    return code, json.loads(capsys.readouterr().out)


def shard_of(client: ParKazooClient, path: str) -> int:
    return int(client._layout.buckets(path)[0].shard)


def there_and_back(client: ParKazooClient, shard: int) -> None:
    assert client.table is not None
    owner = client.table.owners[shard]
    other = next(name for name in client.table.ensembles if name != owner)
    Mover(client).move({shard: other})
    Mover(client).move({shard: owner})


@contextmanager
def backed_up(ensemble: Ensemble) -> Iterator[Callable[[], None]]:
    """Yields what brings back the data that the ensemble has now."""
    (server,) = ensemble.servers
    data: Path = server.directory / "data"
    kept = server.directory / "kept"
    ensemble.stop()
    shutil.copytree(data, kept)
    ensemble.start()

    def restore() -> None:
        ensemble.stop()
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        ensemble.start()

    yield restore


def made(hosts: str) -> tuple[str, int, str]:
    """A namespace with nodes; a directory, its shard, and the hosts of its owner."""
    with started(hosts) as client:
        for path in DIRECTORIES:
            client.create(f"{path}/x", b"ours", makepath=True)
        assert client.table is not None
        path = DIRECTORIES[3]
        shard = shard_of(client, path)
        return path, shard, client.table.ensembles[client.table.owners[shard]]


def test_a_shard_whose_owner_has_an_older_backup_takes_writes_again(
    capsys: Said,
) -> None:
    """It had been away since. Nothing was found wrong, and each write to it waited a
    minute for a move that nobody made."""
    with Ensemble() as one, Ensemble() as two:
        hosts = f"{one.hosts};{two.hosts}"
        path, shard, listed = made(hosts)
        owner = one if one.hosts == listed else two
        with backed_up(owner) as restore:
            with started(hosts) as client:
                there_and_back(client, shard)
            restore()
        with started(hosts) as client:
            waiting = client.create_async(f"{path}/y", b"late")
            code, found = check(hosts, capsys)
            astray = [f for f in found if f["kind"] == "fence"]
            assert code == 1 and [f["where"] for f in astray] == [fence(shard)]
            assert "older backup" in astray[0]["what"] and astray[0]["mendable"]
            code, found = check(hosts, capsys, "--repair")
            astray = [f for f in found if f["kind"] == "fence"]
            assert [f["repaired"] for f in astray] == [True]
            assert waiting.get(timeout=PATIENCE_SECONDS) == f"{path}/y"
            check(hosts, capsys, "--repair")
            for each in DIRECTORIES:
                assert client.get(f"{each}/x")[0] == b"ours"
            there_and_back(client, shard)
            assert client.get_children(path) == ["x", "y"]
            assert nothing_wrong(client)


def test_a_shard_that_was_elsewhere_at_the_time_of_the_backup_is_left_alone(
    capsys: Said,
) -> None:
    """What it held is not in the backup; made writable, it would look deleted. Nor is
    anything deleted that may be what is left of it."""
    with Ensemble() as one, Ensemble() as two:
        hosts = f"{one.hosts};{two.hosts}"
        _, shard, listed = made(hosts)
        owner = one if one.hosts == listed else two
        with started(hosts) as client:
            assert client.table is not None
            there = client.table.owners[shard]
            away = next(name for name in client.table.ensembles if name != there)
            Mover(client).move({shard: away})
        with backed_up(owner) as restore:
            with started(hosts) as client:
                Mover(client).move({shard: there})
                session = client._sessions.by_name[away]
                session.create(f"{fence(shard)}/left", b"behind")
            restore()
        code, found = check(hosts, capsys, "--repair")
        (astray,) = [f for f in found if f["kind"] == "fence"]
        assert code == 1 and astray["where"] == fence(shard)
        assert not astray["mendable"] and not astray["repaired"]
        assert "What the shard held is not in it" in astray["what"]
        (left,) = [f for f in found if f["kind"] == "leftover"]
        assert not left["repaired"]
        with started(hosts) as client:
            session = client._sessions.by_name[away]
            assert session.exists(f"{fence(shard)}/left") is not None


def test_a_fence_that_is_missing_keeps_what_others_have_of_its_shard(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    _, shard, listed = made(hosts)
    with started(hosts) as client:
        assert client.table is not None
        names = {h: n for n, h in client.table.ensembles.items()}
        owner = client._sessions.by_name[names.pop(listed)]
        other = client._sessions.by_name[names.popitem()[1]]
        owner.delete(fence(shard), recursive=True)
        other.create(f"{fence(shard)}/left", b"behind", makepath=True)
        code, found = check(hosts, capsys, "--repair")
        assert code == 1 and "fence" in [f["kind"] for f in found]
        assert other.exists(f"{fence(shard)}/left") is not None


@pytest.mark.parametrize("die", [False, True], ids=["whole", "died"])
def test_a_fence_that_is_ahead_of_the_table_is_taken_over(
    ensembles: EnsembleFactory,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    die: bool,
) -> None:
    """Somebody has set it by hand, or who raised it died before the table was told."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    path, shard, _ = made(hosts)
    with started(hosts) as client:
        assert client.table is not None
        owner = client._sessions.by_name[client.table.owners[shard]]
        owner.set(fence(shard), b"active")

        def stop(label: str, when: str) -> None:
            if label == "refence.1.raised":
                raise KeyboardInterrupt

        if die:
            monkeypatch.setattr(failpoints, "hook", stop)
            assert cli.main(["--hosts", hosts, "check", "--repair"]) == 2
            monkeypatch.setattr(failpoints, "hook", None)
        code, found = check(hosts, capsys, "--repair")
        assert code == 0 and [f["kind"] for f in found] == ["fence"]
        assert check(hosts, capsys) == (0, [])
        assert client.create(f"{path}/y") == f"{path}/y"
        owner.set(fence(shard), GONE)
        assert not any(f.repaired for f in Checker(client).run(repair=True))


def test_who_repairs_beside_somebody_hears_of_that_and_of_all_else(
    ensembles: EnsembleFactory, capsys: Said
) -> None:
    """All that had been found was lost with the error."""
    hosts = ";".join(ensemble.hosts for ensemble in ensembles(2))
    _, shard, _ = made(hosts)
    with started(hosts) as client:
        assert client.table is not None
        owner = client._sessions.by_name[client.table.owners[shard]]
        owner.set(fence(shard), b"active")
        with Mover(client).alone():
            code, (found,) = check(hosts, capsys, "--repair")
        assert code == 1 and found["kind"] == "fence" and not found["repaired"]
        assert "somebody else is changing" in found["what"]
        assert check(hosts, capsys, "--repair")[0] == 0


@pytest.mark.parametrize("how", ["refuse", "intent"])
@pytest.mark.parametrize("mended", [True, False], ids=["mended", "left"])
def test_a_transaction_waits_for_an_astray_fence_as_other_requests_do(
    make: Maker, monkeypatch: pytest.MonkeyPatch, how: str, mended: bool
) -> None:
    """It takes a directory's bucket along, whose fence it was that refused. It was sent
    again at once, thousands of times a second, for ever; the part of an intent was
    for five seconds."""
    if not mended:
        monkeypatch.setattr(fencing, "WAIT_SECONDS_MAX", 1.0)
    client = make(cross_shard=how)
    path, bucket = beside(client)
    client.create(f"{path}/x", makepath=True)
    client.delete(f"{path}/x")
    client.create("/other/y", makepath=True)
    assert client.table is not None
    owner = client._sessions.by_name[client.table.owners[bucket]]
    owner.set(fence(bucket), b"active")
    sent: list[Any] = []
    submit = owner.submit

    def noting(request: Any, reply: Any) -> None:
        if type(request) is Guarded and fence(bucket) in dict(request.fences):
            sent.append(request)
        submit(request, reply)

    monkeypatch.setattr(owner, "submit", noting)
    asked = client.transaction()
    asked.delete(path)
    if how == "intent":
        asked.set_data("/other/y", b"both")
    done = asked.commit_async()
    assert client.get("/other/y")[0] in (b"", b"both")
    if mended:
        wait_until(lambda: sent, "sent")
        time.sleep(0.5)
        assert len(sent) == 1
        assert any(f.repaired for f in Checker(make()).run(repair=True))
        assert done.get(timeout=PATIENCE_SECONDS)[0] is True
        assert len(sent) == 2 and client.exists(path) is None
    else:
        with pytest.raises(Contention):
            done.get(timeout=PATIENCE_SECONDS)
        assert len(sent) == 1 and client.exists(path) is not None


def beside(client: ParKazooClient) -> tuple[str, int]:
    """A directory whose bucket is on its ensemble, in another shard, and that shard."""
    assert client.table is not None
    owners, layout = client.table.owners, client._layout
    for number in itertools.count():
        path = f"/beside{number}"
        home, bucket = layout.node(path).shard, layout.buckets(path)[0].shard
        if home != bucket and owners[home] == owners[bucket]:
            return path, bucket
    raise AssertionError
