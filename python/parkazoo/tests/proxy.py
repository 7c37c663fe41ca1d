"""A network between clients and one server that a test can hold up or cut.

What: a loopback listener that passes bytes on to a server, connection by
connection. `hold` keeps everything where it is, as a network that lost its way
does, and also all that arrives on connections made later, until `release`.
`swallow` leaves new connections without an answer, as a server that is just starting
may.

Why: an expired session is something the server decides because it heard nothing;
holding one client's packets makes exactly that happen. That client has a proxy to
itself, so other clients of the same server go on.

Must never: lose or reorder a byte, or outlive its test.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from servers import free_port


class _Pipe:
    """One connection: two pumps that stop while the proxy's gate is shut."""

    def __init__(
        self, client: socket.socket, server: socket.socket, gate: threading.Event
    ) -> None:
        self.ends = (client, server)
        self.gate = gate
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
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Stands before one server; `address` is what one client is given."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = free_port()
        self.pipes: list[_Pipe] = []
        self._gate = threading.Event()
        self._gate.set()
        self.swallowing = 0
        self._swallowed: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.swallowing:
                    self.swallowing -= 1
                    self._swallowed.append(client)
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self.server_port))
                except OSError:
                    client.close()
                    continue
                self.pipes.append(_Pipe(client, server, self._gate))

    def hold(self) -> None:
        """Let nothing through any more but what is being passed on right now."""
        self._gate.clear()

    def swallow(self, count: int) -> None:
        """Accept the next `count` connections, and never answer on them."""
        self.swallowing = count

    def release(self) -> None:
        """Let everything flow again; what was held arrives now, late."""
        self._gate.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        for pipe in self.pipes:
            pipe.close()
        for client in self._swallowed:
            client.close()
