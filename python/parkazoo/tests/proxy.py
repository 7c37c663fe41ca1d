"""A network between clients and one server that a test can hold up or cut.

What: a loopback listener that passes bytes on to a server, connection by
connection. `hold` keeps everything on chosen connections where it is, as a network
that lost its way does; new connections are then held as well.

Why: an expired session is something the server decides because it heard nothing;
holding one client's packets makes exactly that happen, while other clients of the
same server go on.

Must never: lose or reorder a byte, or outlive its test.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from servers import free_port


class _Pipe:
    """One client's connection: two pumps that stop while the gate is shut."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = (client, server)
        self.gate = threading.Event()
        self.gate.set()
        self.open = True
        for source, target in ((client, server), (server, client)):
            pump = threading.Thread(
                target=self._pump, args=(source, target), daemon=True
            )
            pump.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.gate.wait()
                target.sendall(data)
        self.gate.wait()
        self.close()

    def close(self) -> None:
        self.open = False
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Stands before one server; `address` is what clients are given."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = free_port()
        self.pipes: list[_Pipe] = []
        self.holding_new = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.server_port))
                except OSError:
                    client.close()
                    continue
                pipe = _Pipe(client, server)
                if self.holding_new:
                    pipe.gate.clear()
                self.pipes.append(pipe)

    def connections(self) -> set[_Pipe]:
        """The connections open now; the difference of two such sets is one client's."""
        return {pipe for pipe in self.pipes if pipe.open}

    def hold(self, pipes: set[_Pipe]) -> None:
        self.holding_new = True
        for pipe in pipes:
            pipe.gate.clear()

    def release(self) -> None:
        """Let everything flow again; what was held arrives now, late."""
        self.holding_new = False
        for pipe in self.pipes:
            pipe.gate.set()

    def close(self) -> None:
        self._listener.close()
        self.release()
        for pipe in self.pipes:
            pipe.close()
