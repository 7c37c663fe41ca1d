"""`ParKazooClient`: Kazoo's client over one namespace on many ensembles.

What: a `KazooClient` whose requests are not sent on one connection but turned into
step machines on the ensembles that hold the nodes they name. Everything above the
request, every recipe and every check of an argument, is Kazoo's own code.

Why a subclass with one seam: every operation of Kazoo ends in `_call` with a
request object. What is routed there is routed for all of the surface, including
parts of it that later versions add.

Must never: show a physical path, or a server's session, where Kazoo shows a logical
one.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Literal

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
from kazoo.protocol.serialization import Auth, Transaction
from kazoo.protocol.states import KazooState, KeeperState

from parkazoo import hosts as hosts_string
from parkazoo import intents, remove
from parkazoo.adopting import Adopting
from parkazoo.ensemble import EnsembleClient, Reply
from parkazoo.errors import CrossShardTransaction
from parkazoo.facade import Facade
from parkazoo.fencing import READS, Fencing, StrictReply
from parkazoo.finding import HOME
from parkazoo.layout import SYSTEM, BucketStat, Layout, fence, is_system
from parkazoo.mapping import Rules, Table
from parkazoo.ordering import Ordering
from parkazoo.requests import ON_ONE_PATH, named, passed_through
from parkazoo.sessions import Sessions
from parkazoo.steps import Call, Multi, ShardsApart
from parkazoo.watching import Watches
from parkazoo.wire import Guarded, refuse_unsendable


class ParKazooClient(Facade):
    """A drop-in for `KazooClient` over one namespace on many ensembles.

    Takes everything `KazooClient` takes, and:

    :param hosts: as in Kazoo, with a semicolon between ensembles:
        `h1:2181,h2:2181;h3:2181,h4:2181/chroot`. Naming one ensemble is enough to
        find the others.
    :param auto_init: make the namespace if the ensembles hold none and no data of
        anybody else; on by default, so that a first start just works.
    :param rules: the mapping rules of a namespace made by `auto_init`.
    :param client_id: `client_ids` of a client that ended without `stop`: its sessions
        go on, with their ephemerals. If one of them has ended, the others end, too, and
        all are made anew, so look at `client_ids`. One (id, password) is taken for that
        of the session that serves the client's root, as `client_id` gives it.
    :param lazy: connect to an ensemble when something on it is first needed.
    :param degraded: while one ensemble is not connected, go on using the others.
        Listeners hear SUSPENDED all the same. `start` waits for all ensembles for as
        long as it is told to, and then goes on with those that answered, if any did.
        After a LOST they are waited for as long as a session lasts (`timeout`).
    :param session_order: a write waits until earlier writes of this client to
        other shards are acknowledged.
    :param strict_reads: every read sees all that was acknowledged to anybody before it
        was asked, also while its shard moves: a sync of its ensemble and a check of
        its shard's fence go with it, in the same round trip.
    :param cross_shard: what a transaction over several shards does: "refuse" (the
        default), or "intent" (see `parkazoo.transaction` for what that promises).
    """

    def __init__(
        self,
        hosts: hosts_string.Hosts = "127.0.0.1:2181",
        timeout: float = 10.0,
        client_id: Any = None,
        handler: Any = None,
        default_acl: Any = None,
        auth_data: Any = None,
        sasl_options: dict[str, Any] | None = None,
        *rest: Any,
        auto_init: bool = True,
        rules: Rules | None = None,
        lazy: bool = False,
        degraded: bool = False,
        session_order: bool = False,
        strict_reads: bool = False,
        cross_shard: Literal["refuse", "intent"] = "refuse",
        **named: Any,
    ) -> None:
        if cross_shard not in ("refuse", "intent"):
            raise ConfigurationError('cross_shard must be "refuse" or "intent"')
        refuse_unsendable(*chain.from_iterable(auth_data or ()))
        self.auto_init, self.rules = auto_init, rules or Rules()
        # Commands do: they show, or end, an import that has not ended.
        self.enters_unfinished = False
        # An import does not: what it begins in its sessions must end with them.
        self.renews = True
        self.lazy, self.degraded = lazy, degraded
        self.session_order, self.cross_shard = session_order, cross_shard
        self.strict_reads = strict_reads
        self.bootstrap: list[str] = []
        self.chroot: str | None = None
        self._sessions: Sessions = None  # type: ignore[assignment]
        self._flushing = False
        super().__init__(
            hosts,
            timeout,
            None if isinstance(client_id, dict) else client_id,
            handler,
            default_acl,
            auth_data,
            sasl_options,
            *rest,
            **named,
        )
        self._layout = Layout(self.rules)
        self._parts_lock = self.handler.lock_object()
        self._flush_lock = self.handler.lock_object()
        # One at a time starts, or takes it upon himself to stop.
        self._starting = self.handler.rlock_object()
        self._live_or_failed = self.handler.event_object()
        self._watches = Watches(self)
        self._fencing = Fencing(self)
        self._adopting = Adopting(self)
        self._ordering = Ordering(self, session_order)
        options = {
            **self._connection_options(),
            "timeout": timeout,
            "logger": self.logger,
        }
        self._sessions = Sessions(self, options)
        if client_id:
            self._remember(client_id)

    # -- hosts and sessions as Kazoo's attributes --------------------------------

    def set_hosts(
        self, hosts: hosts_string.Hosts, randomize_hosts: bool | None = None
    ) -> None:
        """As Kazoo's, for ensembles that keep one of their servers. Where all are new,
        `parkazoo set-hosts` says so to all clients."""
        if randomize_hosts is not None:
            self.randomize_hosts = randomize_hosts
        self._use_hosts(hosts)
        if self._sessions is None:
            return
        for part in self.bootstrap:
            servers = hosts_string.servers(part)
            for ensemble in self._sessions.by_name.values():
                if servers & frozenset(ensemble.hosts):
                    ensemble.set_hosts(part, self.randomize_hosts)

    @property
    def _home(self) -> EnsembleClient | None:
        """The session that serves the client's own root, chroot included."""
        return self._home_of(self.chroot)

    def _home_of(self, chroot: str | None) -> EnsembleClient | None:
        sessions = self._sessions
        if sessions is None or sessions.table is None:
            return None
        return sessions.by_name.get(self._home_name(sessions.table, chroot))

    def _home_name(self, table: Table, chroot: str | None) -> str:
        return table.owners[self._layout.buckets(chroot or "/")[0].shard]

    @property
    def _shown(self) -> EnsembleClient | None:
        return self._home

    def _password_given(self, password: Any) -> None:
        """A test mangles it to lose the session."""
        if self._sessions is not None and any(password):
            for ensemble in self._sessions.by_name.values():
                ensemble._session_passwd = password

    @property
    def client_id(self) -> Any:
        """The (id, password) of the session that serves the client's root."""
        if not self._live.is_set():
            return None
        return (self._session_id, self._session_passwd)

    @property
    def client_ids(self) -> dict[str, tuple[int, bytes]]:
        """The (id, password) of each ensemble's session. May be given as client_id.

        Also of those that are not connected just now: they may go on, too.
        """
        return {
            name: (ensemble._session_id, ensemble._session_passwd)
            for name, ensemble in list(self._sessions.by_name.items())
            if ensemble._session_id is not None
        }

    def _remember(self, client_id: Any) -> None:
        given = client_id if isinstance(client_id, dict) else {HOME: client_id}
        self._sessions.identity = {name: tuple(one) for name, one in given.items()}

    @property
    def table(self) -> Table | None:
        """The table in use: which ensemble holds which shard."""
        return self._sessions.table

    # -- life --------------------------------------------------------------------

    def start(self, timeout: float = 15) -> None:
        """As Kazoo's; also raises what kept the namespace from being opened."""
        self._live_or_failed.clear()
        self._sessions.be_patient(timeout)
        self.start_async()
        deadline = self._live_or_failed
        if not self.connected and self._sessions.error is None:
            deadline.wait(timeout=timeout)
        error = self._sessions.error
        if error is not None:
            self.stop()
            self.close()
            raise error
        if self._stopped.is_set():
            self._sessions.close()  # they may have been opened just after that
            raise self.handler.timeout_exception("stopped before it was connected")
        if self.degraded:
            # It is CONNECTED for as long as it tells so, and then SUSPENDED.
            goes_on = self._sessions.go_on_without()
            if goes_on and not self.connected:
                return
            refused = self._sessions.refused
            if refused is not None and not self.connected:  # and no other answers
                self.stop()
                self.close()
                raise refused
        waited = self.connected or deadline.is_set()
        self._end_start(0 if waited else 0.01, self._sessions.silent(), timeout)

    def start_async(self) -> Any:
        with self._starting:
            if self._live.is_set():
                return self._live
            if not self._stopped.is_set():
                if not self.gave_up:
                    return self._live  # already on its way
                self.stop()
                self.close()
                self._live_or_failed.clear()
            self._safe_close()
            self._stopped.clear()
            self._writer_stopped.clear()
            self.handler.start()
            self._session_callback(KeeperState.CONNECTING)
            self._sessions.open()
            return self._live

    @property
    def gave_up(self) -> bool:
        """Has it ended without having been stopped? It can be started again."""
        ended = self._state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        return ended and not self._stopped.is_set()

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        try:
            if self._state == KeeperState.CONNECTED:
                self._ordering.finish(self._session_timeout / 1000)
        finally:  # also if that is interrupted
            self._end()

    def _end(self) -> None:
        with self._starting:  # not while another is just at it
            if self._stopped.is_set():
                return
            self._stopped.set()
        self._live_or_failed.set()  # nobody need wait for a start any more
        try:
            self._sessions.close()
        finally:
            self._session_callback(KeeperState.CLOSED)
            self.handler.stop()

    def _safe_close(self) -> None:
        self.handler.stop()

    def close(self) -> None:
        self._sessions.release()

    def _session_callback(self, state: Any) -> None:
        before = self._state
        self._interrupt(state)
        super()._session_callback(state)
        if state in CLOSED_STATES and before != state and self._sessions is not None:
            error: Exception = ConnectionLoss()
            if state == KeeperState.EXPIRED_SESSION:
                error = SessionExpiredError()
            elif state == KeeperState.AUTH_FAILED:
                error = AuthFailedError()
            self._fencing.give_up(error)
        connected = state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO)
        if connected and self._sessions is not None:
            self._live_or_failed.set()

    def _interrupt(self, state: Any) -> None:
        """Before this is the state, and listeners hear of it.

        Not for a degraded client: it goes on, and its watches stay.
        """
        in_use = self._state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO)
        if in_use and state == KeeperState.CONNECTING and not self.degraded:
            self._watches.interrupt()

    def _reset_watchers(self) -> None:
        if self._sessions is None:
            super()._reset_watchers()  # as we are made
            return
        if self._state in CLOSED_STATES:
            self._watches.interrupt()
        self._watches.tell_interrupted()

    def _away(self) -> list[str]:
        return [] if self._sessions is None else self._sessions.silent()

    def command(self, cmd: bytes = b"ruok") -> str:
        if (home := self._home) is None or not self._live.is_set():
            raise ConnectionLoss("No connection to server")
        return str(home.command(cmd))

    def command_all(self, cmd: bytes = b"ruok") -> dict[str, str]:
        """The answer of one server of each ensemble to a management command.

        Not of those that a lazy client has not connected to yet, nor of those that a
        degraded one goes on without.
        """
        known = list(self._sessions.by_name.items())
        asked = [(n, e) for n, e in known if e.opened]
        if self.degraded:
            asked = [(n, e) for n, e in asked if e.connected]
        if not asked:
            raise ConnectionLoss("No connection to any ensemble")
        return {name: str(ensemble.command(cmd)) for name, ensemble in asked}

    def _delete_all(self, path: str) -> Any:
        if self._keeps_waiting():
            self.exists(path)  # waits behind the others, or is refused
        return self._remove(_prefix_root(self.chroot, path))

    def _keeps_waiting(self) -> bool:
        """Do requests wait for the connection, or for those that did?"""
        return not self._may_send() or self._kept_waiting()

    def _kept_waiting(self) -> bool:
        waits = bool(self._queue) or self._flushing
        return waits or not self._sessions.trusted()

    def _remove(self, path: str) -> Any:
        """Delete a node (given by logical path, chroot included) with all below it,
        after what was asked for before."""
        self._ordering.wait_for(path)
        return remove.delete_recursive(self, path)

    # -- requests ----------------------------------------------------------------

    def _call(self, request: Any, async_object: Any) -> Any:
        """Every request of Kazoo's surface, and of its recipes, arrives here."""
        if request is _CONNECTION_DROP or request is _SESSION_EXPIRED:
            return self._inject(request)
        try:
            request = named(request)
        except BadArgumentsError as refusal:  # also of what waits for a connection
            async_object.set_exception(refusal)
            return False
        if self._state == KeeperState.CONNECTED and not self._kept_waiting():
            self._dispatch(request, async_object)
            return None
        if self._state == KeeperState.AUTH_FAILED:
            async_object.set_exception(AuthFailedError())
            return False
        if self._state == KeeperState.CLOSED:
            async_object.set_exception(
                ConnectionClosedError("Connection has been closed")
            )
            return False
        error = self._sessions.error
        if error is not None and not self._may_send():
            async_object.set_exception(error)
            return False
        if self._state == KeeperState.EXPIRED_SESSION:
            async_object.set_exception(SessionExpiredError())
            return False
        if not self._may_send():
            self._queue.append((request, async_object))
            error = self._sessions.error
            if self._may_send():  # it came back just now
                self._flush()
            elif error is not None:
                self._refuse_waiting(error)
            return None
        if self._kept_waiting():
            self._queue.append((request, async_object))
            self._flush()
        else:
            self._dispatch(request, async_object)
        return None

    def _may_send(self) -> bool:
        if self._state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
            return True
        return (
            self.degraded
            and self.state == KazooState.SUSPENDED
            and self._sessions.table is not None
        )

    def _refuse_waiting(self, why: Exception) -> None:
        """Tell those who wait for the connection why there will be none."""
        while self._queue and not self._may_send():
            with suppress(IndexError):
                self._queue.popleft()[1].set_exception(why)

    def _flush(self) -> None:
        """Send what waited for a connection, or for `trusted`, in order.

        One thread at a time does. What is asked for meanwhile is queued, so that it
        cannot overtake what was taken from the queue and is not sent yet.
        """
        with self._flush_lock:
            if self._flushing:
                return  # whoever is at it sees what we have queued
            self._flushing = True
        try:
            while (waiting := self._next_waiting()) is not None:
                self._dispatch(*waiting)
        except BaseException:
            self._flushing = False
            raise
        if self._queue and self._may_send():
            self._sessions.ask_for_proof()

    def _next_waiting(self) -> Any:
        with self._flush_lock:
            if self._may_send() and self._sessions.trusted():
                with suppress(IndexError):
                    return self._queue.popleft()
            self._flushing = False
            return None

    def _inject(self, request: Any) -> None:
        """Kazoo's hooks for tests: drop every connection, or lose one session."""
        home = self._home
        for ensemble in list(self._sessions.by_name.values()):
            if request is _CONNECTION_DROP or ensemble is home:
                ensemble._call(request, None)

    def _dispatch(self, request: Any, async_object: Any) -> None:
        kind = type(request)
        if kind in ON_ONE_PATH and not request.path.startswith(SYSTEM):
            self._ordering.submit(request, async_object)
        elif kind is Auth:
            self._everywhere(request, async_object)
        elif passed_through(request):
            self._pass_through(self._sessions.seat(), request, async_object)
        elif kind is Transaction and self._by_intent(request):
            self._ordering.commit(request, async_object)
        else:
            self._ordering.submit(request, async_object)

    def _by_intent(self, request: Transaction) -> bool:
        """Is this transaction more than one server can do, and may be done so?"""
        allowed = self.cross_shard == "intent"
        return allowed and intents.needed(self, request.operations)

    def _submit(
        self, call: Call, reply: Any, later: dict[EnsembleClient, Any] | None = None
    ) -> None:
        """Send one call of an operation to the ensemble that holds its shard.

        With `later` it is only queued there, and noted; `send_queued` has it sent.
        """
        shard, request = call.shard, call.request
        table = self._sessions.table
        assert table is not None
        fencing = self._fencing
        if fencing.busy or table.moving:
            if fencing.must_wait(call, reply):
                return
            table = self._sessions.table  # it may have been a while
            assert table is not None
        name = table.owners[shard]
        ensemble = self._sessions.by_name.get(name)
        if ensemble is None or not ensemble.opened:
            try:
                ensemble = self._sessions.session(name)
            except KeyError:
                if table is self._sessions.table:
                    raise
                self._submit(call, reply, later)  # it has left by a newer table
                return
        reply.ensemble = ensemble
        reply.table = table
        if type(request) is Multi:
            fences: tuple[tuple[str, int], ...] = ((fence(shard), table.fences[shard]),)
            for other in request.also:
                if table.owners[other] != name:
                    # Never let a fence that stayed behind there be the judge: it may
                    # have the version that the one at the new place has.
                    reply.set_exception(ShardsApart())
                    return
                fences += ((fence(other), table.fences[other]),)
            request = Guarded(fences, request.operations)
        elif getattr(request, "watcher", None) is not None:
            request = request._replace(watcher=request.watcher.at(ensemble))
        if later is not None and type(request) is BucketStat and not self.strict_reads:
            if (shared := ensemble.share(request, reply)) is not None:
                later.setdefault(ensemble, []).append(shared)
        else:
            if self.strict_reads and type(request) in READS:
                reply = StrictReply(fencing, call, reply)
                for request_ahead, reply_ahead in reply.ahead(shard):
                    ensemble.enqueue(request_ahead, reply_ahead)
            if later is None:
                ensemble.submit(request, reply)
            elif ensemble.enqueue(request, reply):
                later.setdefault(ensemble, []).append(reply)
        now = self._sessions.table
        if now is not table and now is not None:
            fencing.shards_left(table, now, call.shards)  # nothing must overtake
            fencing.see_to_it()

    def _everywhere(self, request: Any, async_object: Any) -> None:
        """Send credentials on every session; the answer is a failure if one failed.

        A degraded client waits for the sessions that are connected. The others show
        their credentials when they connect; one that has done so just now has these
        in its queue.
        """
        asked = [e for e in self._sessions.by_name.values() if e.opened]
        there = [e for e in asked if e.connected and self.degraded] or asked
        gathered = _All(self._parts_lock, len(there), async_object)
        ignored = Reply(lambda value: None, lambda error: None)
        for ensemble in asked:
            ensemble.submit(request, gathered if ensemble in there else ignored)

    def _pass_through(
        self, ensemble: EnsembleClient, request: Any, async_object: Any
    ) -> None:
        if type(request) is Transaction:
            if not all(is_system(operation.path) for operation in request.operations):
                async_object.set_exception(
                    CrossShardTransaction(
                        f"{SYSTEM} is all on one ensemble: a transaction that names"
                        " a node there may name no others"
                    )
                )
                return
            tell = partial(self._set_unchrooted, async_object)
            async_object = Reply(tell, async_object.set_exception)
        ensemble.submit(*self._watches.passing(request, async_object))

    def _set_unchrooted(self, async_object: Any, results: Any) -> None:
        async_object.set(Transaction.unchroot(self, results))

    def _use_table(self, old: Table | None, table: Table) -> None:
        """A newer table has been found. Its rules never differ from the older's."""
        if old is None:
            self._layout = Layout(table.rules)
        else:
            self._watches.follow(old, table)


class _All:
    """Gathers the replies of all sessions to one request."""

    def __init__(self, lock: Any, count: int, async_object: Any) -> None:
        self.lock, self.missing, self.async_object = lock, count, async_object
        self.error: Exception | None = None

    def set(self, value: Any = None) -> None:
        with self.lock:
            self.missing -= 1
            if self.missing:
                return
        if self.error is not None:
            self.async_object.set_exception(self.error)
        else:
            self.async_object.set(value)

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self.set()
