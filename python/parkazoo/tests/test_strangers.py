"""A member whose servers belong to somebody else now, or have lost their data, is not
used, and that is said."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import GetData
from kazoo.protocol.states import KazooState, KeeperState

from conftest import EnsembleFactory, empty, running, started
from parkazoo import NamespaceMismatch, NotInitialized, ParKazooClient, cli
from parkazoo.ensemble import EnsembleClient, Reply
from parkazoo.layout import CONFIG, IDENTITY
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from test_addresses import PATIENT
from test_client import nothing_wrong

DIRECTORIES = [f"/d{number}" for number in range(12)]


def fill(client: ParKazooClient) -> None:
    for path in DIRECTORIES:
        client.create(f"{path}/x", b"ours", makepath=True)


def assert_whole(client: ParKazooClient) -> None:
    """All that it was filled with is there, and nothing else is wrong."""
    for path in DIRECTORIES:
        assert client.get(f"{path}/x")[0] == b"ours"
    assert nothing_wrong(client)


def of(client: ParKazooClient, ensemble: Ensemble) -> tuple[list[str], list[str]]:
    """Directories whose children the ensemble holds, and those with nothing there."""
    table, layout = client.table, client._layout
    assert table is not None
    name = next(n for n, hosts in table.ensembles.items() if hosts == ensemble.hosts)
    here, elsewhere = [], []
    for path in DIRECTORIES:
        buckets = [*layout.buckets(path), *layout.buckets(f"{path}/x")]
        on = {table.owners[each.shard] for each in buckets}
        if table.owners[layout.buckets(path)[0].shard] == name:
            here.append(path)
        elif name not in on:
            elsewhere.append(path)
    return here, elsewhere


def data(ensemble: Ensemble) -> Path:
    """Where its only server keeps what it holds."""
    (server,) = ensemble.servers
    return server.directory / "data"


def refused(client: ParKazooClient, paths: list[str]) -> None:
    for path in paths:
        with pytest.raises(NamespaceMismatch, match="holds another namespace"):
            client.create(f"{path}/y")
        waiting = client.get_children_async(path)
        with pytest.raises(NamespaceMismatch, match="set-hosts"):
            waiting.get(timeout=PATIENCE_SECONDS)


def says(client: ParKazooClient, words: str) -> bool:
    return words in str(client._sessions.refused)


@pytest.mark.parametrize("degraded", [False, True], ids=["strict", "degraded"])
def test_what_others_have_made_of_a_member_is_left_alone(
    ensembles: EnsembleFactory, degraded: bool
) -> None:
    """It was wiped and used anew under the eyes of a client. Both have fences at 0, so
    the client went on in the others' namespace."""
    taken = ensembles(2)
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts, degraded=degraded, **PATIENT) as client:
        fill(client)
        table, layout = client.table, client._layout
        assert table is not None
        root = table.ensembles[table.owners[layout.buckets("/")[0].shard]]
        gone = next(ensemble for ensemble in taken if ensemble.hosts != root)
        here, elsewhere = of(client, gone)
        assert here and elsewhere
        empty(gone)
        with started(gone.hosts) as stranger:
            for path in DIRECTORIES:
                stranger.create(f"{path}/x", b"theirs", makepath=True)
            wait_until(lambda: client.state == KazooState.SUSPENDED, "it has noticed")
            wait_until(lambda: says(client, "another namespace"), "it has looked again")
            refused(client, here)
            for path in elsewhere:
                if degraded:
                    assert client.get(f"{path}/x")[0] == b"ours"
                else:
                    refused(client, [path])
            for path in DIRECTORIES:
                assert stranger.get_children(path) == ["x"]
                assert stranger.get(f"{path}/x")[0] == b"theirs"
            assert nothing_wrong(stranger)
        if not degraded:
            with pytest.raises(NamespaceMismatch, match="holds another namespace"):
                ParKazooClient(root, **PATIENT).start(PATIENCE_SECONDS)


