"""One readable duplicate: has somebody sent something, who, and how to say it.

Nothing is read, not even an error: that would take it from the workload.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals.duplicates import row_of

if TYPE_CHECKING:
    from kybernate.adapters.arrivals.namespace import Network
    from kybernate.adapters.arrivals.sockdiag import UnixRow
    from kybernate.adapters.arrivals.survey import Survey

_LOOPBACK = ("127.", "::1", "::ffff:127.")


async def is_own(found: Survey, network: Network, one: socket.socket, *, again: bool) -> bool:
    """Whether what is readable came from the tree itself, which was frozen in mid-talk.

    `again` as in `ports.WatchTerms`.
    """
    if one.family == socket.AF_UNIX:
        inode = os.fstat(one.fileno()).st_ino
        return _own_unix(found, (await network.diag()).unix(inode), again=again)
    if one.type == socket.SOCK_DGRAM:
        return _own_datagram(found, one)
    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    port = one.getsockname()[1]
    own = found.own_waiting(await network.unaccepted(), port)
    row = row_of(one, 0)
    return row is not None and row.unread <= own


def _own_unix(found: Survey, row: UnixRow | None, *, again: bool) -> bool:
    others = (*row.pending, *((row.peer,) if row.peer else ())) if row else ()
    if others:
        return all(inode in found.places for inode in others)
    # Who sent it is unknown. At the freeze it is most likely the tree's own talk; what an
    # agent finds that was away has rather come from outside.
    return not again


def has_input(one: socket.socket, event: int) -> bool:
    """Whether somebody sent something; a peer that closed or reset has not."""
    if not event & select.EPOLLIN or event & select.EPOLLERR:
        return False
    if one.type == socket.SOCK_DGRAM or one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return True
    unread = fcntl.ioctl(one.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(unread, "little") > 0


def _own_datagram(found: Survey, one: socket.socket) -> bool:
    try:
        _, sender = one.recvfrom(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return False
    ports = {row.local[1] for row in found.udp}
    return sender[0].startswith(_LOOPBACK) and sender[1] in ports


def words(one: socket.socket) -> str:
    """What arrived there, for people."""
    if one.family == socket.AF_UNIX:
        return f"something arrived at its Unix socket {_text(one.getsockname())}".rstrip()
    port = one.getsockname()[1]
    if one.type == socket.SOCK_DGRAM:
        return f"a datagram arrived at its UDP port {port}"
    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return f"somebody connected to its port {port}"
    with suppress(OSError):
        return f"bytes arrived from {one.getpeername()[0]} at its port {port}"
    return f"bytes arrived at its port {port}"


def _text(name: str | bytes) -> str:
    """A socket's name for people: the workload chose it, and any byte may be in it."""
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    plain = text.replace("\0", "@")
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in plain)
