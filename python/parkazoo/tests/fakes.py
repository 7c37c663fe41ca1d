"""A client whose connections only note what they would send, for tests of the order
of requests and replies: a test answers when it likes, and as it likes."""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.serialization import GetChildren2, GetData, Sync
from kazoo.protocol.states import KeeperState, WatchedEvent, ZnodeStat

from parkazoo import ParKazooClient
from parkazoo.ensemble import EnsembleClient
from parkazoo.layout import CONFIG
from parkazoo.mapping import Table
from parkazoo.proof import now
from parkazoo.sharing import Shared
from parkazoo.wire import Guarded


def stat(version: int = 0, children: int = 0) -> ZnodeStat:
    return ZnodeStat(1, 1, 0, 0, version, 0, 0, 0, 0, children, 1)


class Fake:
    """`client`: of two ensembles, connected to neither; callbacks run at once."""

    def __init__(self) -> None:
        self.client = client = ParKazooClient("h0:1;h1:1")
        client.handler.dispatch_callback = lambda callback: callback.func(
            *callback.args
        )
        self.table = Table.initial({"e0": "h0:1", "e1": "h1:1"})
        sessions = client._sessions
        sessions.table = self.table
        for name, hosts in self.table.ensembles.items():
            ensemble = EnsembleClient(sessions, name, hosts)
            ensemble.opened, ensemble._state = True, KeeperState.CONNECTED
            ensemble._live.set()
            ensemble._connection.proof.at = now()  # it has just been heard
            ensemble._connection.proof.seconds = 3600.0
            ensemble._connection.wake = lambda: None  # type: ignore[method-assign]
            sessions.by_name[name] = ensemble
        client._state = KeeperState.CONNECTED
        client._live.set()

    def __getitem__(self, name: str) -> EnsembleClient:
        return self.client._sessions.by_name[name]

    def directory(self, home: str, bucket: str, number: int = 0) -> str:
        """A directory on these ensembles that is known to have children."""
        layout, owners = self.client._layout, self.table.owners
        while True:
            number += 1
            path = f"/p{number}/d"
            places = layout.node(path).shard, layout.buckets(path)[0].shard
            if places[0] != places[1] and (owners[places[0]], owners[places[1]]) == (
                home,
                bucket,
            ):
                layout.learn(path, True)
                return path

    def cut(self, name: str) -> None:
        """Waking the connection fails from now on."""

        def closed() -> None:
            raise ConnectionClosedError("closed")

        self[name]._connection.wake = closed  # type: ignore[method-assign]

    def silent(self) -> None:
        """From now on it does nothing by itself: no routine of its own is started."""
        self.client.handler.spawn = lambda *_: None

    def announce(self, name: str) -> None:
        """An ensemble says that its copy of the table has changed."""
        self[name]._configuration_changed(WatchedEvent("CHANGED", "CONNECTED", CONFIG))

    def sent(self, name: str) -> list[Any]:
        """What is put on the wire now, as pairs of request and reply object."""
        queue, sent = self[name]._queue, []
        while queue:
            request, reply = queue.popleft()
            if type(request) is Shared:
                request.serialize()
            sent.append((request, reply))
        return sent

    @staticmethod
    def answer(request: Any, reply: Any, children: int = 0, version: int = 0) -> None:
        """As a server that has this many children and this version everywhere."""
        kind = type(request)
        if kind is Sync:
            reply.set(request.path)
        elif kind is GetData:
            reply.set((b"", stat(version, 1)))
        elif kind is GetChildren2:
            reply.set(([f"c{n}" for n in range(children)], stat(0, children)))
        elif kind is Guarded:
            reply.set([stat(version, 1) for _ in request.operations])
        else:
            reply.set(stat(0, children))
