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

import os
import threading
import time
from functools import partial
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConfigurationError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.hosts import collect_hosts
from kazoo.protocol.connection import _CONNECTION_DROP, _SESSION_EXPIRED
from kazoo.protocol.paths import _prefix_root, normpath
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    Exists,
    Sync,
    Transaction,
)
from kazoo.protocol.states import Callback, EventType, KeeperState, WatchedEvent

from parkazoo import hosts as hosts_string
from parkazoo import remove
from parkazoo.adopting import GetEphemerals
from parkazoo.client import ParKazooClient
from parkazoo.errors import SharedCredentials
from parkazoo.estates import Doubt, Estate, Estates
from parkazoo.layout import BASE, Layout
from parkazoo.operation import Make, run
from parkazoo.steps import EPHEMERAL, SEQUENCE, Call, Machine, Multi, MultiFailed

# Errors after which it is not known whether a node was created.
_UNKNOWN = (ConnectionLoss, OperationTimeoutError)
# Between two attempts to delete what a client left while an ensemble was away.
RETRY_SECONDS = 0.2
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
_CONNECTION = (
    "sasl_options",
    "read_only",
    "randomize_hosts",
    "keyfile",
    "keyfile_password",
    "certfile",
    "ca",
    "use_ssl",
    "verify_certs",
    "check_hostname",
)


class Carrier(ParKazooClient):
    """The sessions that logical clients share. Its own state is told to all of them.

    `gate` is held while it starts and stops; `members` are the clients that are
    started, `count` those that have not yet let go.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.members: set[PooledClient] = set()
        self.count = 0
        super().__init__(*args, **options)
        self.gate = self.handler.rlock_object()
        self.telling = self.handler.rlock_object()
        self.estates = Estates(self.handler.lock_object())

    def _session_callback(self, state: Any) -> None:
        # Under one lock, so that every member hears the same states in one order.
        with self.telling:
            for member in list(self.members):
                member._session_callback(state)
            super()._session_callback(state)
            if state in CLOSED_STATES:
                self.estates.lost()

    def join(self, member: PooledClient) -> None:
        with self.gate:
            self.count += 1
            if self._stopped.is_set():
                self._sessions.error = None
                self.start_async()
        with self.telling:
            self.members.add(member)
            member._session_callback(KeeperState.CONNECTING)
            if self._state in (
                KeeperState.CONNECTED,
                KeeperState.CONNECTED_RO,
                KeeperState.AUTH_FAILED,
            ):
                member._session_callback(self._state)

    def goes_on(self) -> bool:
        """Is it degraded, or can it begin to be?"""
        return self._may_send() or self._sessions.go_on_without()

    def part(self, member: PooledClient) -> None:
        with self.telling:
            self.members.discard(member)
            member._session_callback(KeeperState.CLOSED)

    def let_go(self, only_if_last: bool = False) -> bool:
        """A member needs the sessions no more; the last one ends them. Was it that?"""
        with self.gate:
            last = self.count == 1
            if only_if_last and not last:
                return False
            self.count -= 1
            if last:
                self.stop()
                self.close()
                # Who comes next may come to other servers, or to another namespace.
                self._sessions.forget()
            return last

    # -- what members leave ----------------------------------------------------------

    def bury(self, estate: Estate) -> None:
        """Runs until nothing of the estate is left, or the sessions have ended."""
        while not self._stopped.is_set():
            try:
                doubts = self.estates.doubtful(estate)
                self._together([partial(self._find, d, estate) for d in doubts])
                paths = self.estates.owned(estate)
                self._together([partial(self._delete, p, estate) for p in paths])
                return
            except KazooException as error:
                if self._state in CLOSED_STATES:
                    return
                self.logger.debug("ephemerals not deleted yet: %r", error)
            self.handler.sleep_func(RETRY_SECONDS)

    def _together(self, makes: list[Make]) -> None:
        """Run operations side by side, and raise what one of them failed with."""
        results = []
        for make in makes:
            result = self.handler.async_result()
            run(self, make, result.set, result.set_exception)
            results.append(result)
        for result in results:
            result.get()

    def _ours(self) -> set[int]:
        sessions = list(self._sessions.by_name.values())
        return {e._session_id for e in sessions if e._session_id is not None}

    def _delete(self, path: str, estate: Estate, layout: Layout) -> Machine:
        """Delete a node if it is an ephemeral of these sessions, and the estate's."""
        node = layout.node(path)
        while True:
            stat = yield Call(node.shard, Exists(node.path, None))
            ours = stat is not None and stat.ephemeralOwner in self._ours()
            if not ours or not self.estates.may_delete(estate, path):
                break
            away = Multi((Delete(node.path, stat.version),))
            try:
                yield Call(node.shard, away)
                break
            except MultiFailed as failed:
                if isinstance(failed.error, NoNodeError):
                    break
                if not isinstance(failed.error, BadVersionError):
                    raise failed.error from None
        if self.estates.may_delete(estate, path):
            self.estates.deleted(path)

    def _find(self, doubt: Doubt, estate: Estate, layout: Layout) -> Machine:
        """What did a creation make whose answer was lost? It becomes the estate's."""
        node = layout.node(doubt.path)
        yield Call(node.shard, Sync(node.path))
        found = yield Call(node.shard, GetEphemerals(node.path))
        for physical in found:
            rest = physical[len(node.path) :]
            numbered = doubt.sequence and rest.lstrip("-").isdigit() and len(rest) >= 10
            if not (numbered or (not rest and not doubt.sequence)):
                continue
            path = layout.logical(node.bucket, physical)
            if self.estates.may_delete(estate, path):
                self.estates.created(estate, path)
        self.estates.resolved(estate, doubt)

    def prune(self, serial: int) -> None:
        """Forget ephemerals that are noted and were deleted by others."""
        present: set[str] = set()
        try:
            for ensemble in list(self._sessions.by_name.values()):
                result = self.handler.async_result()
                ensemble._call(GetEphemerals(BASE), result)
                present |= set(result.get())
        except KazooException as error:
            self.logger.debug("ephemerals not counted: %r", error)
            return
        layout, noted = self._layout, list(self.estates.owners)
        here = {path for path in noted if layout.node(path).path in present}
        self.estates.prune(here, serial)


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


