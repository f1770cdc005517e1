"""What arrives by TCP at a network namespace, seen before any rule drops it.

Only what asks for something counts: the opening of a connection, and bytes. What merely keeps a
connection alive, or ends one, wakes nobody.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from contextlib import suppress

_ALL = socket.htons(0x0003)
_ATTACH_FILTER = 26
_SNAP = 128
_SYN, _ACK, _RST = 0x02, 0x10, 0x04
_IPV4, _IPV6 = 0x0800, 0x86DD
_OUTGOING = 4
_ANCILLARY = 0xFFFFF000
_LOAD, _LOAD_BYTE, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x15, 0x06

_PROGRAM = (
    (_LOAD, 0, 0, _ANCILLARY + 4),  # kind of packet
    (_IF_EQUAL, 9, 0, _OUTGOING),
    (_LOAD, 0, 0, _ANCILLARY + 8),  # interface
    (_IF_EQUAL, 7, 0, 1),  # lo
    (_LOAD, 0, 0, _ANCILLARY),  # protocol
    (_IF_EQUAL, 0, 2, _IPV4),
    (_LOAD_BYTE, 0, 0, 9),
    (_IF_EQUAL, 4, 3, socket.IPPROTO_TCP),
    (_IF_EQUAL, 0, 2, _IPV6),
    (_LOAD_BYTE, 0, 0, 6),
    (_IF_EQUAL, 1, 0, socket.IPPROTO_TCP),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _SNAP),
)


def open_tap() -> socket.socket:
    """A socket that gets every TCP packet which comes to this namespace by another interface than
    lo, from its IP header on. Raises OSError."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _ALL)
    try:
        code = b"".join(struct.pack("=HBBI", *one) for one in _PROGRAM)
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HL", len(_PROGRAM), ctypes.addressof(buffer))
        tap.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        with suppress(BlockingIOError):
            while True:
                tap.recv(1)  # unfiltered still
    except BaseException:
        tap.close()
        raise
    return tap


def understand(packet: bytes) -> tuple[str, int, bool] | None:
    """(sender, port that it is for, whether it asks for something); None if it's cut off."""
    try:
        source, transport, length = _network(packet)
        sender, port, _, _, offset, flags = struct.unpack_from(">HHIIBB", transport)
    except (struct.error, ValueError, IndexError):
        return None
    payload = length - (offset >> 4) * 4
    opens = bool(flags & _SYN) and not flags & _ACK
    return f"{source}:{sender}", port, not flags & _RST and (opens or payload > 0)


def _network(packet: bytes) -> tuple[str, bytes, int]:
    """(address of the sender, TCP header, bytes of TCP header and payload)."""
    if packet[0] >> 4 == 4:
        size = (packet[0] & 15) * 4
        (total,) = struct.unpack_from(">H", packet, 2)
        return str(ipaddress.IPv4Address(packet[12:16])), packet[size:], total - size
    (length,) = struct.unpack_from(">H", packet, 4)
    return f"[{ipaddress.IPv6Address(packet[8:24])}]", packet[40:], length
