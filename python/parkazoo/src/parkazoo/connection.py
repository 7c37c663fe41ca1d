"""A connection to one ensemble that sends and receives in batches.

What: Kazoo's own connection handler with its three costly habits replaced. Kazoo
wakes its connection thread with one byte per request, asks the kernel whether it
may write before every request and whether it may read before every half of a
reply, and builds and destroys an epoll object for each of those questions. Here
one byte wakes the thread however many requests are waiting, all of them leave in
one `send`, every reply that has arrived comes in with one `recv`, what is asked for
while replies are dealt with leaves right after them, and one epoll object lives as
long as the socket.

    callers --append--> client._queue          client._pending <--append-- sender
       '----one byte per batch----> connection thread ----one send----> server
                                         '<----one recv, many replies----'

Why like this: Kazoo's loop, its connecting, authenticating, pinging and giving up
stay Kazoo's own code; only the three methods it calls to select, to send and to
receive are ours. So the order of requests and replies, xids, watches, SASL, TLS,
read-only servers and the hooks for fault injection behave as they do in Kazoo. A
handler whose `select` somebody replaced is such a hook, too: it is then asked
before every read and write, as Kazoo asks.

Must never: reorder requests, put a request on the wire without its entry in
`client._pending`, keep a byte of one connection for the next, or touch the socket
from any thread but the connection's own.

On purpose different from Kazoo in five places. A server that answers nothing is
given up after the read timeout even while callers keep sending: Kazoo counts every
request as a heartbeat and then never notices, which endangers a lock. The reply to
an authentication, which servers send ahead of others, is matched to its request.
A read-write server found while read-only is connected to by its own address. A
server that accepts a connection and does not answer the handshake, as one that is
just starting sometimes does, is given up while there is time for another attempt:
Kazoo waits for as long as the session lasts, if it knows only one server. A server
that wants another login by SASL is one that refuses us: Kazoo's thread dies of it.
"""

from __future__ import annotations

import logging
import math
import ssl
import struct
import time
from contextlib import closing
from typing import Any

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    BadArgumentsError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    NoNodeError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.loggingsupport import BLATHER
from kazoo.protocol.connection import (
    _CONNECTION_DROP,
    _SESSION_EXPIRED,
    AUTH_XID,
    CLOSE_RESPONSE,
    PING_XID,
    WATCH_XID,
    ConnectionHandler,
)
from kazoo.protocol.serialization import (
    Auth,
    Close,
    Connect,
    ReplyHeader,
    Transaction,
    int_int_struct,
    int_struct,
    reply_header_struct,
)
from kazoo.protocol.states import KeeperState

from parkazoo.proof import Proof, now
from parkazoo.waiting import Waiting
from parkazoo.wire import Guarded

# One recv takes at most this much. Larger than a batch of small replies, small
# enough that allocating it is cheap; a larger reply is put together from several.
RECEIVE_BYTES_MAX = 64 * 1024
# One send carries at most about this much (a single larger request goes alone),
# so that replies are read, and their callers woken, between batches.
SEND_BYTES_MAX = 128 * 1024
# Wake-up bytes drained at once. There is rarely more than one in the pipe.
WAKE_BYTES_MAX = 4096
XID_MAX = 2**31 - 1
# A handshake is waited for a third of the session's time, but at least this long:
# a busy server may need it.
HANDSHAKE_SECONDS_MIN = 5.0

# What `KazooClient` takes about TLS, and has as attributes of these names.
TLS_OPTIONS = (
    "keyfile",
    "keyfile_password",
    "certfile",
    "ca",
    "use_ssl",
    "verify_certs",
    "check_hostname",
)

_HEADER_BYTES = reply_header_struct.size
_LENGTH_BYTES = int_struct.size
_length_xid_type = struct.Struct("!iii")
_length_and_header = struct.Struct("!iiqi")
_FRAME_BYTES_MIN = _length_and_header.size
# Replies to these mean something to Kazoo beside being somebody's result.
_MORE_THAN_A_RESULT = (Close, Transaction)