class PooledClient(KazooClient):
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
        options = {name: getattr(self, name, None) for name in _CONNECTION}
        options["sasl_options"] = self._null_connection.sasl_options
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
        self._watching: WeakSet[_Watcher] = WeakSet()

    # -- what is shared, as Kazoo's attributes -----------------------------------

    def set_hosts(
        self, hosts: hosts_string.Hosts, randomize_hosts: bool | None = None
    ) -> None:
        """As Kazoo's. The servers' new addresses count for all who share."""
        ensembles, chroot = hosts_string.split(hosts)
        new_chroot = normpath(chroot) if chroot else ""
        if self.chroot is not None and new_chroot != self.chroot:
            raise ConfigurationError(
                "Changing chroot at runtime is not currently supported"
            )
        self.chroot, self.bootstrap = new_chroot, ensembles
        self.hosts = [s for part in ensembles for s in collect_hosts(part)[0]]
        if self._carrier is not None:
            self._carrier.set_hosts(";".join(ensembles), randomize_hosts)

    @property
    def _connection(self) -> Any:
        carrier = self._carrier
        return self._null_connection if carrier is None else carrier._connection

    @_connection.setter
    def _connection(self, connection: Any) -> None:
        self._null_connection = connection

    @property
    def _session_id(self) -> Any:
        return None if self._carrier is None else self._carrier._session_id

    @_session_id.setter
    def _session_id(self, session_id: Any) -> None: ...

    @property
    def _session_passwd(self) -> Any:
        return None if self._carrier is None else self._carrier._session_passwd

    @_session_passwd.setter
    def _session_passwd(self, password: Any) -> None: ...

    @property
    def client_ids(self) -> dict[str, tuple[int, bytes]]:
        """The shared sessions, by ensemble."""
        return self._carrier.client_ids

    @property
    def table(self) -> Any:
        """The table in use: which ensemble holds which shard."""
        return self._carrier.table

    def command(self, cmd: bytes = b"ruok") -> str:
        if not self._live.is_set():
            raise ConnectionLoss("No connection to server")
        return self._carrier.command(cmd)

    def command_all(self, cmd: bytes = b"ruok") -> dict[str, str]:
        """The answer of one server of each ensemble to a management command."""
        return self._carrier.command_all(cmd)

    # -- life --------------------------------------------------------------------

    def start(self, timeout: float = 15) -> None:
        """As Kazoo's; also raises what kept the namespace from being opened."""
        self.start_async()
        deadline = time.monotonic() + timeout
        while not self.connected and time.monotonic() < deadline:
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
        super().start(0)

    def start_async(self) -> Any:
        with self._stopping:
            if not self._stopped.is_set():
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
        """Nothing to do: sockets are the carrier's, and close with the last user."""

    def _reset_watchers(self) -> None:
        """The carrier tells the watches of all its members."""

    def _delete_recursive(self, path: str) -> Any:
        if self._state in CLOSED_STATES or not self._carrier._may_send():
            self.exists(path)  # waits, or is refused, as any request
        return remove.delete_recursive(self._carrier, _prefix_root(self.chroot, path))

    # -- watches -------------------------------------------------------------------

    @property
    def _data_watchers(self) -> Any:
        return _WatchersOf(self, "_data_watchers")

    @_data_watchers.setter
    def _data_watchers(self, watchers: Any) -> None: ...

    @property
    def _child_watchers(self) -> Any:
        return _WatchersOf(self, "_child_watchers")

    @_child_watchers.setter
    def _child_watchers(self, watchers: Any) -> None: ...

    def _drop_watches(self) -> None:
        """Tell this client's watches that it is over, as the end of a session would."""
        carrier = self._carrier
        mine, self._watching = set(self._watching), WeakSet()
        with carrier._watches.lock:
            for watchers in (carrier._data_watchers, carrier._child_watchers):
                for watcher in mine:
                    watchers.get(watcher.path, set()).discard(watcher)
        over = WatchedEvent(EventType.NONE, self._state, None)
        for watcher in mine:
            watcher.dispatch(over)

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
            async_object = _Deletion(self, request.path, async_object)
        elif (kind is Create or kind is Create2) and request.flags & EPHEMERAL:
            return self._create(request, [request], async_object)
        elif kind is Transaction:
            return self._create(request, request.operations, async_object)
        elif getattr(request, "watcher", None) is not None:
            watcher = _Watcher(self, request.path, request.watcher)
            self._watching.add(watcher)
            request = request._replace(watcher=watcher)
        return self._carrier._call(request, async_object)

    def _create(self, request: Any, operations: list[Any], async_object: Any) -> Any:
        estate = self._estate
        if not self._carrier.estates.begin(estate):
            closed = ConnectionClosedError("Connection has been closed")
            async_object.set_exception(closed)
            return False
        creation = _Creation(self, estate, operations, async_object)
        creation.whole = type(request) is Transaction
        return self._carrier._call(request, creation)


