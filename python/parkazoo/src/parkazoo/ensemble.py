"""A client of one ensemble: the sessions of which the logical one is made.

What: `EnsembleClient` is a Kazoo client without chroot whose callbacks run at once
on the connection's own thread, and which tells its owner about every change of
state, in the order in which Kazoo tells its listeners.

Why: the steps of an operation follow each other without a thread switch, and
never wait behind a user's callback.

Watches outlive a connection as long as somebody waits for them: they are left again on
the next one, ahead of all that is asked there, and the servers tell what was missed.

A connection is used, and told of, when its server has shown whose copy of the table
it has, and that it is the member that we take it for. Those of another namespace, or of
another member, have fences like ours, and would take our requests; they, and those that
hold nothing, would say of everything that it is not there.

Must never: run a user's code on the connection's thread (the owner hands that to
the real handler), start or stop the handler it shares, outlive its owner, or send a
request to an ensemble that belongs to others, or is another member.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from kazoo.client import CLOSED_STATES
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.serialization import (
    CloseInstance,
    Exists,
    GetData,
    Sync,
)
from kazoo.protocol.states import KazooState, KeeperState

from parkazoo.behind import Looking
from parkazoo.connection import BatchingClient
from parkazoo.errors import NamespaceMismatch
from parkazoo.keeping import kept, left_again
from parkazoo.layout import CONFIG, IDENTITY, BucketStat
from parkazoo.mapping import ConfigurationInvalid, EnsembleRemoved, Table
from parkazoo.sharing import Shared

UNREAD = float("inf")
# It takes no type before Python 3.11.
if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[Any]
else:
    _Adapter = logging.LoggerAdapter


class Refused(ConnectionDropped):
    """A connection is given up because its servers are not what we take them for."""


class _Log(_Adapter):
    """Says which ensemble each line is about. Kazoo tells at each attempt why it
    dropped a connection; who refuses one has told that already, once."""

    def __init__(self, logger: Any, ensemble: EnsembleClient) -> None:
        super().__init__(logger, {})
        self._ensemble = ensemble

    def process(self, message: Any, more: Any) -> tuple[Any, Any]:
        return f"{self._ensemble.shown.replace('%', '%%')}: {message}", more

    def log(  # type: ignore[override]
        self, level: int, message: Any, *about: Any, **more: Any
    ) -> None:
        if not any(isinstance(each, Refused) for each in about):
            super().log(level, message, *about, **more)


class Owner(Protocol):
    handler: Any
    table: Table | None

    def ensemble_changed(self, ensemble: EnsembleClient, state: str) -> None: ...
    def refusal(self, ensemble: EnsembleClient) -> NamespaceMismatch | None: ...
    def has_left(self, ensemble: EnsembleClient) -> bool: ...
    def look_behind(self, ensemble: EnsembleClient) -> None: ...
    def proven(self) -> None: ...
    def trusted(self, at: float) -> bool: ...
    def configuration_seen(
        self, ensemble: EnsembleClient, data: Any, number: int
    ) -> None: ...


class _Inline:
    """The owner's handler, except that callbacks run here and now."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def start(self) -> None:
        """The owner starts the handler."""

    def stop(self) -> None:
        """The owner stops the handler."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


class Reply:
    """Takes a reply on the connection's thread and passes it on, once."""

    __slots__ = ("failed", "got")

    def __init__(
        self, got: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        self.got, self.failed = got, failed

    def set(self, value: Any = None) -> None:
        self.got(value)

    def set_exception(self, exception: Exception) -> None:
        self.failed(exception)


class EnsembleClient(BatchingClient):
    """One session with one ensemble.

    `counted`: its state is part of the logical state. It is not while it joins.
    `closing`: it is being closed on purpose, so its end is not a loss.
    `copy`: its copy of the table, as it was last read. `newest`: the generation of
    that; `UNREAD` while there is a newer one, and what it answers may come from a
    shard that has left.
    `asked`: how many times its copy was asked for.
    `ending`: not empty while what was pending is ended with the connection.
    `refused`: why it is not used, since its servers turned out to be somebody else's.
    `nothing`: when the connection was made, its servers held nothing of a namespace. It
    is not used before it is known whether they should have.
    `said`: the name that they had for themselves then, if they had one. `met`: the copy
    of the table that they have shown then, or since.
    `removed`: the word that was left there when it was taken out of a namespace.
    `stranded`: those that it names have been asked, and know of no newer table.
    `looking`: whether servers that turn it away know less than it has seen.
    `away_since`: since when there is no connection; None while there is one.
    `_proving`: it was asked for an answer, because it had not been heard for long.
    `shared`: the newest shared read, while nothing behind it keeps others from it.
    """

    def __init__(self, owner: Owner, name: str, hosts: str, **options: Any) -> None:
        self.owner: Owner | None = None
        self.state: str = KazooState.LOST
        self.name = name
        self.hosts_string = hosts
        self.counted = True
        self.closing = False
        self.opened = False
        self.copy: Table | None = None
        self.newest: float = 0
        self.asked = 0
        self.ending: list[bool] = []
        self.refused: NamespaceMismatch | None = None
        self.nothing = False
        self.said: str | None = None
        self.met: Table | None = None
        self.removed: EnsembleRemoved | None = None
        self.seeking = self.stranded = False
        self.looking = Looking()
        self.away_since: float | None = time.monotonic()
        self._proving = False
        self._made: Any = None
        self.shared: Shared | None = None
        self._asking = owner.handler.lock_object()
        self._shutting = owner.handler.lock_object()
        super().__init__(hosts=hosts, handler=_Inline(owner.handler), **options)
        # The connection waits on sockets with the owner's handler itself, which
        # it knows; only callbacks come through ours.
        connection = self._connection
        connection.wait_with(owner.handler)
        self.logger: Any = _Log(options.get("logger") or connection.logger, self)
        connection.logger = self.logger
        # One that was given to us, somebody has heard of.
        self._known_session: int | None = self._session_id
        self.owner = owner

    @property
    def shown(self) -> str:
        """Which ensemble this is, for who reads a message."""
        return f"ensemble {self.name} ({self.hosts_string})"

    # -- life --------------------------------------------------------------------

    def open(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Start connecting; what is submitted meanwhile is sent once connected.

        Not if it has begun already, or is not wanted any more. Whoever ends that
        shuts us after it, so one of the two finds the other.
        """
        with self._shutting:
            if self._stopped.is_set() and wanted():
                self.closing = False
                self.opened = True
                self.away_since = time.monotonic()
                self.start_async()

    def shut(self) -> None:
        """End the session and wait until it has ended, or cannot be reached."""
        self.closing = True
        self.opened = False
        with self._shutting:
            self.closing = True  # it may have been opened just now
            self.opened = False
            self.stop()
            # Kazoo's `stop` returns at once if another has begun it: wait here.
            self._connection.stop(self._session_timeout / 1000)
            # Where there was no connection, its farewell would end the next one.
            with suppress(ValueError):
                self._queue.remove((CloseInstance, None))

    def stay_lost(self) -> None:
        """Make no session after the one that was lost just now, on this thread."""
        self.opened = False
        self._stopped.set()

    def _session_callback(self, state: Any) -> None:
        if state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
            self._made = state  # to be told by `connection_made`
            return
        given = self._session_id is not None and self._session_id == self._known_session
        ended = state == KeeperState.EXPIRED_SESSION and given
        if self.state == KazooState.LOST and (
            state == KeeperState.AUTH_FAILED or ended
        ):
            # Before anybody was told of a connection: that is news, too.
            self.state = KazooState.SUSPENDED
        super()._session_callback(state)
        # A read that was queued as Kazoo emptied its queue is never answered.
        self.shared = None

    def _notify_pending(self, state: Any) -> None:
        self.ending.append(True)
        try:
            if state == KeeperState.CONNECTING:
                self._end_with(ConnectionLoss(f"lost the connection to {self.shown}"))
            super()._notify_pending(state)
        finally:
            self.ending.pop()

    def _end_with(self, error: Exception, *only: Any) -> None:
        for waiting in only or (self._pending, self._queue):
            with suppress(IndexError):
                while True:
                    reply = waiting.popleft()[1]
                    if reply is not None:
                        reply.set_exception(error)

    def connection_made(self) -> None:
        """Tell that there is a connection, if it is to an ensemble of ours."""
        self.looking.let_in()
        if self.owner is not None:
            self._look_there()
            why = self.owner.refusal(self)
            if self.owner.has_left(self) or why is not None:
                self._leave(why)
        self._known_session = self._session_id
        super()._session_callback(self._made)
        self._drop_given_up()

    def _drop_given_up(self) -> None:
        """What nobody waits for any more is not sent late. Others may add meanwhile."""
        kept = []
        with suppress(IndexError):
            while True:
                request, reply = self._queue.popleft()
                if getattr(reply, "given_up", False):
                    lost = f"{self.shown} was away for too long"
                    reply.set_exception(ConnectionLoss(lost))
                else:
                    kept.append((request, reply))
        self._queue.extendleft(reversed(kept))

    def _look_there(self) -> None:
        """Note its copy of the table, and what it says that it is."""
        ask = self._connection.ask
        copy = GetData(CONFIG, None)
        name = GetData(IDENTITY, None)
        said, nothing = None, False
        self._meet(None)
        try:
            found, said = ask(copy, name)
            self._meet(found and _parsed(found[0]))
            doubtful = self.removed is not None or _named(said) != self.name
            if found is None or (self._is_known and doubtful):
                # Or this one server lags behind the others.
                _, found, said = ask(Sync(CONFIG), copy, name)
                self._meet(found and _parsed(found[0]))
                nothing = found is None and said is None
        except (AuthFailedError, ConnectionDropped, SessionExpiredError):
            raise
        except KazooException:
            pass  # what it says comes with the next reading of the copy
        finally:
            self.nothing, self.said = nothing, _named(said)
            self.stranded = self.stranded and self.removed is not None

    def _meet(self, shown: Table | ConfigurationInvalid | None) -> None:
        self.met = shown if isinstance(shown, Table) else None
        self.removed = shown if isinstance(shown, EnsembleRemoved) else None

    @property
    def _is_known(self) -> bool:
        """Is it known which member this is? Not while the table is looked for."""
        table = None if self.owner is None else self.owner.table
        return table is not None and self.name in table.ensembles

    @property
    def misnamed(self) -> bool:
        """Did its servers say that they are another member?"""
        return self.said not in (None, self.name)

    @property
    def strange(self) -> bool:
        """Is it a stranger, or must be looked at before it is known not to be one?"""
        return bool(self.nothing or self.misnamed or self.foreign or self.removed)

    @property
    def foreign(self) -> bool:
        """Did its servers show another namespace, maybe before ours was known?"""
        table = None if self.owner is None else self.owner.table
        shown = self.met or self.removed
        return bool(table and shown and shown.namespace != table.namespace)

    def _leave(self, why: NamespaceMismatch | None) -> NoReturn:
        """Have the connection dropped, and tried again, as if nobody had answered.
        Without a reason, which is being looked for, what is queued waits.

        A session that nobody has heard of is closed. One that was ours is kept, and
        found to have expired some time: its ephemerals are gone, and who believes in
        them must hear LOST.
        """
        if self._session_id != self._known_session:
            self._connection.tell(CloseInstance)
            self._reset_session()
            self.last_zxid = 0
        if why is not None:
            self._end_queued(why)
        raise Refused(str(why or self.removed))

    # -- is the session there? -------------------------------------------------------

    def prove(self) -> None:
        """Ask for an answer, whatever it is, unless that was done already."""
        if not self._proving:
            self._proving = True
            self.submit(Exists("/", None), Reply(self._proved, self._proved))

    def _proved(self, _: Any) -> None:
        self._proving = False

    def proven(self) -> None:
        if self.owner is not None:
            self.owner.proven()

    def doubt(self, at: float) -> ConnectionLoss | None:
        if self.owner is None or self.owner.trusted(at):
            return None
        return ConnectionLoss(
            f"a write was not sent to {self.shown}: another ensemble was not heard for"
            " two thirds of the session's time, so a lock may be lost. Ask again"
        )

    def turned_away(self) -> None:
        """Servers do so without a word if we have seen more than they know.

        :raises SessionExpiredError: they do not have what our session was about.
        """
        if self.owner is None or self.closing:
            return
        behind, look = self.looking.turned_away(self.last_zxid)
        if look:
            self.owner.look_behind(self)
        if behind is None:
            return
        self.nothing, self.said, self.met = behind.nothing, behind.said, behind.copy
        self.removed = None
        why = self.owner.refusal(self)
        if why is not None:
            self._end_queued(why)
        else:
            self.logger.error("%s", behind.why(self.name))
            self.last_zxid = 0  # so that they let the next one in
            raise SessionExpiredError

    def _end_queued(self, why: Exception) -> None:
        self.ending.append(True)
        try:
            self._end_with(why, self._queue)
        finally:
            self.ending.pop()

    def _make_state_change(self, state: str) -> None:
        if self.state == state:
            return
        self.state = state
        there = state == KazooState.CONNECTED
        self.away_since = None if there else time.monotonic()
        if self.owner is None:
            return
        if state == KazooState.CONNECTED:
            self.read_configuration(first=True)
            self._leave_watches_again()
        self.owner.ensemble_changed(self, state)

    def submit(self, request: Any, reply: Any) -> None:
        """Send a request, now or when the connection that is being made stands."""
        if self.refused is not None:
            reply.set_exception(self.refused)
            return
        if self._state not in CLOSED_STATES:
            self._queue.append((request, reply))
            self._no_joining_past(request)
            self.send_queued((reply,))
            return
        if self.opened and self._state == KeeperState.CLOSED and not self.closing:
            self._queue.append((request, reply))
            self._no_joining_past(request)
            try:
                self._connection.wake()
            except ConnectionClosedError:
                pass  # not started yet: it looks at its queue when it is
            return
        self._call(request, reply)

    def enqueue(self, request: Any, reply: Any) -> bool:
        """Queue a request for `send_queued`; False: it has been dealt with."""
        if self._state in CLOSED_STATES or self.refused is not None:
            self.submit(request, reply)
            return False
        self._queue.append((request, reply))
        self._no_joining_past(request)
        return True

    def share(self, request: BucketStat, reply: Any) -> Shared | None:
        """Queue a read of a bucket's Stat, or join one like it that is queued.

        What is returned `send_queued` has to have sent. It is noted in `shared`
        before it is queued, and that undone after other requests are, so that
        nobody joins a read that is ahead of one of theirs.
        """
        shared = self.shared
        if shared is not None and shared.request is request and not shared.leaving:
            shared.join(reply)
            return None
        self.shared = shared = Shared(request)
        shared.join(reply)
        return shared if self.enqueue(shared, shared) else None

    def _no_joining_past(self, request: Any) -> None:
        shared = self.shared
        if shared is not None and shared is not request and not shared.bears(request):
            self.shared = None

    def send_queued(self, replies: Sequence[Any]) -> None:
        """Have sent what was queued, to be answered to `replies`."""
        try:
            self._connection.wake()
        except ConnectionClosedError as error:
            for reply in replies:
                reply.set_exception(error)

    # -- watches, which outlive a connection ----------------------------------------

    def watch_left(self, request: Any, error: int) -> None:
        left = self._data_watchers.get(request.path)
        if left and type(request) is Exists and error in (0, NoNodeError.code):
            left.absent = error != 0

    def _reset_watchers(self) -> None:
        """Forget those that nobody waits for, and all with the session."""
        dropped = self._state == KeeperState.CONNECTING
        for kind in ("_data_watchers", "_child_watchers"):
            setattr(self, kind, kept(getattr(self, kind) if dropped else {}))

    def _leave_watches_again(self) -> None:
        """Ahead of all that waits. What has happened since the last reply comes as
        events before any other reply shows it."""
        for request in left_again(
            self.last_zxid, self._data_watchers, self._child_watchers
        ):
            self._queue.appendleft((request, _IGNORED))

    # -- the configuration, watched on every connection ---------------------------

    @property
    def suspect(self) -> bool:
        return self.newest == UNREAD

    def read_configuration(self, first: bool = False) -> None:
        """Read our copy of the table, leaving a watch.

        `first`: ahead of all that waits, on a connection that has just been made.
        """
        with self._asking:
            self.asked = number = self.asked + 1
            self.newest = UNREAD
        seen = partial(self._configuration_seen, number, first)
        requests = [
            (Exists(CONFIG, self._configuration_changed), _IGNORED),
            (GetData(CONFIG, None), Reply(seen, seen)),
        ]
        if first:
            self._queue.extendleft(reversed(requests))
            try:
                self._connection.wake()
            except ConnectionClosedError:
                pass
        else:
            for request, reply in requests:
                self._call(request, reply)

    def _configuration_changed(self, event: Any) -> None:
        if event.type != "NONE" and not self.closing:
            self.read_configuration()

    def _configuration_seen(self, number: int, first: bool, found: Any) -> None:
        """The copy, or what went wrong in reading it."""
        assert self.owner is not None
        seen = found if isinstance(found, Exception) else found[0]
        if isinstance(seen, bytes):
            seen = _parsed(seen)
        if isinstance(seen, (Table, EnsembleRemoved)) and not self.closing:
            self.nothing = False
            self._meet(seen)
            self.owner.has_left(self)
            seen = self.owner.refusal(self) or seen
        with self._asking:
            had = self.copy is not None or self.met is not None
            gone = isinstance(seen, NoNodeError) and had
            if gone:
                self.copy = None
            if isinstance(seen, Table):
                self.copy = seen
            if number == self.asked and not self.removed:
                self.newest = self.copy.generation if self.copy else 0
        if isinstance(seen, NoNodeError) and not gone and self.said is not None:
            self._watch_name()
        # One that went ahead of others does not tell that they have been answered.
        self.owner.configuration_seen(self, seen, 0 if first else number)
        # We are on the connection's thread. Of a copy that is gone it must be known
        # whether all is: that is looked at when the next connection is made.
        if isinstance(seen, NamespaceMismatch) and seen is not found:
            raise Refused(str(seen))
        if gone and not self.closing:
            raise ConnectionDropped("its copy of the table is gone")

    def _watch_name(self) -> None:
        """Without a copy it may be one that is just being emptied: then its name goes,
        too. That is not what answers come from, so none is held for it."""
        name = GetData(IDENTITY, self._name_changed)
        self._call(name, Reply(self._name_seen, self._name_seen))

    def _name_changed(self, event: Any) -> None:
        if event.type != "NONE" and not self.closing and self.copy is None:
            self._watch_name()

    def _name_seen(self, found: Any) -> None:
        """Is it as it was? If not, the next connection looks what there is."""
        gone = isinstance(found, NoNodeError)
        if isinstance(found, Exception) and not gone:
            return  # the connection has ended, or it may not be read
        if (gone or _named(found) != self.said) and not self.closing:
            raise ConnectionDropped("it has no copy of the table, and not its name")


def _parsed(data: bytes) -> Table | ConfigurationInvalid:
    try:
        return Table.deserialize(data)
    except ConfigurationInvalid as error:
        return error


def _named(said: Any) -> str | None:
    """What a server says that it is, by its answer to a read of the name, if any.
    Data that is null says nobody."""
    return None if said is None else (said[0] or b"").decode(errors="replace")


_IGNORED = Reply(lambda value: None, lambda error: None)
