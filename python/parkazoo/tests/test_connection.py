"""The batching connection against a real server: what Kazoo's own suite, which we
run on it as well, does not look at: batches, large replies, lost wake-ups, and a
server that falls silent while callers keep talking to it."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.exceptions import (
    ConnectionDropped,
    ConnectionLoss,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import _CONNECTION_DROP, _SESSION_EXPIRED
from kazoo.protocol.states import KazooState

from conftest import EnsembleFactory, running
from parkazoo.connection import SEND_BYTES_MAX, BatchingClient
from parkazoo.waiting import Waiting
from proxy import Proxy
from servers import PATIENCE_SECONDS, Ensemble, wait_until


@pytest.fixture
def ensemble(ensembles: EnsembleFactory) -> Ensemble:
    return ensembles(1)[0]


@pytest.fixture
def client(ensemble: Ensemble) -> Iterator[BatchingClient]:
    client = BatchingClient(ensemble.hosts, timeout=30)
    client.start(PATIENCE_SECONDS)
    yield client
    client.stop()
    client.close()


def test_pipelined_requests_are_answered_in_the_order_they_were_made(
    client: BatchingClient,
) -> None:
    client.create("/n")
    answered: list[int] = []
    results = []
    for number in range(2000):
        result = client.set_async("/n", str(number).encode())
        result.rawlink(lambda _, n=number: answered.append(n))
        results.append(result)
    versions = [result.get(timeout=PATIENCE_SECONDS).version for result in results]
    assert versions == list(range(1, 2001))
    wait_until(lambda: len(answered) == 2000, "all callbacks")
    assert answered == sorted(answered)
    assert client.get("/n")[0] == b"1999"


def test_a_batch_larger_than_one_send_arrives_whole(client: BatchingClient) -> None:
    value = b"v" * 50_000
    count = 4 * SEND_BYTES_MAX // len(value)
    results = [client.create_async(f"/n{n}", value) for n in range(count)]
    assert [result.get(timeout=PATIENCE_SECONDS) for result in results] == [
        f"/n{n}" for n in range(count)
    ]


def test_replies_larger_than_one_receive_are_put_together(
    client: BatchingClient,
) -> None:
    values = [bytes([n]) * 900_000 for n in range(3)]
    for n, value in enumerate(values):
        client.create(f"/large{n}", value)
    results = [client.get_async(f"/large{n % 3}") for n in range(12)]
    results.insert(5, client.exists_async("/large0"))
    assert results.pop(5).get(timeout=PATIENCE_SECONDS).dataLength == 900_000
    for n, result in enumerate(results):
        data, _stat = result.get(timeout=PATIENCE_SECONDS)
        assert type(data) is bytes
        assert data == values[n % 3]


def test_a_client_that_logs_everything_gets_the_same_answers(
    ensemble: Ensemble, caplog: pytest.LogCaptureFixture
) -> None:
    """Replies that are not logged take a shorter way to their callers."""
    logger = logging.getLogger("parkazoo.test")
    found = []
    for level in (logging.DEBUG, logging.WARNING):
        caplog.set_level(level, logger.name)
        client = BatchingClient(ensemble.hosts, timeout=30, logger=logger)
        client.start(PATIENCE_SECONDS)
        client.create("/n", b"1")
        path = client.create("/n/", sequence=True)
        seen = [path, client.exists("/none"), client.set("/n", b"2").version]
        with pytest.raises(NoNodeError):
            client.get("/none")
        seen += [client.get("/n")[0], client.get_children("/n")]
        client.delete("/n", recursive=True)
        found.append([*seen, client.exists("/n")])
        client.stop()
        client.close()
    assert found[0] == found[1]
    assert "Received response" in caplog.text


def test_no_caller_is_left_asleep(ensemble: Ensemble) -> None:
    """Many callers race with the connection thread for the wake-up byte; a lost
    one would leave its request in the queue until the next heartbeat, which only
    comes after seconds in which nothing woke the connection thread."""
    client = BatchingClient(ensemble.hosts, timeout=20)
    client.start(PATIENCE_SECONDS)
    client.create("/n")
    connection, asleep = client._connection, []
    ping = connection._send_ping

    def note_and_ping(timeout: float) -> None:
        asleep.extend(client._queue)
        ping(timeout)

    connection._send_ping = note_and_ping  # type: ignore[method-assign]

    def call() -> None:
        for _ in range(100):
            client.exists("/n")

    callers = [threading.Thread(target=call) for _ in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    client.stop()
    client.close()
    assert asleep == [], "only a heartbeat found these requests"


def test_watches_fire_between_replies(client: BatchingClient) -> None:
    client.create("/n")
    events = []
    fired = threading.Event()

    def watch(event: object) -> None:
        events.append(event)
        fired.set()

    client.get("/n", watch=watch)
    results = [client.set_async("/n", b"x") for _ in range(100)]
    results += [client.get_async("/n") for _ in range(100)]
    for result in results:
        result.get(timeout=PATIENCE_SECONDS)
    assert fired.wait(PATIENCE_SECONDS)
    assert len(events) == 1


def test_an_authentication_answered_ahead_of_others_is_matched(
    client: BatchingClient,
) -> None:
    client.create("/n")
    before = [client.set_async("/n", b"x") for _ in range(300)]
    authenticated = client.add_auth_async("digest", "user:password")
    after = [client.set_async("/n", b"x") for _ in range(300)]
    assert authenticated.get(timeout=PATIENCE_SECONDS) is True
    versions = [
        result.get(timeout=PATIENCE_SECONDS).version for result in [*before, *after]
    ]
    assert versions == list(range(1, 601))


def test_requests_queued_before_a_drop_are_sent_first(client: BatchingClient) -> None:
    client.create("/n", b"0")
    before = client.set_async("/n", b"1")
    client._call(_CONNECTION_DROP, None)
    with contextlib.suppress(ConnectionLoss):
        before.get(timeout=PATIENCE_SECONDS)
    assert client.retry(client.get, "/n")[0] == b"1"


def test_a_silent_server_is_given_up_while_callers_keep_sending(
    ensemble: Ensemble,
) -> None:
    """Kazoo takes each request it sends for a heartbeat, so it never notices."""
    client = BatchingClient(ensemble.hosts, timeout=4)
    client.start(PATIENCE_SECONDS)
    suspended = threading.Event()

    def listen(state: str) -> None:
        if state == KazooState.SUSPENDED:
            suspended.set()

    client.add_listener(listen)
    ensemble.pause()

    def keep_sending() -> bool:
        client.exists_async("/")
        return suspended.is_set()

    wait_until(keep_sending, "the silent server is given up")
    ensemble.resume()
    wait_until(lambda: client.connected, "the client is back")
    assert client.retry(client.exists, "/") is not None
    client.stop()
    client.close()


@pytest.mark.parametrize("later", [0.0, 0.55])
def test_a_silent_server_that_takes_no_more_is_given_up(
    ensemble: Ensemble, later: float
) -> None:
    """What did not fit its socket was waited for as long as a session lasts, from then
    on, so the client was CONNECTED when that had long ended."""
    seconds = 20.0
    with contextlib.closing(Proxy(ensemble.servers[0].client_port)) as proxy:
        client = BatchingClient(proxy.address, timeout=seconds)
        with running(client):
            client.ensure_path("/silent")
            heard: list[float] = []
            client.add_listener(lambda state: heard.append(time.monotonic()))
            client.get("/silent")
            begun = time.monotonic()
            proxy.hold()
            time.sleep(later * seconds)
            for _ in range(20):
                client.set_async("/silent", b"x" * 900_000)
            wait_until(lambda: heard, "it is given up")
            proxy.release()
            assert heard[0] - begun < seconds
            wait_until(lambda: client.connected, "the client is back")


# Says what it was answered, and what it has heard by then.
ASKER = """
import sys, time
from parkazoo.connection import BatchingClient
client = BatchingClient(sys.argv[1], timeout=20)
heard = []
client.start(60)
client.get("/")  # behind it CONNECTED has been told to all who listened then
client.add_listener(heard.append)
print("ready", flush=True)
sys.stdin.readline()
asked = client.get_async("/")
while not client._pending:
    time.sleep(0.01)
