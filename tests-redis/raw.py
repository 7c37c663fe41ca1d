"""A bare connection: what is sent and what comes back, byte for byte."""

from __future__ import annotations

import socket
from types import TracebackType

from targets import Address

Arg = bytes | str | int


def encode(*args: Arg) -> bytes:
    """One command as an array of bulk strings."""
    words = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Raw:
    """A connection that takes replies apart only as far as finding their end."""

    def __init__(self, address: Address, protocol: int = 2) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        if protocol == 3:
            assert self.ask("HELLO", 3).startswith(b"%")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, *args: Arg) -> bytes:
        """Sends a command and returns the bytes of its reply."""
        self.send(encode(*args))
        return self.reply()

    def reply(self) -> bytes:
        """The bytes of one reply, however deep it nests."""
        line = self._line()
        kind, rest = line[:1], line[1:-2]
        if kind in b"$=!" and rest != b"-1":
            return line + self._exactly(int(rest) + 2)
        if kind in b"*~>%|" and rest != b"-1":
            items = int(rest) * (2 if kind in b"%|" else 1)
            return line + b"".join(self.reply() for _ in range(items))
        assert kind in b"+-:_,#($*", f"no reply begins like {line!r}"
        return line

    def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        while self._receive():
            pass
        data, self.received = self.received, b""
        return data

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        self.received += data
        return bool(data)

    def _line(self) -> bytes:
        while b"\r\n" not in self.received:
            assert self._receive(), f"closed in the middle of a reply: {self.received!r}"
        line, self.received = self.received.split(b"\r\n", 1)
        return line + b"\r\n"

    def _exactly(self, length: int) -> bytes:
        chunks, have = [self.received], len(self.received)
        while have < length:
            chunk = self.socket.recv(1 << 20)
            assert chunk, "closed in the middle of a reply"
            chunks.append(chunk)
            have += len(chunk)
        data = b"".join(chunks)
        self.received = data[length:]
        return data[:length]
