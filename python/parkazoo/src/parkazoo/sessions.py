"""N sessions behind one logical state, and the table they agree on.

What: opens a session with each ensemble, finds or makes the namespace, keeps the
table up to date from the configuration znode that every connection watches, and
folds N states into one: CONNECTED when every session is, SUSPENDED when one is
not, LOST when one is lost.

Why LOST is contagious: a lock is an ephemeral on one ensemble, and a program gives
its locks up when it hears LOST. If the other sessions lived on, their locks would
stay taken while their holder believes them lost; if LOST were not told, a lock
would be free while its holder believes it has it. So one lost session ends all,
and all are made anew together.

Must never: report CONNECTED while a session is missing, block the thread of a
connection, or let two threads change the logical state at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    AuthFailedError,
    KazooException,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState, KeeperState

from parkazoo import finding, leaving, namespace, remove
from parkazoo.ensemble import EnsembleClient
from parkazoo.errors import NamespaceMismatch
from parkazoo.mapping import ConfigurationInvalid, Table
from parkazoo.naming import STRANGER_SECONDS
from parkazoo.proof import now

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# How often it is looked whether one is there after all, when nobody was in time.
LOOK_SECONDS = 0.25
# Routines that wait for servers side by side.
PARALLEL_MAX = 16


class Sessions:
    """The sessions of one client. All fields change under `lock` only.

    `epoch` counts openings and renewals, `opening` is it at the last opening; a
    routine that belongs to an older one stops.
    `lost` is true from a session's loss until all sessions have been renewed.
    `refused`: a member is somebody else's.
    `error`: what keeps the namespace from being opened, or, unless the client is
    degraded, `refused`; requests that would wait fail with it.
    `patience`: how long the other hosts given are waited for, when one has a table.
    `losses` changes with each; `loss` is the error of what was under way then.
    `finding`: the routine that looks for the table, or makes it, holds it.
    `_trusted_until`: all sessions are known to be there until then, at least; it
    changes under `_trust_lock`.
    `identity`: sessions that were given to us and have not gone on yet, by member.
    """

    def __init__(self, client: ParKazooClient, options: dict[str, Any]) -> None:
        self.client = client
        self.options = options
        self.handler = client.handler
        self.lock = self.handler.rlock_object()
        self.table: Table | None = None
        self.by_name: dict[str, EnsembleClient] = {}
        self.copies: dict[str, Any] = {}
        self.signal = self.handler.event_object()
        self.error: Exception | None = None
        self.patience = STRANGER_SECONDS
        self.refused: NamespaceMismatch | None = None
        self.running = False
        self.lost = False
        self.losses = 0
        self.loss: type[Exception] = SessionExpiredError
        self.epoch = self.opening = 0
        self._trusted_until = 0.0
        self._trust_lock = self.handler.lock_object()
        self.finding = self.handler.lock_object()
        self.identity: dict[str | None, tuple[int, bytes]] = {}
        self.routine: Any = None

    # -- opening -----------------------------------------------------------------

    def open(self) -> None:
        """Begin to connect; returns at once. The client's state tells the rest."""
        with self.lock:
            self.running, self.lost, self.error = True, False, None
            self.refused = None
            for ensemble in self.by_name.values():
                ensemble.refused, ensemble.stranded = None, False
            self.epoch += 1
            epoch = self.opening = self.epoch
        self.routine = self.handler.spawn(self._opening, epoch)
        self.handler.spawn(remove.watchman, self.client, epoch)

    def be_patient(self, seconds: float | None) -> None:
        """Whoever starts waits so long, and then goes on with those that are there."""
        if seconds is not None:
            self.patience = min(STRANGER_SECONDS, seconds / 4)

    def close(self) -> None:
        """End every session and wait for that."""
        with self.lock:
            self.running = False
            self.epoch += 1
            ensembles = list(self.by_name.values())
        # A listener that stops its client is on a connection's thread: whoever joins
        # that from another one waits for ever, for it waits for him.
        here = threading.current_thread()
        ensembles.sort(key=lambda e: e._connection._connection_routine is not here)
        self.in_parallel([e.shut for e in ensembles])

    def release(self) -> None:
        """Free sockets. Raises, as Kazoo does, while a session is still open."""
        for ensemble in self.by_name.values():
            if ensemble.opened and not self.running:
                ensemble.shut()  # it was being renewed as we closed
            ensemble.close()

    def forget(self) -> None:
        """Closed and released: begin with the hosts string when opened again."""
        with self.lock:
            assert not self.running
            self.by_name, self.copies, self.table = {}, {}, None

    def in_parallel(self, works: Sequence[Callable[[], Any]]) -> None:
        errors: list[Exception] = []

        def run(work: Callable[[], Any]) -> None:
            try:
                work()
            except Exception as error:
                errors.append(error)

        for start in range(0, len(works), PARALLEL_MAX):
            now = works[start : start + PARALLEL_MAX]
            threads = [self.handler.spawn(run, work) for work in now[1:]]
            run(now[0])
            for thread in threads:
                # Kazoo joins what a handler spawns, so every handler's can be joined.
                (thread.join if hasattr(thread, "join") else thread.wait)()
        if errors:
            raise errors[0]

    def current(self, epoch: int) -> bool:
        return self.running and self.epoch == epoch

    def _opening(self, epoch: int) -> None:
        """Connect, find or make the table, wait for all, report CONNECTED."""
        try:
            with self.finding:  # one of an older epoch is about to end
                if self.table is None:
                    finding.find(self, epoch)
            self._open_missing()
            self.open_one()
            self._report()
        except Exception as error:
            if self.current(epoch):
                self.client.logger.error("cannot open the namespace: %s", error)
                self.error = error
                self.client._live_or_failed.set()
                self.client._refuse_waiting(error)

    def add(self, name: str, hosts: str) -> EnsembleClient:
        with self.lock:
            options = dict(self.options)
            options["connection_retry"] = self.client._conn_retry.copy()
            options["command_retry"] = self.client._retry.copy()
            if options.get("sasl_options"):
                options["sasl_options"] = dict(options["sasl_options"])
            if name in self.identity:
                options["client_id"] = self.identity.pop(name)
            ensemble = EnsembleClient(self, name, hosts, **options)
            ensemble.auth_data = self.client.auth_data
            self.by_name[name] = ensemble
            return ensemble

    def _open_missing(self) -> None:
        """A session with every ensemble of the table, unless they are made lazily."""
        table = self.table
        if table is None:
            return
        for name in table.ensembles:
            self.session(name, openly=not self.client.lazy or name in self.identity)

    def open_one(self) -> None:
        """A lazy client opens what it needs; with none it would not be connected."""
        opened = any(each.opened for each in list(self.by_name.values()))
        if self.table is not None and not opened:
            self.seat()

    def session(self, name: str, openly: bool = True) -> EnsembleClient:
        """The session with an ensemble, opened if need be."""
        with self.lock:
            ensemble = self.by_name.get(name)
            if ensemble is None:
                assert self.table is not None
                ensemble = self.add(name, self.table.ensembles[name])
                # One that joins a running client does not suspend it meanwhile.
                ensemble.counted = not self.client._live.is_set() and openly
            begin = openly and self.running and not (ensemble.opened or self.lost)
            if begin:
                ensemble.opened = True
        if begin:
            self.begin(ensemble)
        return ensemble

    def begin(self, ensemble: EnsembleClient) -> None:
        """Open a session, unless the client has stopped or lost one meanwhile."""

        def wanted() -> bool:
            with self.lock:
                ours = self.by_name.get(ensemble.name) is ensemble
                return self.running and not self.lost and ours

        ensemble.open(wanted)

    def seat(self) -> EnsembleClient:
        """The session with the ensemble whose copy of the table decides."""
        while True:
            table = self.table
            assert table is not None
            try:
                return self.session(table.seat)
            except KeyError:
                if table is self.table:
                    raise
                # It has left just now, and another one is the seat.

    def visit(self, hosts: str, client_id: Any = None) -> EnsembleClient:
        """A session with an ensemble beside those of the namespace: a new one, or, so
        that it can be ended, somebody else's, if that lives."""
        with self.lock:
            if client_id is not None:
                self.identity["visited"] = client_id
            ensemble = self.add("visited", hosts)
            del self.by_name["visited"]
        ensemble.counted = False
        ensemble.owner = None
        ensemble.open()
        return ensemble

    @contextmanager
    def visiting(self, server: str) -> Iterator[EnsembleClient | None]:
        """A visit to one server; None if it does not answer."""
        visited = self.visit(server)
        try:
            answers = self.wait(lambda: visited.connected, STRANGER_SECONDS)
            yield visited if answers else None
        finally:
            self.discard(visited)

    def discard(self, ensemble: EnsembleClient) -> None:
        """End a session that is not needed; it may hang in an attempt to connect."""

        def end() -> None:
            ensemble.shut()
            if ensemble._connection.connection_stopped.is_set():
                ensemble.close()

        self.handler.spawn(end)

    # -- what the connections tell -----------------------------------------------

    def ensemble_changed(self, ensemble: EnsembleClient, state: str) -> None:
        """Called on the connection's thread, as Kazoo would call its listeners."""
        self.signal.set()
        with self._trust_lock:
            self._trusted_until = 0.0
        if ensemble.closing or not self.running:
            return
        if state == KazooState.LOST:
            self._lost(ensemble)
        elif state == KazooState.CONNECTED:
            ensemble.counted = True
            self._report()
        elif ensemble.counted and not self.lost:
            with self.lock:
                self.client._session_callback(KeeperState.CONNECTING)
            if self.client.degraded:  # what was held for this one is held no more
                self.client._flush()

    def trusted(self, at: float | None = None) -> bool:
        """Are all sessions known to be there? Not if one has not answered for two
        thirds of its time, because it is silent, or because this process was stopped.

        Of a degraded client only those that are connected are asked about: it goes on
        without the others, and has said so.
        """
        at = now() if at is None else at
        if at < self._trusted_until:
            return True
        with self._trust_lock:
            asked = [each._connection.proof.until for each in self._relied_on()]
            self._trusted_until = min(asked, default=at)
            return not asked or at < self._trusted_until

    def _relied_on(self) -> list[EnsembleClient]:
        known = [e for e in list(self.by_name.values()) if e.counted and e.opened]
        return [e for e in known if e.connected or not self.client.degraded]

    def ask_for_proof(self) -> None:
        """Of the sessions that keep requests waiting. `proven` is called with it."""
        at = now()
        for ensemble in self._relied_on():
            if ensemble.connected and ensemble._connection.proof.until <= at:
                ensemble.prove()

    def proven(self) -> None:
        """One is known to have been there later than was known: go on, if that does."""
        if self.client._queue:
            self.client._flush()

    def _report(self) -> None:
        """CONNECTED, if every session is and none is being renewed."""
        with self.lock:
            if not self.running or self.lost or self.table is None:
                return
            needed = [e for e in self.by_name.values() if e.counted and e.opened]
            if not self.client.lazy and len(self.by_name) < len(self.table.ensembles):
                return
            used = [e for e in needed if e.refused is None]
            waits = any(e.state != KazooState.CONNECTED or e.strange for e in used)
            if waits or not needed or self._judging():
                return  # away, or about to be looked at, or just being looked at
            if len(used) < len(needed):
                self.client._live_or_failed.set()  # nobody else is waited for
                if self.client.degraded:
                    self.go_on_without()
                return
            if any(e.strange for e in self.by_name.values()):
                return  # one that is not needed now
            read_only = any(e.client_state == KeeperState.CONNECTED_RO for e in needed)
            state = KeeperState.CONNECTED_RO if read_only else KeeperState.CONNECTED
            if self.client._state != KeeperState.AUTH_FAILED:
                self.client._session_callback(state)
        self.client._flush()

    def there(self, name: str) -> bool:
        """Is there a connection to that ensemble just now?"""
        ensemble = self.by_name.get(name)
        return ensemble is not None and ensemble.connected

    def silent(self) -> list[str]:
        """Those that are waited for, by name if it is known, and with their hosts."""
        with self.lock:
            listed = self.table.ensembles if self.table is not None else {}
            opened = [e for e in self.by_name.values() if e.opened]
            away = [e for e in opened if not (e.connected or e.refused)]
        return [
            f"{e.name} ({e.hosts_string})" if e.name in listed else e.hosts_string
            for e in away
        ]

    def go_on_without(self) -> bool:
        """Be in the degraded state, if the table and some ensemble are there.

        Listeners hear CONNECTED and SUSPENDED, as if an ensemble had gone just now.
        """
        with self.lock:
            known = self.by_name.values()
            there = [e for e in known if e.state == KazooState.CONNECTED]
            if not self.running or self.lost or self.table is None or not there:
                return False
            if self.client._may_send():
                return True
            if self._judging():
                return False
            self.client._session_callback(KeeperState.CONNECTED)
            self.client._flush()
            self.client._session_callback(KeeperState.CONNECTING)
            return True

    def _judging(self) -> bool:
        """Is one that may be a stranger just being looked at? Its session is shut and
        opened anew for that, so for a moment it is not among those that are needed."""
        known = self.by_name.values()
        there = (e for e in known if e.state == KazooState.CONNECTED)
        return any(e.strange and e.refused is None for e in there)

    def _lost(self, ensemble: EnsembleClient, state: Any = None) -> None:
        """One session is gone: tell, end the others, and begin again with all."""
        with self.lock:
            if self.lost or not self.running:
                return
            self.lost = True
            self.epoch += 1
            epoch = self.epoch
            state = state or ensemble.client_state
            expired = state != KeeperState.AUTH_FAILED
            self.loss = SessionExpiredError if expired else AuthFailedError
            self.losses += 1
            others = [e for e in self.by_name.values() if e is not ensemble]
            for other in others:
                other.closing = True
            self.copies.pop(ensemble.name, None)
            self.identity = {}
            self.client._session_callback(state)
            self.losses += 1  # what was begun between the two belongs to neither
            if not self.client.renews:
                ensemble.stay_lost()
        if state == KeeperState.AUTH_FAILED and self.table is None:
            self.error = AuthFailedError()
            self.client._live_or_failed.set()
        renew = state == KeeperState.EXPIRED_SESSION and self.client.renews
        self.handler.spawn(self._renew, epoch, others, renew)

    def _renew(self, epoch: int, others: list[EnsembleClient], renew: bool) -> None:
        """Close the other sessions; after an expiry, begin anew, as at a start.

        Those are opened again that were open; the one that was lost is by itself.
        """
        again = [other for other in others if other.opened]
        try:
            self.in_parallel([other.shut for other in again])
        except KazooException as error:
            self.client.logger.warning("a session could not be closed: %s", error)
        if not renew:
            return
        with self.lock:
            if not self.current(epoch):
                return
            self.lost = False
            self.error = None if self.client.degraded else self.refused
            for other in again:
                other.opened = True  # CONNECTED is not without it
                self.copies.pop(other.name, None)
        for other in again:
            self.handler.spawn(self._reopen, epoch, other)
        self._opening(epoch)
        if self.client.degraded:
            self._go_on(epoch)

    def _reopen(self, epoch: int, ensemble: EnsembleClient) -> None:
        while self.current(epoch):
            try:
                return self.begin(ensemble)
            except KazooException as error:
                # Its connection has not ended yet; it must before it is reused.
                self.client.logger.warning("waiting to reopen: %s", error)

    def _go_on(self, epoch: int) -> None:
        """Be used without those that do not come back after a LOST.

        They are waited for as long as servers wait for a client: who is there
        answers in that time. The first one that is there after that is enough.
        """

        def settled() -> bool:
            return not self.current(epoch) or self.client._may_send()

        self.wait(settled, self.client._session_timeout / 1000)
        while not settled() and not self.go_on_without():
            self.handler.sleep_func(LOOK_SECONDS)

    # -- the table ---------------------------------------------------------------

    def refusal(self, ensemble: EnsembleClient) -> NamespaceMismatch | None:
        """Why a session must not be used, by what its servers have shown, if so."""
        table, copy, why = self.table, ensemble.met, None
        name, removed = ensemble.name, ensemble.removed
        shown = copy or removed
        if table is not None and shown and shown.namespace != table.namespace:
            why = namespace.another(name, table, shown)
        elif table is not None and removed is not None:
            if name in table.ensembles and ensemble.stranded:
                why = namespace.left(name, table, removed)
                if ensemble.misnamed:
                    why = namespace.misnamed(name, table, ensemble.said or "")
        elif table is not None:
            # By a newer table it may have joined anew, under another name.
            newer = copy if copy and finding.follows(table, copy) else table
            if name in table.ensembles and ensemble.nothing:
                # The table names no member before it has a copy, or at least its name.
                why = namespace.lost(name, table)
            elif name in newer.ensembles and ensemble.misnamed:
                why = namespace.misnamed(name, newer, ensemble.said or "")
        with self.lock:
            if why is None and self.refused is None:
                return None
            if why is not None and str(why) != str(ensemble.refused):
                self.client.logger.error("%s", why)
            ensemble.refused = why
            self._look_for_refused()
            if self.refused is not None and not self.client.degraded:
                self.client._live_or_failed.set()  # ends `start`
        if why is not None:
            if (
                not self.client.degraded
            ):  # it goes on, and tells those who need this one
                self.client._refuse_waiting(why)
            self._report()
        return why

    def has_left(self, ensemble: EnsembleClient) -> bool:
        """Do its servers say that a member has left? Then our table is old, and it is
        found out, beside the connection's thread, where the others are."""
        table, removed = self.table, ensemble.removed
        if table is None or removed is None or ensemble.closing:
            return False
        if removed.namespace != table.namespace:
            return False
        with self.lock:
            if self.by_name.get(ensemble.name) is not ensemble:
                return True  # it is being shut
            begin, ensemble.seeking = not ensemble.seeking, True
        if begin:
            self.handler.spawn(leaving.follow, self, ensemble, removed)
        return True

    def look_behind(self, ensemble: EnsembleClient) -> None:
        """Find out, beside the connection's thread, why it is turned away."""
        self.handler.spawn(ensemble.looking.look, self, ensemble)

    def _look_for_refused(self) -> None:
        found = (e.refused for e in self.by_name.values() if e.refused is not None)
        before, self.refused = self.refused, next(found, None)
        if self.error in (None, before) and not self.client.degraded:
            self.error = self.refused

    def configuration_seen(
        self, ensemble: EnsembleClient, seen: Any, number: int
    ) -> None:
        """A copy of the table, or the error met in reading it, from an ensemble."""
        with self.lock:
            if isinstance(seen, (Table, NoNodeError, ConfigurationInvalid)):
                self.copies[ensemble.name] = seen
            known = self.table is not None
        if known and isinstance(seen, Table):
            self.adopt(seen)
        self.signal.set()
        self.client._fencing.copy_read(ensemble, seen, number)

    def adopt(self, table: Table) -> None:
        """Use this table if it is newer than ours."""
        old = self.table
        if old is not None and finding.follows(old, table):
            # Before it is used, so that nobody goes by it ahead of earlier calls.
            self.client._fencing.shards_left(old, table)
        with self.lock:
            old = self.table
            if old is not None and not finding.follows(old, table):
                return
            self.table = table
            self.client._use_table(old, table)
            gone = [n for n in self.by_name if n not in table.ensembles]
            retired = [self.by_name.pop(name) for name in gone] if old else []
            self._look_for_refused()
            for ensemble in retired:
                if leaving.may_have_expired(ensemble) and not ensemble.removed:
                    # Before it left, and nobody will say.
                    self._lost(ensemble, KeeperState.EXPIRED_SESSION)
            known = list(self.by_name.items())
        if old is None:
            return
        self.client._fencing.look()
        for name, ensemble in known:
            hosts = table.ensembles.get(name)
            if hosts is not None and hosts != old.ensembles.get(name):
                ensemble.hosts_string = hosts
                ensemble.set_hosts(hosts, self.client.randomize_hosts)
        for ensemble in retired:
            if ensemble.connected:
                ensemble.read_configuration()  # it comes behind all that was asked
            ensemble.closing = True
            self.handler.spawn(ensemble.shut)
        if table.moving:
            self.client._adopting.look()
        if not self.client.lazy:
            self.handler.spawn(self._open_missing)
        if retired:
            self._report()  # it may have been the only one that was away

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait on the calling routine until `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.handler.sleep_func(0.05)
        return True