def test_a_member_that_is_itself_again_is_used_again(
    ensembles: EnsembleFactory,
) -> None:
    """Its data had been lost, others began on its servers, and a backup came back."""
    (first,) = ensembles(1)
    with (
        Ensemble() as second,  # of its own: servers refuse who has seen more than they
        started(
            f"{first.hosts};{second.hosts}", **{**PATIENT, "timeout": 10}
        ) as client,
    ):
        fill(client)
        second.stop()
        kept = data(second).with_name("kept")
        shutil.copytree(data(second), kept)
        for version in data(second).glob("version-2"):
            shutil.rmtree(version)
        second.start()
        with started(second.hosts) as stranger:
            for path in DIRECTORIES:
                stranger.create(f"{path}/x", b"theirs", makepath=True)
            for done in [stranger.set_async("/d0", b"") for _ in range(500)]:
                done.get(timeout=PATIENCE_SECONDS)
            wait_until(lambda: says(client, "another namespace"), "it has been there")
            here, _ = of(client, second)
            refused(client, here)
            for path in DIRECTORIES:
                assert stranger.get_children(path) == ["x"]
        second.stop()
        for version in data(second).glob("version-2"):
            shutil.rmtree(version)
        for version in kept.glob("version-2"):
            shutil.copytree(version, data(second) / version.name)
        shutil.rmtree(kept)
        second.start()
        wait_until(lambda: client.state == KazooState.CONNECTED, "it is found again")
        assert client._sessions.refused is None
        assert_whole(client)


class Lost:
    """What a client is told, and how often it heard LOST."""

    def __init__(self, client: ParKazooClient) -> None:
        self.count = 0
        client.add_listener(self._told)

    def _told(self, state: str) -> None:
        self.count += state == KazooState.LOST


def test_a_client_that_is_turned_away_says_why_and_comes_back(
    ensembles: EnsembleFactory,
) -> None:
    """Servers that have seen less than a client close its connections without a word:
    it stayed SUSPENDED for ever, and nothing said why."""
    (first,) = ensembles(1)
    with (
        Ensemble() as second,
        started(
            f"{first.hosts};{second.hosts}", **{**PATIENT, "timeout": 10}
        ) as client,
    ):
        kept = data(second).with_name("kept")
        fill(client)
        second.stop()
        shutil.copytree(data(second), kept)
        second.start()
        wait_until(lambda: client.state == KazooState.CONNECTED, "it is back")
        here, _ = of(client, second)
        for done in [client.set_async(f"{here[0]}/x", b"new") for _ in range(500)]:
            done.get(timeout=PATIENCE_SECONDS)
        lost = Lost(client)

        second.stop()
        for version in data(second).glob("version-2"):
            shutil.rmtree(version)
        second.start()
        wait_until(lambda: says(client, "holds nothing of this"), "it knows why")
        assert client.state == KazooState.SUSPENDED and lost.count == 0
        for path in here:
            with pytest.raises(NamespaceMismatch, match="its data was lost"):
                client.get_children(path)

        second.stop()
        shutil.rmtree(data(second))
        shutil.copytree(kept, data(second))
        shutil.rmtree(kept)
        second.start()
        wait_until(lambda: lost.count == 1, "older data is a loss")
        wait_until(lambda: client.state == KazooState.CONNECTED, "it begins anew")
        assert client._sessions.refused is None
        assert_whole(client)


def emptied(taken: list[Ensemble]) -> tuple[str, Ensemble]:
    """A namespace with nodes, one of whose members has lost all: (hosts, which)."""
    hosts = ";".join(ensemble.hosts for ensemble in taken)
    with started(hosts) as client:
        fill(client)
        table, layout = client.table, client._layout
        assert table is not None
        root = {table.owners[b.shard] for b in layout.buckets("/")}
        root.add(table.owners[layout.node("/").shard])
        name = next(name for name in table.ensembles if name not in root)
    gone = next(e for e in taken if e.hosts == table.ensembles[name])
    empty(gone)
    return hosts, gone


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_a_fresh_client_does_not_take_an_emptied_member_for_an_empty_one(
    ensembles: EnsembleFactory, lazy: bool
) -> None:
    """Its data directory was lost, and its server came back with nothing: a client that
    started then was CONNECTED, and told of directories there that they were empty."""
    taken = ensembles(3)
    hosts, gone = emptied(taken)
    others = ";".join(e.hosts for e in taken if e is not gone)
    ways = [hosts, ";".join(reversed(hosts.split(";")))] + [others] * (not lazy)
    for given in ways * 2:
        client = ParKazooClient(given, lazy=lazy, **PATIENT)
        with pytest.raises(NamespaceMismatch, match="holds nothing of this namespace"):
            client.start(PATIENCE_SECONDS)
        assert not client.connected
    with started(others, degraded=True, lazy=lazy, **PATIENT) as client:
        here, elsewhere = of(client, gone)
        assert here and elsewhere
        for path in elsewhere:
            assert client.get(f"{path}/x")[0] == b"ours"
        for path in here:
            with pytest.raises(NamespaceMismatch, match="its data was lost"):
                client.get_children(path)


