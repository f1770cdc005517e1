"""Takes a network namespace off the network, for good: all its interfaces but loopback go down.

Rules would let raw packets out; an interface that is down lets nothing pass. Who lacks
CAP_NET_ADMIN in the namespace can't bring it up again.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP, _LOOPBACK = 0x1, 0x8
_REQUEST = "16sh14x"


def cut_off() -> None:
    """In the calling thread's namespace. Blocks for microseconds; raises OSError if one of the
    interfaces stays up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            flags = _flags(asking, name)
            if flags & _UP and not flags & _LOOPBACK:
                fcntl.ioctl(asking, _SET_FLAGS, struct.pack(_REQUEST, name.encode(), flags & ~_UP))
            if flags & _UP and not flags & _LOOPBACK and _flags(asking, name) & _UP:
                raise OSError(f"interface {name} of the pod stays up")


def _flags(asking: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(asking, _GET_FLAGS, struct.pack(_REQUEST, name.encode(), 0))
    flags: int = struct.unpack(_REQUEST, answer)[1]
    return flags