def _refuse(async_object: Any, error: Exception) -> None:
    if isinstance(error, ConnectionLoss):
        async_object.set_exception(error)
    elif async_object is not None:
        what = f"{type(error).__name__}: {error}"  # not its repr, which has passwords
        refusal = BadArgumentsError(f"this cannot be sent to a server: {what}")
        refusal.__cause__ = error
        async_object.set_exception(refusal)


class BatchingConnection(ConnectionHandler):
    """Kazoo's connection handler that batches its writes, reads and wake-ups.

    `_wake_sent` is true only while a wake-up byte is in the pipe or about to be, or
    while the connection thread deals with replies, after which it looks at the
    queue. So whoever appends to the queue while it is true need not send a byte. The
    connection thread empties the pipe first, then clears it, then looks at the
    queue: in this order no request is left behind asleep.
    """

    def __init__(
        self,
        client: KazooClient,
        retry_sleeper: Any,
        logger: logging.Logger | None = None,
        sasl_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(client, retry_sleeper, logger, sasl_options)
        self.wait_with(client.handler)
        self._xid: int | None = None
        self._wake_sent = False
        # Replies are being dealt with, that are not in `client._pending` any more.
        self.taking = False
        self._missing = 0
        self._parts: list[bytes] = []
        self._heard_at = self._asked_at = 0.0
        self.proof = Proof()
        self._logged = False  # asked for each batch, since it costs
        self._send_seconds = self._read_seconds = 0.0

    def wait_with(self, handler: Any) -> None:
        """Wait on sockets with this handler."""
        self.handler: Any = Waiting(handler, self._silent_until)

    def start(self) -> None:
        self._wake_sent = False
        super().start()

    def close(self) -> None:
        super().close()
        self._wake_sent = False
        self.handler.forget()

    def wake(self) -> None:
        """Let the connection thread look at the queue, at once or after its batch.

        :raises ConnectionClosedError: the connection was closed meanwhile.
        """
        write_sock = self._write_sock
        if write_sock is None:
            raise ConnectionClosedError("Connection has been closed")
        if self._wake_sent:
            return
        try:
            self._wake_sent = True
            write_sock.send(b"\0")
        except BaseException as error:
            self._wake_sent = False
            if not isinstance(error, Exception):
                raise
            raise ConnectionClosedError("Connection has been closed") from None

    # -- what Kazoo's loop calls -------------------------------------------------

    def _silent_until(self, writing: bool = False) -> float:
        """When a server that says nothing is given up: after the read timeout (two
        thirds of the session's time), if what was asked is without an answer for at
        least half of it. Who is writing does not listen: after a quarter more, while
        the session is still there."""
        if not (self.client._pending or self.ping_outstanding.is_set()):
            return math.inf
        patience = self._read_seconds * (5 / 4 if writing else 1)
        half = self._read_seconds / 2
        return max(self._heard_at + patience, self._asked_at + half)

    def _send_ping(self, connect_timeout: float) -> None:
        self.proof.pinging()
        if not self.client._pending:
            self._asked_at = time.monotonic()
        super()._send_ping(connect_timeout)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        self._parts, self._missing = [], 0
        self.ping_outstanding.clear()  # it was the connection's before
        if self._rw_server:
            hostip = self._rw_server[0]
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        finally:
            self.handler.forget()

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self.proof.connecting()
        try:
            timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        except ConnectionDropped:
            if self._socket is not None:
                self.client.turned_away()
            raise
        except SessionClosedRequireSaslError:
            raise AuthFailedError from None
        self._heard_at = time.monotonic()
        self._read_seconds, self._send_seconds = (each / 1000 for each in timeouts)
        self.proof.connected(self._read_seconds)
        self.client.connection_made()
        return timeouts

    def ask(self, *requests: Any) -> list[Any]:
        """Send these and wait for their replies, before any other is sent. The reply
        about a node that is not there is None.

        For `connection_made` alone, which this thread calls.
        """
        expected = [(request, self.tell(request)) for request in requests]
        replies: list[Any] = []
        errors: list[Exception] = []
        for request, xid in expected:
            header, buffer, offset = self._read_header(self._send_seconds)
            if header.xid != xid:
                raise ConnectionDropped("a reply that nobody asked for")
            if header.err in (0, NoNodeError.code):
                there = not header.err
                replies.append(request.deserialize(buffer, offset) if there else None)
                continue
            error = EXCEPTIONS[header.err]()
            if isinstance(error, SessionClosedRequireSaslError):
                raise AuthFailedError  # and no other reply comes
            errors.append(error)
        if errors:
            raise errors[0]
        return replies

    def tell(self, request: Any) -> int:
        """The same, without waiting for the reply, which will have this number."""
        xid = self._next_xid()
        self._submit(request, self._send_seconds, xid)
        return xid

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if type(request) is Connect:
            session = self.client._session_timeout / 1000
            timeout = min(timeout, max(HANDSHAKE_SECONDS_MIN, session / 3))
        return super()._invoke(timeout, request, xid)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """There is a wake-up byte: take it away, and send what it announced."""
        self._drain_wakes()
        self._send_queued(read_timeout, connect_timeout)

    def _send_queued(self, read_timeout: float, connect_timeout: float) -> None:
        """Send everything that is queued, in order, in as few sends as possible.

        A request that cannot be sent, for what its caller gave, is its caller's to
        hear of. Kazoo drops the connection for it, and all that is under way there.
        """
        queue, pending = self.client._queue, self.client._pending
        self.handler.refuse_silence()
        self._logged = logged = self.logger.isEnabledFor(logging.DEBUG)
        frames = bytearray()
        since, guarded = now(), False
        doubt = self.client.doubt(since)
        refused: list[tuple[Any, Exception]] = []
        try:
            while queue and len(frames) < SEND_BYTES_MAX:
                request, async_object = queue[0]
                if request is _SESSION_EXPIRED:
                    raise SessionExpiredError("Session expired: Testing")
                if request is _CONNECTION_DROP:
                    raise ConnectionDropped("Connection dropped: Testing")
                kind = request.type
                if type(request) is Guarded:
                    if doubt is not None:
                        queue.popleft()
                        refused.append((async_object, doubt))
                        continue
                    guarded = True
                xid = AUTH_XID if kind == Auth.type else self._next_xid()
                try:
                    body = request.serialize()
                except Exception as error:
                    queue.popleft()
                    refused.append((async_object, error))
                    continue
                if kind:
                    length = 2 * _LENGTH_BYTES + len(body)
                    frames += _length_xid_type.pack(length, xid, kind)
                else:
                    frames += int_int_struct.pack(_LENGTH_BYTES + len(body), xid)
                frames += body
                if logged:
                    self.logger.debug("Sending request(xid=%s): %s", xid, request)
                if not (pending or self.ping_outstanding.is_set()):
                    self._asked_at = time.monotonic()
                pending.append((request, async_object, xid))
                queue.popleft()
        finally:  # what came before one that drops the connection is sent, too
            try:
                if frames:
                    self.proof.sending(pending[-1][2], since)
                if guarded and (late := self.client.doubt(now())) is not None:
                    raise ConnectionDropped(str(late))
                self._write_now(frames, connect_timeout)
            finally:
                for async_object, reason in refused:
                    _refuse(async_object, reason)
        if queue:
            self._wake_sent = True
            self._write_sock.send(b"\0")

    def _read_socket(self, read_timeout: float) -> Any:
        """Take in what has arrived and deal with every reply that is complete."""
        if (
            self.handler.select_replaced
            and not (self.handler.select([self._socket], [], [], read_timeout)[0])
        ):
            raise self.handler.timeout_exception("socket time-out during read")
        awake = not self._wake_sent
        if awake:
            self._wake_sent = True  # we look at the queue anyway, below
        self.taking = True
        try:
            chunk = self._receive()
            while chunk is not None:
                if self._take(chunk) == CLOSE_RESPONSE:
                    return CLOSE_RESPONSE
                if not (hasattr(self._socket, "pending") and self._socket.pending()):
                    break
                chunk = self._receive()
        finally:
            self.taking = False
            if awake:
                self._wake_sent = False
        if awake and self.client._queue:
            self._send_queued(read_timeout, self._send_seconds)
        return None

    # -- sending -----------------------------------------------------------------

    def _drain_wakes(self) -> None:
        try:
            self._read_sock.recv(WAKE_BYTES_MAX)
        except OSError:
            pass
        self._wake_sent = False

    def _next_xid(self) -> int:
        xid = ((self._xid or 0) % XID_MAX) + 1
        self._xid = xid
        return xid

    def _write_now(self, frames: bytearray, timeout: float) -> None:
        """One send without asking first; Kazoo's patient loop takes what is left."""
        if not frames:
            return
        if self.handler.select_replaced:
            self._write(frames, timeout)
            return
        sent = 0
        with self._socket_error_handling():
            try:
                sent = self._socket.send(frames)
            except (BlockingIOError, InterruptedError):
                pass
            except ssl.SSLError as error:
                if error.errno not in (
                    ssl.SSL_ERROR_WANT_READ,
                    ssl.SSL_ERROR_WANT_WRITE,
                ):
                    raise
        if sent < len(frames):
            # After "want write" TLS insists on seeing the same bytes again, and it
            # does: nothing was taken from `frames` in that case.
            self._write(frames[sent:] if sent else frames, timeout)

    # -- receiving ---------------------------------------------------------------

    def _receive(self) -> bytes | None:
        """What one recv yields; None when the socket had nothing for us after all."""
        with self._socket_error_handling():
            try:
                chunk: bytes = self._socket.recv(RECEIVE_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return None
            except ssl.SSLError as error:
                if error.errno in (
                    ssl.SSL_ERROR_WANT_READ,
                    ssl.SSL_ERROR_WANT_WRITE,
                ):
                    return None
                raise
        if chunk == b"":
            raise ConnectionDropped("socket connection broken")
        return chunk

    def _take(self, chunk: bytes) -> Any:
        """Deal with the complete replies in what was left over plus `chunk`."""
        self._heard_at = time.monotonic()
        if self._missing > len(chunk):
            # Not yet the end of one large reply: collect, without copying it again.
            self._parts.append(chunk)
            self._missing -= len(chunk)
            return None
        if self._parts:
            chunk = b"".join([*self._parts, chunk])
            self._parts = []
        self._missing = 0
        start, end, probe = 0, len(chunk), self.proof.probe
        while end - start >= _FRAME_BYTES_MIN:
            length, xid, zxid, error = _length_and_header.unpack_from(chunk, start)
            after = start + _LENGTH_BYTES + length
            if after > end:
                self._missing = after - end
                break
            if xid == probe and xid:
                self.proof.answered()
                self.client.proven()
            if (
                error
                or xid <= 0
                or not self._answered(xid, zxid, chunk, start + _FRAME_BYTES_MIN)
            ) and self._deal_with(chunk, start + _LENGTH_BYTES) == CLOSE_RESPONSE:
                return CLOSE_RESPONSE
            start = after
        if start < end:
            self._parts.append(chunk[start:])
            self._missing = self._missing or _FRAME_BYTES_MIN - (end - start)
        return None

    def _answered(self, xid: int, zxid: int, buffer: bytes, offset: int) -> bool:
        """The reply to a request that only wants its result, as most do.

        It is what `_read_response` of Kazoo does with such a one. False: there is
        more to it (a watch, the end of the session, a reply nobody asked for), and
        nothing was done.
        """
        client = self.client
        pending = client._pending
        if not pending:
            return False
        request, async_object, expected = pending[0]
        if (
            xid != expected
            or getattr(request, "watcher", None) is not None
            or type(request) in _MORE_THAN_A_RESULT
            or not async_object
        ):
            return False
        pending.popleft()
        if zxid > 0:
            client.last_zxid = zxid
        try:
            response = request.deserialize(buffer, offset)
        except Exception as error:
            self.logger.exception("reply to %s not understood", request)
            async_object.set_exception(error)
        else:
            if self._logged:
                self.logger.debug("Received response(xid=%s): %r", xid, response)
            async_object.set(response)
        return True

    def _deal_with(self, buffer: bytes, offset: int) -> Any:
        """One reply: a heartbeat's, an authentication's, an event, or a request's."""
        header = ReplyHeader._make(reply_header_struct.unpack_from(buffer, offset))
        offset += _HEADER_BYTES
        if header.xid == WATCH_XID:
            self._read_watch_event(buffer, offset)
        elif header.xid == PING_XID:
            self.logger.log(BLATHER, "Received Ping")
            self.ping_outstanding.clear()
            self.proof.pinged()
            self.client.proven()
        elif header.xid == AUTH_XID:
            self.logger.log(BLATHER, "Received AUTH")
            async_object = self._pending_authentication()
            if header.err:
                async_object.set_exception(AuthFailedError())
                self.client._session_callback(KeeperState.AUTH_FAILED)
            else:
                async_object.set(True)
        else:
            return self._read_response(header, buffer, offset)
        return None

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        request = self.client._pending[0][0]
        what_next = super()._read_response(header, buffer, offset)
        if getattr(request, "watcher", None) is not None:
            self.client.watch_left(request, header.err)
        return what_next

    def _pending_authentication(self) -> Any:
        """Take out what waits for an authentication's reply.

        A server answers it at once, ahead of requests that were sent before it, so
        it need not be the first that waits, as Kazoo takes it to be.
        """
        pending = self.client._pending
        for index, (_request, async_object, xid) in enumerate(pending):
            if xid == AUTH_XID:
                del pending[index]
                return async_object
        raise RuntimeError("a reply to an authentication nobody asked for")


class BatchingClient(KazooClient):
    """A plain Kazoo client of one ensemble on a batching connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain: Any = self._connection
        self._connection: BatchingConnection = BatchingConnection(
            self,
            plain.retry_sleeper,
            logger=plain.logger,
            sasl_options=plain.sasl_options,
        )

    def command(self, cmd: bytes = b"ruok") -> str:
        """As Kazoo's, which cannot with TLS: it gives the port for the host's name."""
        if not self._live.is_set():
            raise ConnectionLoss("No connection to server")
        used = self._connection._socket
        asked = self.handler.create_connection(
            used.getpeername()[:2],
            hostname=getattr(used, "server_hostname", None),
            timeout=self._session_timeout / 1000.0,
            **{name: getattr(self, name) for name in TLS_OPTIONS},
        )
        with closing(asked):
            asked.sendall(cmd)
            parts = list(iter(lambda: asked.recv(8192), b""))
        return b"".join(parts).decode("utf-8", "replace")

    def connection_made(self) -> None:
        """There is a connection, authenticated; nothing has been sent on it."""

    def proven(self) -> None:
        """The session was there, later than was known."""

    def doubt(self, at: float) -> ConnectionLoss | None:
        """Why what is guarded must not be sent now, if so."""
        return None

    def watch_left(self, request: Any, error: int) -> None:
        """A request with a watch was answered; `error` is the code, or 0."""

    def turned_away(self) -> None:
        """A server closed the connection before the session was there."""

    def _call(self, request: Any, async_object: Any) -> Any:
        if self._state in CLOSED_STATES:
            return super()._call(request, async_object)
        self._queue.append((request, async_object))
        try:
            self._connection.wake()
        except ConnectionClosedError as error:
            async_object.set_exception(error)
        return None
