"""Holds the first packets of connections to a shut gate, and lets them go once it is opened.

A packet that is dropped is sent again by its client's kernel after a second; one that waits in a
queue of the kernel's continues at once. What is held is lost with the socket, and is sent again
then. The socket belongs to the namespace in which it was made.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress

from kybernate.adapters.arrivals import nftables
from kybernate.adapters.arrivals.closing import close_aside

MOST = 128
"""Packets that are held at most; others are sent again by their clients."""

_NETLINK_NETFILTER = 12
_ANSWER = 2.0
_BUFFER = 1 << 16
_SUBSYSTEM = 3 << 8
_PACKET, _CONFIG, _VERDICT_OF_ALL = 0, 2, 3
_HEADER, _FAMILY = struct.Struct("=IHHII"), struct.Struct(">BBH")
_COMMAND, _PARAMETERS, _MOST = 1, 2, 3
_VERDICT = 2
_BIND, _UNBIND, _NO_CONTENT, _ACCEPT = 1, 2, 1, 1
_LAST = 0x7FFFFFFF
"""The number of no packet: those that are held have lower ones."""


def hold() -> socket.socket:
    """From now on what is queued in the calling thread's namespace is held. Blocks for at most two
    seconds; raises OSError, as where the kernel has no such queue, or somebody has this one."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    try:
        netlink.settimeout(_ANSWER)
        netlink.bind((0, 0))
        nftables.ask(netlink, _command(_BIND))
        how = nftables.attribute(_PARAMETERS, struct.pack(">IB", 0, _NO_CONTENT))
        nftables.ask(netlink, _message(_CONFIG, how + nftables.number(_MOST, MOST)))
        netlink.setblocking(False)
    except BaseException:
        close_aside(netlink)
        raise
    return netlink


def let_go(netlink: socket.socket) -> int:
    """What is held continues behind the rule that queued it; how many packets. Never blocks. Raises
    OSError."""
    count = _told(netlink)
    verdict = nftables.attribute(_VERDICT, struct.pack(">II", _ACCEPT, _LAST))
    netlink.send(_message(_VERDICT_OF_ALL, verdict))
    return count + _told(netlink)


def drop(netlink: socket.socket) -> None:
    """Hold nothing any more; what is held is lost. The socket's close may come later, and the queue
    is another's to take at once. Never blocks."""
    with suppress(OSError):
        netlink.send(_command(_UNBIND))
    close_aside(netlink)


def _told(netlink: socket.socket) -> int:
    """Packets of which the kernel has told. Raises what it complains of."""
    count = 0
    with suppress(BlockingIOError):
        while True:
            data = netlink.recv(_BUFFER)
            _, kind, *_ = _HEADER.unpack_from(data)
            if kind == _SUBSYSTEM | _PACKET:
                count += 1
            elif (code := -int.from_bytes(data[16:20], "little", signed=True)) not in (
                0,
                errno.ENOENT,  # nothing is held
            ):
                raise OSError(code, os.strerror(code))
    return count


def _command(command: int) -> bytes:
    data = nftables.attribute(_COMMAND, struct.pack(">BxH", command, 0))
    return _message(_CONFIG, data)


def _message(kind: int, body: bytes) -> bytes:
    return nftables.message(_SUBSYSTEM | kind, _FAMILY.pack(0, 0, nftables.QUEUE) + body)