time.sleep(0.3)
print("asked", flush=True)
sys.stdin.readline()
print(type(asked.get(timeout=60)).__name__, heard, flush=True)
"""


def test_who_was_stopped_with_an_answer_in_its_socket_goes_on(
    ensemble: Ensemble,
) -> None:
    """Its wait was over when it went on, so the server was taken for a silent one."""
    with contextlib.closing(Proxy(ensemble.servers[0].client_port)) as proxy:
        asker = subprocess.Popen(
            [sys.executable, "-c", ASKER, proxy.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert asker.stdin is not None and asker.stdout is not None
        try:
            assert asker.stdout.readline() == "ready\n"
            proxy.hold()
            print(file=asker.stdin, flush=True)
            assert asker.stdout.readline() == "asked\n"
            asker.send_signal(signal.SIGSTOP)
            proxy.release()
            time.sleep(14.4)  # more than two thirds of its session, and less than all
            print(file=asker.stdin, flush=True)
            asker.send_signal(signal.SIGCONT)
            assert asker.stdout.readline() == "tuple []\n"
        finally:
            asker.kill()
            asker.wait()


# Waits until it may write to the socket it was given, for a second at most.
WRITER = """
import socket, sys, time
from kazoo.handlers.threading import SequentialThreadingHandler
from parkazoo.waiting import Waiting
ours = socket.socket(fileno=int(sys.argv[1]))
end = time.monotonic() + 1
waiting = Waiting(SequentialThreadingHandler(), lambda writing: end)
print("waits", flush=True)
print(len(waiting.select([], [ours], [], 10)[1]), flush=True)
"""


def test_who_was_stopped_while_more_was_taken_goes_on() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while ours.send(b"x" * 65536):
            pass
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(ours.fileno())],
        pass_fds=[ours.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    ours.close()
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "waits\n"
        time.sleep(0.3)
        writer.send_signal(signal.SIGSTOP)
        while len(theirs.recv(65536)) == 65536:
            pass
        time.sleep(1)
        writer.send_signal(signal.SIGCONT)
        assert writer.stdout.readline() == "1\n"
    finally:
        writer.kill()
        writer.wait()
        theirs.close()


def test_who_answers_and_then_takes_a_little_at_a_time_is_given_up_in_time() -> None:
    """With an answer unread, each piece that was taken began the wait anew."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    begun = time.monotonic()
    waiting = Waiting(SequentialThreadingHandler(), lambda writing: begun + 1)
    theirs.send(b"an answer")

    def take() -> None:
        with contextlib.suppress(ConnectionResetError):
            while theirs.recv(4096):
                time.sleep(0.05)

    taking = threading.Thread(target=take)
    taking.start()
    try:
        with pytest.raises(ConnectionDropped):
            while time.monotonic() < begun + 10:
                if not waiting.select([], [ours], [], 10)[1]:
                    break
                ours.send(b"x" * 65536)
        assert 1 < time.monotonic() - begun < 9
    finally:
        ours.close()
        taking.join()
        theirs.close()


