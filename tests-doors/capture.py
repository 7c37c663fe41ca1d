"""Every byte that passes some ports of the loopback interface: `capture.py FILE PORT...`, as root, until SIGTERM.

It writes packets to FILE as they come, and ends by printing how many there were and how many the kernel had to drop.
`streams` reads such a file. Nothing else than Linux's packet sockets is needed.
"""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SOL_PACKET, PACKET_STATISTICS = 263, 6
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
ETH_P_IP = 0x0800
TCP, UDP = 6, 17
# What waits between the kernel and this program, at most.
WAITING_BYTES_MAX = 512 << 20
PACKET_BYTES_MAX = 1 << 18
# In front of the bytes of each packet: from which port to which, and how many.
HEAD = struct.Struct("<HHI")


def port_filter(ports: list[int]) -> bytes:
    """A program for the kernel that keeps TCP and UDP from or to these ports; it sees packets from their IP header on."""
    count = len(ports)
    load_byte, load_half, load_index, jump_equal, end = 0x30, 0x48, 0xB1, 0x15, 0x06
    keep, drop = 7 + 2 * count, 6 + 2 * count
    program = [
        (load_byte, 0, 0, 9),
        (jump_equal, 1, 0, TCP),
        (jump_equal, 0, drop - 3, UDP),
        (load_index, 0, 0, 0),
        (load_half, 0, 0, 0),
    ]
    program += [(jump_equal, keep - (6 + at), 0, port) for at, port in enumerate(ports)]
    program += [(load_half, 0, 0, 2)]
    program += [(jump_equal, keep - (7 + count + at), 0, port) for at, port in enumerate(ports)]
    program += [(end, 0, 0, 0), (end, 0, 0, PACKET_BYTES_MAX)]
    assert len(program) == keep + 1
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def attach(door: socket.socket, program: bytes) -> None:
    kept = ctypes.create_string_buffer(program)
    length = len(program) // 8
    door.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", length, ctypes.addressof(kept)))


def payload(packet: memoryview) -> tuple[int, int, memoryview]:
    """The ports of a packet, and what it carries."""
    at = 4 * (packet[0] & 15)
    whole = int.from_bytes(packet[2:4], "big")
    source, target = struct.unpack_from(">HH", packet, at)
    head = 8 if packet[9] == UDP else 4 * (packet[at + 12] >> 4)
    # A length of 0 is that of a packet which the kernel has not cut into pieces that fit.
    return source, target, packet[at + head : whole or len(packet)]


def capture(file: BinaryIO, ports: list[int]) -> dict[str, int]:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    packets = carried = dropped = 0
    # Bound to one protocol, it sees each packet once, where it arrives.
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as door:
        attach(door, port_filter(ports))
        door.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, WAITING_BYTES_MAX)
        door.bind(("lo", ETH_P_IP))
        door.settimeout(0.2)
        print("captures", flush=True)
        room = memoryview(bytearray(PACKET_BYTES_MAX))
        while True:
            if ended:
                # What the kernel has kept until now, and no more.
                door.setblocking(False)
            try:
                length = door.recv_into(room)
            except TimeoutError:
                continue
            except BlockingIOError:
                break
            source, target, bytes_of = payload(room[:length])
            packets += 1
            if bytes_of:
                file.write(HEAD.pack(source, target, len(bytes_of)))
                file.write(bytes_of)
                carried += len(bytes_of)
        _, dropped = struct.unpack("II", door.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    return {"packets": packets, "bytes": carried, "dropped": dropped}


def streams(path: Path, overlap: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    """What passed between two ports, piece by piece, each with the last bytes of the piece before it in front: what is
    cut by packets is whole in one of them, if it is no longer than `overlap`."""
    tails: dict[tuple[int, int], bytes] = {}
    with path.open("rb") as file:
        while head := file.read(HEAD.size):
            source, target, length = HEAD.unpack(head)
            piece = tails.get((source, target), b"") + file.read(length)
            tails[source, target] = piece[-overlap:]
            yield (source, target), piece


def found(path: Path, wanted: list[bytes]) -> dict[bytes, set[tuple[int, int]]]:
    """Which of these stand in a capture, and from which port to which."""
    places: dict[bytes, set[tuple[int, int]]] = {}
    for ports, piece in streams(path, max(len(word) for word in wanted) - 1):
        for word in wanted:
            if word in piece:
                places.setdefault(word, set()).add(ports)
    return places


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as kept:
        print(json.dumps(capture(kept, [int(port) for port in sys.argv[2:]])), flush=True)