class _Deletion:
    """Notes that a node is gone, then answers."""

    __slots__ = ("async_object", "member", "path")

    def __init__(self, member: PooledClient, path: str, async_object: Any) -> None:
        self.member, self.path, self.async_object = member, path, async_object

    def set(self, value: Any = None) -> None:
        self.member._carrier.estates.deleted(self.path)
        self.async_object.set(value)

    def set_exception(self, error: Exception) -> None:
        self.async_object.set_exception(error)


class _Creation:
    """Notes what a creation or a transaction made, or may have made, then answers."""

    __slots__ = ("async_object", "estate", "member", "operations", "whole")

    def __init__(
        self,
        member: PooledClient,
        estate: Estate,
        operations: list[Any],
        async_object: Any,
    ) -> None:
        self.member, self.estate = member, estate
        self.operations, self.async_object = operations, async_object
        self.whole = False

    def set(self, value: Any = None) -> None:
        member, estates = self.member, self.member._carrier.estates
        results = value if self.whole else [value]
        if not any(isinstance(result, Exception) for result in results):
            for operation, result in zip(self.operations, results, strict=True):
                if isinstance(operation, Delete):
                    estates.deleted(operation.path)
                elif getattr(operation, "flags", 0) & EPHEMERAL:
                    path = result[0] if isinstance(result, tuple) else result
                    estates.created(self.estate, path)
        estates.end(self.estate)
        serial = estates.crowded()
        if serial is not None:
            member.handler.spawn(member._carrier.prune, serial)
        if self.whole:
            value = Transaction.unchroot(member, value)
        self.async_object.set(value)

    def set_exception(self, error: Exception) -> None:
        estates = self.member._carrier.estates
        if isinstance(error, _UNKNOWN):
            for operation in self.operations:
                if getattr(operation, "flags", 0) & EPHEMERAL:
                    sequence = bool(operation.flags & SEQUENCE)
                    estates.doubted(self.estate, Doubt(operation.path, sequence))
        estates.end(self.estate)
        self.async_object.set_exception(error)


class _Watcher:
    """One member's watch among the carrier's. Two alike are one."""

    __slots__ = ("__weakref__", "life", "member", "path", "watcher")

    def __init__(self, member: PooledClient, path: str, watcher: Any) -> None:
        self.member, self.life = member, member._life
        self.path, self.watcher = path, watcher

    def _identity(self) -> Any:
        return (id(self.member), self.life, self.path, self.watcher)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watcher) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __call__(self, event: Any) -> None:
        member = self.member
        if self.life != member._life or member._stopped.is_set():
            return
        if event.path is not None:
            event = event._replace(path=member.unchroot(self.path))
        self.watcher(event)

    def dispatch(self, event: Any) -> None:
        told = Callback("watch", self.watcher, (event,))
        self.member.handler.dispatch_callback(told)


class _WatchersOf:
    """A member's view of the carrier's watches: Kazoo's TreeCache takes some back."""

    def __init__(self, member: PooledClient, kind: str) -> None:
        self.member, self.kind = member, kind

    def __getitem__(self, path: str) -> set[Any]:
        carrier, member = self.member._carrier, self.member
        with carrier._watches.lock:
            told = list(getattr(carrier, self.kind).get(path, ()))
        mine = [w for w in told if isinstance(w, _Watcher) and w.member is member]
        return {watcher.watcher for watcher in mine if watcher.life == member._life}

    def get(self, path: str, default: Any = None) -> _WatchersAt:
        return _WatchersAt(self, path)

    def values(self) -> list[Any]:
        return []


class _WatchersAt:
    """A member's watches of one kind on one path."""

    def __init__(self, view: _WatchersOf, path: str) -> None:
        self.view, self.path = view, path

    def discard(self, watcher: Any) -> None:
        carrier = self.view.member._carrier
        with carrier._watches.lock:
            watchers = getattr(carrier, self.view.kind).get(self.path, set())
            watchers.discard(_Watcher(self.view.member, self.path, watcher))


__all__ = ["PooledClient"]