def test_a_running_client_stops_using_a_member_that_was_emptied(
    ensembles: EnsembleFactory,
) -> None:
    taken = ensembles(3)
    with started(";".join(e.hosts for e in taken), **PATIENT) as client:
        _, gone = emptied(taken)
        wait_until(lambda: says(client, "holds nothing of this"), "it has noticed")
        assert client.state != KazooState.CONNECTED
        here, _ = of(client, gone)
        for path in here:
            with pytest.raises(NamespaceMismatch, match="its data was lost"):
                client.get_children(path)


@contextmanager
def without_a_copy(
    taken: list[Ensemble], **options: Any
) -> Iterator[tuple[ParKazooClient, KazooClient]]:
    """A client that came back to the second one when its copy of the table had gone,
    and its name had not; and a plain client of that ensemble."""
    hosts = ";".join(e.hosts for e in taken)
    with (
        started(hosts, **PATIENT, **options) as client,
        running(KazooClient(taken[1].hosts, timeout=30)) as plain,
    ):
        fill(client)
        heard: list[str] = []
        client.add_listener(heard.append)
        plain.delete(CONFIG)
        wait_until(lambda: heard == ["SUSPENDED", "CONNECTED"], "it has looked")
        yield client, plain


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_a_member_emptied_before_and_after_a_client_looked_is_not_used(
    ensembles: EnsembleFactory, lazy: bool
) -> None:
    """Its copy of the table went first, and the client came back when only its name
    was there: of what went after that it took no notice."""
    taken = ensembles(2)
    with without_a_copy(taken, lazy=lazy) as (client, _):
        assert client._sessions.refused is None
        empty(taken[1])
        wait_until(lambda: says(client, "holds nothing of this"), "it has noticed")
        assert client.state != KazooState.CONNECTED


def test_a_name_that_is_written_again_holds_no_reads_up(
    ensembles: EnsembleFactory,
) -> None:
    """As `add-ensemble` and `set-hosts` write it. Reads under way there waited for a
    minute, and ended with Contention."""
    taken = ensembles(2)
    with without_a_copy(taken) as (client, plain):
        here, _ = of(client, taken[1])
        asked: list[Any] = []
        for _ in range(5):
            asked += [client.get_async(f"{p}/x") for p in here for _ in range(40)]
            plain.set(IDENTITY, plain.get(IDENTITY)[0])
        for each in asked:
            assert each.get(timeout=PATIENCE_SECONDS / 3)[0] == b"ours"
        assert not client._fencing.waiting and client.connected


@pytest.mark.parametrize(("name", "word"), [(b"e7", "e7"), (None, "nobody")])
def test_a_member_without_a_copy_whose_name_is_anothers_is_not_used(
    ensembles: EnsembleFactory, name: bytes | None, word: str
) -> None:
    """Where it was null, as Java may write it, the connection's thread died of it."""
    taken = ensembles(2)
    with without_a_copy(taken) as (client, plain):
        plain.set(IDENTITY, name)
        wait_until(lambda: says(client, f"says that it is {word}"), "it has noticed")
        assert client.state != KazooState.CONNECTED


