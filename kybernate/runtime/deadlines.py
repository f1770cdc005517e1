"""A deadline for each request on gunicorn's threaded TLS servers, which have none of their own.

Without it, whoever can open as many connections as there are threads and then says nothing more
keeps every other caller out: a thread waits for the rest of a handshake, or of a body, for ever.
"""

from __future__ import annotations

import errno
import ssl
import time
from typing import Any

from gunicorn.workers import gthread


class DeadlineSocket(ssl.SSLSocket):
    """A socket on which a request, its handshake included, is read and answered in `limit_s`."""

    limit_s = 10.0
    _deadline = 0.0

    def setblocking(self, flag: bool) -> None:
        """gunicorn calls this as a thread takes the connection up for a request."""
        self._deadline = time.monotonic() + self.limit_s
        super().settimeout(self.limit_s if flag else 0.0)

    def do_handshake(self, block: bool = False) -> None:
        """As ever, but in time."""
        if not self._deadline:
            self.setblocking(True)
        self._hurry()
        try:
            super().do_handshake(block)
        except TimeoutError as error:
            raise _given_up() from error

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As ever, but in time."""
        self._hurry()
        try:
            return super().recv(buflen, flags)
        except TimeoutError as error:
            raise _given_up() from error

    def sendall(self, data: Any, flags: int = 0) -> None:
        """As ever, but in time."""
        self._hurry()
        try:
            super().sendall(data, flags)
        except TimeoutError as error:
            raise _given_up() from error

    def _hurry(self) -> None:
        if self.gettimeout() != 0.0:
            # A timeout of 0 would mean not to wait at all, and to say so by another error.
            super().settimeout(max(0.001, self._deadline - time.monotonic()))


def limit_requests(context: ssl.SSLContext, limit_s: float) -> None:
    """Have every connection of this server's context keep the deadline."""
    context.sslsocket_class = type("DeadlineSocket", (DeadlineSocket,), {"limit_s": limit_s})
    # A new connection on which nothing comes would hold a thread for five seconds; so it goes to
    # the poller at once.
    gthread.DEFAULT_WORKER_DATA_TIMEOUT = 0.0


def _given_up() -> ConnectionResetError:
    # The error that gunicorn takes for a caller who has gone: nothing to say, nothing to log.
    return ConnectionResetError(errno.ECONNRESET, "the request took too long")