def test_a_handshake_without_an_answer_does_not_cost_the_session(
    ensemble: Ensemble,
) -> None:
    """Kazoo waits for it as long as the session lasts, if it knows but one server.
    Seen with servers that had just been started again."""
    proxy = Proxy(ensemble.servers[0].client_port)
    client = BatchingClient(proxy.address, timeout=24)
    client.start(PATIENCE_SECONDS)
    client.create("/mine", ephemeral=True)
    states: list[str] = []
    client.add_listener(states.append)
    proxy.swallow(1)
    client._call(_CONNECTION_DROP, None)
    wait_until(lambda: states[-1:] == [KazooState.CONNECTED], "the client is back")
    assert KazooState.LOST not in states
    assert client.retry(client.exists, "/mine") is not None
    client.stop()
    client.close()
    proxy.close()


def test_an_expired_session_fails_what_was_waiting(
    ensemble: Ensemble, client: BatchingClient
) -> None:
    lost = threading.Event()
    client.add_listener(lambda state: state == KazooState.LOST and lost.set())
    client._call(_SESSION_EXPIRED, None)
    waiting = client.exists_async("/")
    with pytest.raises(SessionExpiredError):
        waiting.get(timeout=PATIENCE_SECONDS)
    assert lost.wait(PATIENCE_SECONDS)
    wait_until(lambda: client.connected, "a new session")


def test_a_stopped_client_starts_again(client: BatchingClient) -> None:
    client.create("/n", b"kept")
    for _ in range(3):
        client.stop()
        client.close()
        client.start(PATIENCE_SECONDS)
        assert client.get("/n")[0] == b"kept"
