"""What `ParKazooClient` and `PooledClient` have in common: no connection of their own.

What: both are `KazooClient`s, so code of Kazoo, its recipes and its users look for
a connection, a session and hosts on them. Here these are shown as another client's:
that of the ensemble that serves the root, or that which a pool shares.

Must never: keep a copy of what the other client has, which would grow old.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConfigurationError, ConnectionLoss
from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import _prefix_root, normpath
from kazoo.protocol.serialization import Create, Create2
from kazoo.protocol.states import KeeperState
from kazoo.security import OPEN_ACL_UNSAFE

from parkazoo import hosts as hosts_string
from parkazoo.connection import TLS_OPTIONS
from parkazoo.layout import is_system
from parkazoo.steps import EPHEMERAL, SEQUENCE
from parkazoo.wire import refuse_unsendable

if TYPE_CHECKING:
    from parkazoo.kazoo_types import KazooClient
else:
    from kazoo.client import KazooClient

# How a client connects: options of `KazooClient` that are handed on as they are.
CONNECTION_OPTIONS = ("randomize_hosts", "read_only", *TLS_OPTIONS)


class _Created:
    """Takes the reply to a creation, and tells the path without the chroot."""

    __slots__ = ("client", "result")

    def __init__(self, client: Facade, result: Any) -> None:
        self.client, self.result = client, result

    def set(self, value: Any = None) -> None:
        unchroot = self.client.unchroot
        if isinstance(value, tuple):
            value = unchroot(value[0]), value[1]
        else:
            value = unchroot(value)
        self.result.set(value)

    def set_exception(self, error: Exception) -> None:
        self.result.set_exception(error)


class Facade(KazooClient):
    """A client whose connection and session are another's."""

    chroot: str | None
    bootstrap: list[str]

    @property
    def _shown(self) -> Any:
        """The client whose connection and session this one shows, once there is one."""
        raise NotImplementedError

    def _connection_options(self) -> dict[str, Any]:
        """What the clients that do connect are made with."""
        options = {name: getattr(self, name, None) for name in CONNECTION_OPTIONS}
        options["sasl_options"] = self._null_connection.sasl_options
        return options

    def _use_hosts(self, hosts: hosts_string.Hosts) -> None:
        """Take in a hosts string.

        :raises ConfigurationError: it has another chroot than the one before.
        """
        ensembles, chroot = hosts_string.split(hosts)
        new_chroot = normpath(chroot) if chroot else ""
        if self.chroot is not None and new_chroot != self.chroot:
            raise ConfigurationError(
                "Changing chroot at runtime is not currently supported"
            )
        self.chroot, self.bootstrap = new_chroot, ensembles
        self.hosts = [server for part in ensembles for server in collect_hosts(part)[0]]

    def _away(self) -> list[str]:
        """The ensembles that are waited for, as they are shown to whoever asks."""
        return []

    def _notify_pending(self, state: Any) -> None:
        if state == KeeperState.CONNECTING and getattr(self, "degraded", False):
            return  # it goes on with the others, and so does what waits
        if state == KeeperState.CONNECTING and (away := self._away()):
            lost = ConnectionLoss(f"no connection to {', '.join(away)}")
            with suppress(IndexError):
                while True:
                    self._queue.popleft()[1].set_exception(lost)
        super()._notify_pending(state)

    def _end_start(self, seconds: float, silent: list[str], waited: Any) -> None:
        """What Kazoo does when it has waited, and for whom it was in vain."""
        try:
            KazooClient.start(self, seconds)
        except self.handler.timeout_exception:
            if not silent:
                raise
            raise self.handler.timeout_exception(
                f"no answer from {', '.join(silent)} within {waited:g} s"
            ) from None

    def add_auth_async(self, scheme: str, credential: str) -> Any:
        if isinstance(scheme, str) and isinstance(credential, str):
            refuse_unsendable(scheme, credential)
        return super().add_auth_async(scheme, credential)

    def _create_async(
        self,
        path: str,
        value: Any = b"",
        acl: Any = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        include_data: bool = False,
    ) -> Any:
        """As Kazoo's, whose functions refer to each other in a circle: each call of it
        leaves 47 objects to the garbage collector. What is rare, or wrong, is Kazoo's.
        """
        given = self.default_acl or OPEN_ACL_UNSAFE if acl is None else acl
        if (
            makepath is not False
            or not isinstance(path, str)
            or not (value is None or isinstance(value, bytes))
            or type(given) not in (list, tuple)
            or not (type(ephemeral) is type(sequence) is type(include_data) is bool)
        ):
            return super().create_async(
                path, value, acl, ephemeral, sequence, makepath, include_data
            )
        flags = (EPHEMERAL if ephemeral else 0) | (SEQUENCE if sequence else 0)
        kind = Create2 if include_data else Create
        result = self.handler.async_result()
        told = _Created(self, result) if self.chroot else result
        try:
            physical = _prefix_root(self.chroot, path, trailing=sequence)
            self._call(kind(physical, value, given, flags), told)
        except Exception as error:  # Kazoo tells it by the result, too
            result.set_exception(error)
        return result

    if not TYPE_CHECKING:  # checkers know Kazoo's, with its types
        create_async = _create_async

    def _delete_recursive(self, path: str) -> Any:
        if not isinstance(path, str):
            raise TypeError("Invalid type for 'path' (string expected)")
        refuse_unsendable(path)
        if is_system(_prefix_root(self.chroot, path)):
            return super()._delete_recursive(path)
        return self._delete_all(path)

    def _delete_all(self, path: str) -> Any:
        """Delete a node, given as the user gave it, with all below it."""
        raise NotImplementedError

    # What Kazoo itself assigns is kept beside, and shown until there is more.

    @property
    def _connection(self) -> Any:
        shown = self._shown
        return self._null_connection if shown is None else shown._connection

    @_connection.setter
    def _connection(self, connection: Any) -> None:
        self._null_connection = connection

    @property
    def _session_id(self) -> Any:
        shown = self._shown
        return self.__dict__.get("_own_id") if shown is None else shown._session_id

    @_session_id.setter
    def _session_id(self, session_id: Any) -> None:
        self.__dict__["_own_id"] = session_id

    @property
    def _session_passwd(self) -> Any:
        shown = self._shown
        if shown is None:
            return self.__dict__.get("_own_passwd")
        return shown._session_passwd

    @_session_passwd.setter
    def _session_passwd(self, password: Any) -> None:
        self.__dict__["_own_passwd"] = password
        self._password_given(password)

    def _password_given(self, password: Any) -> None:
        """Somebody assigned a session's password."""