def test_a_reading_of_the_table_that_was_not_sent_ends_with_the_others(
    ensembles: EnsembleFactory,
) -> None:
    """It ended the ending of all that was queued behind it, and from then on calls to
    the member counted as never over."""
    with started(ensembles(1)[0].hosts) as client:
        assert client.table is not None
        session = client._sessions.by_name[client.table.seat]
        seen = partial(session._configuration_seen, session.asked, False)
        behind = client.handler.async_result()
        session._queue.append((GetData(CONFIG, None), Reply(seen, seen)))
        session._queue.append((GetData(CONFIG, None), behind))
        session._end_queued(NamespaceMismatch("it is somebody else's"))
        with pytest.raises(NamespaceMismatch):
            behind.get(timeout=0)
        assert session.ending == []


def test_the_commands_say_which_member_was_emptied(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts, gone = emptied(ensembles(3))

    def run(*words: str, code: int) -> tuple[str, str]:
        capsys.readouterr()
        assert cli.main(["--hosts", hosts, "--timeout", "5", *words]) == code
        out, err = capsys.readouterr()
        return out, err

    document = json.loads(run("--json", "status", code=1)[0])
    (entry,) = [e for e in document["ensembles"].values() if e["hosts"] == gone.hosts]
    assert not entry["connected"] and "its data was lost" in entry["refused"]
    assert "NOT USED" in run("status", code=1)[0]
    for words in (("where", "/"), ("tree",)):
        out, err = run(*words, code=1)
        assert gone.hosts in err and "its data was lost" in err
    assert "not reached" in out
    assert "stranger" in run("check", code=1)[0]
    assert "its data was lost" in run("add-ensemble", gone.hosts, code=2)[1]


def test_init_does_not_make_an_emptied_member_anew(
    ensembles: EnsembleFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the namespace was there already, and gave the member fences and a
    table, after which all that had been there was gone as if deleted."""
    hosts, gone = emptied(ensembles(3))
    assert cli.main(["--hosts", hosts, "init"]) == 2
    said = capsys.readouterr().err
    assert gone.hosts in said and "its data was lost" in said
    plain = KazooClient(gone.hosts, timeout=30)
    plain.start(PATIENCE_SECONDS)
    try:
        assert plain.get_children("/") == ["zookeeper"]
    finally:
        plain.stop()
        plain.close()


def exchange(one: Ensemble, other: Ensemble) -> None:
    """Each gets the other's data, as if they had changed addresses."""
    one.stop()
    other.stop()
    a, b = data(one), data(other)
    aside = a.with_name("aside")
    shutil.move(a, aside)
    shutil.move(b, a)
    shutil.move(aside, b)
    one.start()
    other.start()


def test_members_that_have_changed_places_are_not_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Programs were CONNECTED and said of nodes that they were not there, and what
    `check --repair` took for left behind was all there was."""
    with Ensemble() as one, Ensemble() as two, Ensemble() as three:
        hosts = ";".join(e.hosts for e in (one, two, three))
        with started(hosts) as client:
            fill(client)
        exchange(one, two)
        for given in (hosts, one.hosts, three.hosts):
            client = ParKazooClient(given, auto_init=False, **PATIENT)
            with pytest.raises(NamespaceMismatch, match="says that it is e"):
                client.start(PATIENCE_SECONDS)
        with started(three.hosts, degraded=True, **PATIENT) as client:
            here, elsewhere = of(client, three)
            for path in here:
                assert client.get_children(path) == ["x"]
            with pytest.raises(NamespaceMismatch, match="says that it is e"):
                for path in elsewhere:
                    client.get_children(path)
        for words in (("check",), ("check", "--repair", "--delete-orphans")):
            capsys.readouterr()
            assert cli.main(["--hosts", hosts, *words]) == 1
            out = capsys.readouterr().out
            assert out.count("stranger   ") == 2 and "says that it is e" in out
            assert "next:" not in out and "repaired" not in out
        for words in (("rebalance",), ("remove-ensemble", "e0")):
            assert cli.main(["--hosts", hosts, *words]) == 2
            assert "says that it is e" in capsys.readouterr().err
        exchange(one, two)
        with started(hosts, auto_init=False) as client:
            assert_whole(client)


def test_commands_say_why_when_no_member_is_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Ensemble() as one, Ensemble() as two:
        hosts = f"{one.hosts};{two.hosts}"
        with started(hosts) as client:
            fill(client)
        exchange(one, two)
        for words in (("status",), ("check", "--repair")):
            capsys.readouterr()
            assert cli.main(["--hosts", hosts, "--timeout", "5", *words]) == 2
            assert "says that it is e" in capsys.readouterr().err


def test_a_member_with_the_backup_of_another_is_not_used_until_it_has_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Under the eyes of a client, which said of its nodes that they were not there."""
    with Ensemble() as one, Ensemble() as two:
        hosts = f"{one.hosts};{two.hosts}"
        with started(hosts, **{**PATIENT, "timeout": 10}) as client:
            fill(client)
            here, _ = of(client, two)
            one.stop()
            two.stop()
            own = data(two).with_name("own")
            shutil.move(data(two), own)
            shutil.copytree(data(one), data(two))
            one.start()
            two.start()
            wait_until(lambda: says(client, "says that it is e"), "it has noticed")
            assert client.state != KazooState.CONNECTED
            for path in here:
                with pytest.raises(NamespaceMismatch, match="from another's backup"):
                    client.get_children(path)
            assert cli.main(["--hosts", hosts, "check", "--repair"]) == 1
            assert "stranger" in capsys.readouterr().out
            two.stop()
            shutil.rmtree(data(two))
            shutil.move(own, data(two))
            two.start()
            wait_until(lambda: client.state == KazooState.CONNECTED, "it is itself")
            assert client._sessions.refused is None
            assert_whole(client)


def test_who_names_only_an_emptied_member_is_told_that_a_namespace_was_made(
    ensembles: EnsembleFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """That there was one it cannot know."""
    _, gone = emptied(ensembles(3))
    careful = ParKazooClient(gone.hosts, auto_init=False, **PATIENT)
    with pytest.raises(NotInitialized):
        careful.start(PATIENCE_SECONDS)
    for times in (1, 0):
        caplog.clear()
        with started(gone.hosts):
            said = [m for m in caplog.messages if "made a new namespace on" in m]
            assert len(said) == times and all(gone.hosts in m for m in said)


@pytest.mark.parametrize("degraded", [False, True], ids=["strict", "degraded"])
def test_who_starts_writes_nothing_to_a_member_that_shows_its_table_late(
    ensembles: EnsembleFactory, degraded: bool
) -> None:
    """A member that others use now had been found, and its copy compared only when it
    was read a second time: until then the program was CONNECTED, and what it asked for
    arrived in the others' namespace."""
    taken = ensembles(3)
    hosts, gone = emptied(taken)
    with started(gone.hosts):
        pass
    reads = EnsembleClient.read_configuration

    def read(ensemble: EnsembleClient, first: bool = False) -> None:
        if ensemble.hosts_string != gone.hosts:
            reads(ensemble, first)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EnsembleClient, "read_configuration", read)
        for given in (hosts, ";".join(reversed(hosts.split(";")))) * 2:
            client = ParKazooClient(given, degraded=degraded, **PATIENT)
            client.start_async()
            asked = [client.create_async(f"{path}/new") for path in DIRECTORIES]
            if degraded:
                with running(client):
                    here, _ = of(client, gone)
                    refused(client, here)
                continue
            with pytest.raises(NamespaceMismatch):
                client.start(PATIENCE_SECONDS)
            assert not any(each.successful() for each in asked)
    with started(gone.hosts, auto_init=False) as stranger:
        assert stranger.get_children("/") == ["zookeeper"]


class Slow(ParKazooClient):
    def _session_callback(self, state: Any) -> None:
        super()._session_callback(state)
        if state == KeeperState.CONNECTED:
            time.sleep(0.5)


def test_a_degraded_start_that_finds_itself_connected_for_a_moment_has_succeeded(
    ensembles: EnsembleFactory,
) -> None:
    """It is CONNECTED and then SUSPENDED when it goes on without somebody. If `start`
    looked between the two, it said that nobody had answered in time."""
    hosts, gone = emptied(ensembles(3))
    with running(Slow(hosts, degraded=True, **PATIENT)) as client:
        here, elsewhere = of(client, gone)
        assert here and client.get(f"{elsewhere[0]}/x")[0] == b"ours"
