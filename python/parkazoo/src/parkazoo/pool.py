"""Many logical clients of one process on one set of sessions.

    from parkazoo import PooledClient

    clients = [PooledClient("h1:2181;h2:2181/app") for _ in range(5000)]

What: a `PooledClient` is a `KazooClient` in every respect but one: it has no
sessions. All of a process that name the same ensembles, with the same credentials
and options, share a *carrier*, one `ParKazooClient`. So five thousand clients of
three ensembles need three connections and three sessions, not fifteen thousand.
The first `start` starts the carrier, the last `stop` stops it.

What is a client's own: its chroot, default ACL, listeners, state, watches, recipes,
and its ephemerals. What is shared: connections, sessions and their ids, credentials,
the handler's threads, and LOST.

A client's ephemerals go when it stops, as if its session ended (see `estates`): it
stops taking requests, waits for creations under way, and deletes what is there and
its own. Where an ensemble does not answer, `stop` waits for the session's time and
leaves the rest to a routine that deletes it as soon as there is an answer; or the
session ends first, and takes it along.

    stop   1 closed   listeners hear LOST, no request is taken any more
           2 settle   creations under way are answered
           3 delete   each node that is there, is ours, and no other client's

Must never: let a client that stopped keep a lock while the others live on, delete
another client's node, or add credentials for one that all would have.
"""

from __future__ import annotations

import math
import os
import threading
import time
from itertools import chain
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from kazoo.client import CLOSED_STATES
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    ConfigurationError,
    ConnectionClosedError,
    ConnectionLoss,
    SessionExpiredError,
)
from kazoo.protocol.connection import _CONNECTION_DROP, _SESSION_EXPIRED
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    Transaction,
)
from kazoo.protocol.states import KeeperState

from parkazoo import hosts as hosts_string
from parkazoo.carrier import RETRY_SECONDS, Carrier
from parkazoo.errors import SharedCredentials
from parkazoo.estates import Estate
from parkazoo.facade import Facade
from parkazoo.noting import Creation, Deletion
from parkazoo.pool_watching import MemberWatch, WatchersOf
from parkazoo.requests import named
from parkazoo.steps import EPHEMERAL
from parkazoo.wire import refuse_unsendable

# How often a client that waits for its start looks whether that has failed.
LOOK_SECONDS = 0.1
_SHARED = (
    "auto_init",
    "rules",
    "lazy",
    "degraded",
    "session_order",
    "strict_reads",
    "cross_shard",
)


