"""Sees TCP that comes to some ports of a network namespace, before any rule drops it."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ETH_P_ALL = 0x0003
_ATTACH_FILTER = 26
_MOST_PORTS = 1000
_MOST_EARLIER = 10_000
_READ = 96
"""Bytes of a packet: its headers."""
_SYN, _ACK = 0x02, 0x10

_AD = 0xFFFFF000
_PROTOCOL, _PACKET_TYPE, _INTERFACE = _AD, _AD + 4, _AD + 8
_OUTGOING, _LOOPBACK = 4, 1
_LOAD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_HALF_AT_X, _X_HEADER = 0x48, 0xB1
_EQUAL, _JUMP, _RETURN = 0x15, 0x05, 0x06
_IPV4, _IPV6 = 0x0800, 0x86DD


def open_tap(ports: Iterable[int]) -> socket.socket:
    """A socket of the calling thread's namespace that reads what comes to these local ports; to
    any, if there are too many. Never blocks. Needs CAP_NET_RAW; raises OSError."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
    try:
        tap.setblocking(False)
        _attach(tap, _program(sorted(set(ports))))
        for _ in range(_MOST_EARLIER):
            # What came before there was a filter.
            if not read(tap):
                break
    except BaseException:
        tap.close()
        raise
    return tap


def calls(packet: bytes) -> bool:
    """Whether a packet that `open_tap` let through opens a connection or carries data."""
    if not packet:
        return False
    if packet[0] >> 4 == 4:
        offset, size = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
    else:
        offset, size = 40, 40 + int.from_bytes(packet[4:6], "big")
    if len(packet) < offset + 14:
        return False
    header, flags = (packet[offset + 12] >> 4) * 4, packet[offset + 13]
    return flags & (_SYN | _ACK) == _SYN or size > offset + header


def port_of(packet: bytes) -> int:
    """The local port that a packet came to."""
    offset = (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else 40
    return int.from_bytes(packet[offset + 2 : offset + 4], "big")


def read(tap: socket.socket) -> bytes:
    """The beginning of the next packet; empty if there is none."""
    try:
        return tap.recv(_READ)
    except BlockingIOError:
        return b""


def _program(ports: list[int]) -> list[tuple[int, int, int, int]]:
    """Classic BPF: (code, jump if true, jump if false, value)."""
    drop = (_RETURN, 0, 0, 0)
    head = [
        *((_LOAD, 0, 0, _PACKET_TYPE), (_EQUAL, 0, 1, _OUTGOING), drop),
        *((_LOAD, 0, 0, _INTERFACE), (_EQUAL, 0, 1, _LOOPBACK), drop),
        *((_LOAD_HALF, 0, 0, _PROTOCOL), (_EQUAL, 5, 0, _IPV4), (_EQUAL, 1, 0, _IPV6), drop),
        *((_LOAD_BYTE, 0, 0, 6), (_EQUAL, 6, 0, socket.IPPROTO_TCP), drop),
        *((_LOAD_BYTE, 0, 0, 9), (_EQUAL, 1, 0, socket.IPPROTO_TCP), drop),
        *((_X_HEADER, 0, 0, 0), (_LOAD_HALF_AT_X, 0, 0, 2), (_JUMP, 0, 0, 1)),
        (_LOAD_HALF, 0, 0, 42),
    ]
    take = (_RETURN, 0, 0, _READ)
    if len(ports) > _MOST_PORTS:
        return [*head, take]
    return [*head, *(step for port in ports for step in ((_EQUAL, 0, 1, port), take)), drop]


def _attach(tap: socket.socket, program: Iterable[tuple[int, int, int, int]]) -> None:
    steps = list(_packed(program))
    code = ctypes.create_string_buffer(b"".join(steps))
    fprog = struct.pack("HP", len(steps), ctypes.addressof(code))
    tap.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, fprog)


def _packed(program: Iterable[tuple[int, int, int, int]]) -> Iterator[bytes]:
    for step in program:
        yield struct.pack("HBBI", *step)
