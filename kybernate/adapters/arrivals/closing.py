"""Sockets whose close waits for the kernel: 5 to 35 ms, until no processor can still see them.

A packet socket's does, and that of a netlink socket after a table of packet rules was removed.
Nothing depends on it: the wait is a thread's own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


def close_aside(one: socket.socket) -> None:
    """Let go of a socket that nobody reads from any more; quick."""
    threading.Thread(target=one.close, name="closing", daemon=True).start()