class _Pool:
    """The carriers of this process by what their members must have in common."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process = 0
        self.carriers: WeakValueDictionary[Any, Carrier] = WeakValueDictionary()

    def carrier(self, key: Any, make: Any) -> Carrier:
        with self.lock:
            if self.process != os.getpid():  # a fork has the parent's sockets
                self.process = os.getpid()
                self.carriers = WeakValueDictionary()
            found = self.carriers.get(key)
            if found is None:
                found = self.carriers[key] = make()
            return found


_POOL = _Pool()


class PooledClient(Facade):
    """A logical client that shares its sessions with others of this process.

    Takes what `ParKazooClient` takes. Clients share their sessions if they agree in
    the ensembles named, `timeout`, credentials, TLS and SASL options, the kind of
    handler, and the options that only ParKazoo has.

    :param pool: a name; clients with different ones never share. Use several where
        one connection to each ensemble is too narrow.
    :param handler: only its kind counts; the pool's own, shared one is used.
    :param connection_retry: the one of the client that was made first counts.
    :param client_id: refused, because a session of one's own is not what is asked.
    :raises SharedCredentials: by `add_auth`; give `auth_data` when the client is made.
    """

    handler: Any
    chroot: Any

    def __init__(
        self,
        hosts: hosts_string.Hosts = "127.0.0.1:2181",
        timeout: float = 10.0,
        client_id: Any = None,
        handler: Any = None,
        default_acl: Any = None,
        auth_data: Any = None,
        sasl_options: Any = None,
        read_only: Any = None,
        randomize_hosts: bool = True,
        connection_retry: Any = None,
        *rest: Any,
        pool: str = "",
        **named: Any,
    ) -> None:
        if client_id is not None:
            raise ConfigurationError("a pooled client has no session of its own")
        refuse_unsendable(*chain.from_iterable(auth_data or ()))
        shared = {name: named.pop(name) for name in _SHARED if name in named}
        self.bootstrap: list[str] = []
        self._carrier: Carrier = None  # type: ignore[assignment]
        super().__init__(
            hosts,
            timeout,
            None,
            handler,
            default_acl,
            auth_data,
            sasl_options,
            read_only,
            randomize_hosts,
            connection_retry,
            *rest,
            **named,
        )
        options = self._connection_options()
        key = (
            pool,
            tuple(self.bootstrap),
            timeout,
            frozenset(self.auth_data),
            type(self.handler),
            repr(sorted(options.items())),
            repr(sorted(shared.items())),
        )

        def make() -> Carrier:
            return Carrier(
                ";".join(self.bootstrap),
                timeout,
                None,
                type(self.handler)(),
                auth_data=set(self.auth_data),
                connection_retry=connection_retry,
                logger=self.logger,
                **options,
                **shared,
            )

        self._carrier = _POOL.carrier(key, make)
        self.handler = self._carrier.handler
        self._life = 0
        self._estate = Estate(self.handler.event_object())
        self._stopping = self.handler.lock_object()
        self._watching: WeakSet[MemberWatch] = WeakSet()

    # -- what is shared, as Kazoo's attributes -----------------------------------

    def set_hosts(
        self, hosts: hosts_string.Hosts, randomize_hosts: bool | None = None
    ) -> None:
        """As Kazoo's. The servers' new addresses count for all who share."""
        self._use_hosts(hosts)
        if self._carrier is not None:
            self._carrier.set_hosts(";".join(self.bootstrap), randomize_hosts)

    @property
    def _shown(self) -> Any:
        carrier = self._carrier
        # The one that serves the client's own root, as a `ParKazooClient` shows it.
        return None if carrier is None else carrier._home_of(self.chroot)

    @property
    def client_ids(self) -> dict[str, tuple[int, bytes]]:
        """The shared sessions, by ensemble."""
        return self._carrier.client_ids

    @property
    def table(self) -> Any:
        """The table in use: which ensemble holds which shard."""
        return self._carrier.table

    def command(self, cmd: bytes = b"ruok") -> str:
        home = self._shown
        if home is None or not self._live.is_set():
            raise ConnectionLoss("No connection to server")
        return str(home.command(cmd))

    def command_all(self, cmd: bytes = b"ruok") -> dict[str, str]:
        """As `ParKazooClient.command_all`."""
        return self._carrier.command_all(cmd)

    # -- life --------------------------------------------------------------------

    def start(self, timeout: float | None = 15) -> None:
        """As Kazoo's; also raises what kept the namespace from being opened."""
        self._carrier._sessions.be_patient(timeout)
        self.start_async()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.connected and time.monotonic() < deadline:
            if self._stopped.is_set():
                raise self.handler.timeout_exception("stopped before it was connected")
            error = self._carrier._sessions.error
            if self._state == KeeperState.AUTH_FAILED:
                error = AuthFailedError()
            if error is not None:
                self.stop()
                raise error
            self._live.wait(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
        carrier = self._carrier
        if not self.connected and carrier.degraded and carrier.goes_on():
            return
        self._end_start(0, carrier._sessions.silent(), timeout)

    def start_async(self) -> Any:
        with self._stopping:
            if not self._stopped.is_set():
                self._carrier.begin()
                return self._live
            self._life += 1
            self._estate = Estate(self.handler.event_object())
            self._stopped.clear()
            self._carrier.join(self)
        return self._live

    def stop(self) -> None:
        """Take no more requests, and take the client's ephemerals away.

        Returns when they are gone; or, where an ensemble does not answer, after the
        session's time, and then they go as soon as it does.
        """
        with self._stopping:
            if self._stopped.is_set():
                return
            self._stopped.set()
            carrier, estate = self._carrier, self._estate
        carrier.part(self)
        self._drop_watches()
        carrier.estates.close(estate)
        if carrier.let_go(only_if_last=True):
            return  # the sessions' end took everything along
        buried = self.handler.event_object()
        self.handler.spawn(self._leave, estate, buried)
        buried.wait(self._session_timeout / 1000)

    def _leave(self, estate: Estate, buried: Any) -> None:
        carrier = self._carrier
        try:
            while not estate.settled.is_set() and not carrier._stopped.is_set():
                estate.settled.wait(RETRY_SECONDS)
            carrier.bury(estate)
        finally:
            carrier.let_go()
            buried.set()

    def close(self) -> None:
        """Nothing to do: sockets are the carrier's, and close with the last user.

        :raises Exception: the client was not stopped, as Kazoo has it.
        """
        if not self._stopped.is_set():
            raise Exception("cannot close a client before it is stopped")

    def _reset_watchers(self) -> None:
        """The carrier tells the watches of all its members."""

    def _delete_all(self, path: str) -> Any:
        if self._state in CLOSED_STATES or self._carrier._keeps_waiting():
            self.exists(path)  # waits, or is refused, as any request
        return self._carrier._remove(_prefix_root(self.chroot, path))

    # -- watches -------------------------------------------------------------------

    @property
    def _data_watchers(self) -> Any:
        return WatchersOf(self, "_data_watchers")

    @_data_watchers.setter
    def _data_watchers(self, watchers: Any) -> None: ...

    @property
    def _child_watchers(self) -> Any:
        return WatchersOf(self, "_child_watchers")

    @_child_watchers.setter
    def _child_watchers(self, watchers: Any) -> None: ...

    def _drop_watches(self) -> None:
        """Forget this client's watches; as with Kazoo, none is called."""
        carrier = self._carrier
        mine, self._watching = set(self._watching), WeakSet()
        with carrier._watches.lock:
            for watchers in (carrier._data_watchers, carrier._child_watchers):
                for watcher in mine:
                    watchers.get(watcher.path, set()).discard(watcher)

    # -- requests ----------------------------------------------------------------

    def add_auth_async(self, scheme: str, credential: str) -> Any:
        """Refused unless all who share these sessions have the credentials."""
        if (scheme, credential) not in self._carrier.auth_data:
            raise SharedCredentials(
                "clients that share sessions share their rights; give the credentials"
                " as auth_data when the client is made, or use ParKazooClient"
            )
        result = self.handler.async_result()
        result.set(True)
        return result

    def _call(self, request: Any, async_object: Any) -> Any:
        if request is _CONNECTION_DROP or request is _SESSION_EXPIRED:
            return self._carrier._call(request, async_object)
        try:
            request = named(request)
        except BadArgumentsError as refusal:
            async_object.set_exception(refusal)
            return False
        if self._state in CLOSED_STATES:
            error: Exception = SessionExpiredError()
            if self._state == KeeperState.AUTH_FAILED:
                error = AuthFailedError()
            elif self._state == KeeperState.CLOSED:
                error = ConnectionClosedError("Connection has been closed")
            async_object.set_exception(error)
            return False
        kind = type(request)
        if kind is Delete:
            async_object = Deletion(self, request.path, async_object)
        elif (kind is Create or kind is Create2) and request.flags & EPHEMERAL:
            return self._create(request, [request], async_object)
        elif kind is Transaction:
            return self._create(request, request.operations, async_object)
        elif getattr(request, "watcher", None) is not None:
            watcher = MemberWatch(self, request.path, request.watcher)
            self._watching.add(watcher)
            request = request._replace(watcher=watcher)
        return self._carrier._call(request, async_object)

    def _create(self, request: Any, operations: list[Any], async_object: Any) -> Any:
        estate = self._estate
        if not self._carrier.estates.begin(estate):
            closed = ConnectionClosedError("Connection has been closed")
            async_object.set_exception(closed)
            return False
        creation = Creation(self, estate, operations, async_object)
        creation.whole = type(request) is Transaction
        return self._carrier._call(request, creation)


__all__ = ["PooledClient"]
