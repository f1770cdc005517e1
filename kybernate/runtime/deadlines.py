"""What gunicorn's threaded TLS servers lack: a deadline for each request, and errors in JSON.

Without a deadline, whoever can open as many connections as there are threads and then says nothing
more keeps every other caller out: a thread waits for the rest of a handshake, or of a body, for
ever.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ssl
import time
from typing import TYPE_CHECKING, Any

import orjson
from gunicorn.http.errors import ParseException
from gunicorn.workers import gthread

if TYPE_CHECKING:
    import socket


class DeadlineSocket(ssl.SSLSocket):
    """A socket on which a request, its handshake included, is read and answered in `limit_s`."""

    limit_s = 10.0
    _deadline = 0.0
    _certificate: Any = None

    def getpeercert(self, binary_form: bool = False) -> Any:
        """As ever; the peer's names are read once, since a connection's certificate stays."""
        if binary_form:
            return super().getpeercert(binary_form=True)
        if not self._certificate:
            self._certificate = super().getpeercert()
        return self._certificate

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


class Worker(gthread.ThreadWorker):  # type: ignore[misc]
    """Says in JSON, too, what is wrong with a request that is no HTTP."""

    def handle_error(
        self, req: object, client: socket.socket, addr: tuple[str, int] | None, exc: Exception
    ) -> None:
        """Called by gunicorn for what came before the application, or went past it."""
        caller = addr[0] if addr else "?"
        if isinstance(exc, ssl.SSLError):
            self.log.warning("no TLS from %s: %s", caller, exc)
        elif isinstance(exc, ParseException):
            self.log.warning("no request from %s: %s", caller, repr(exc)[:500])
            _tell(client, "400 Bad Request", f"this is no HTTP request of the API: {exc}"[:500])
        else:
            self.log.error("a request from %s met a fault", caller, exc_info=exc)
            _tell(client, "500 Internal Server Error", "a fault of its own; the log says which")


def _tell(client: socket.socket, status: str, sentence: str) -> None:
    body = orjson.dumps({"error": sentence, "Error": sentence})
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with contextlib.suppress(OSError):
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def limit_requests(context: ssl.SSLContext, limit_s: float) -> None:
    """Have every connection of this server's context keep the deadline."""
    context.sslsocket_class = _socket_class(limit_s)
    # A new connection on which nothing comes would hold a thread for five seconds; so it goes to
    # the poller at once.
    gthread.DEFAULT_WORKER_DATA_TIMEOUT = 0.0


@functools.cache
def _socket_class(limit_s: float) -> type[DeadlineSocket]:
    return type("DeadlineSocket", (DeadlineSocket,), {"limit_s": limit_s})


def _given_up() -> ConnectionResetError:
    # The error that gunicorn takes for a caller who has gone: nothing to say, nothing to log.
    return ConnectionResetError(errno.ECONNRESET, "the request took too long")
