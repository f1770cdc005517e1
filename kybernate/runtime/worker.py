"""gunicorn's worker of threads, of which none waits for who has sent no request."""

from __future__ import annotations

import contextlib
import select
import ssl
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
from gunicorn.http import get_parser
from gunicorn.http.errors import ParseException
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers import gthread

if TYPE_CHECKING:
    import socket
    from collections import deque

MOST_CONNECTIONS = 1000
"""Beside those over HTTP/2, which have a limit of their own."""

_SPARE = 50
"""So many fewer may wait, so that who comes can be let in before somebody else has gone."""

_LOOK_S = 0.5
"""Between two looks for those whose time is over."""

_LINGER_MS = 20
"""For which a thread waits for a connection's next call. To hand the connection to gunicorn's loop
and back in between costs more than most calls do."""


class Worker(gthread.ThreadWorker):  # type: ignore[misc]
    """Has no thread wait for a handshake, and always has room for one more connection. Says in
    JSON, too, what is wrong with a request that is no HTTP."""

    _looked = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lingering = threading.BoundedSemaphore(max(1, self.cfg.threads // 2))
        self._queued: set[Any] = set()

    def accept(self, listener: socket.socket) -> None:
        """Called by gunicorn for each who comes."""
        if self.nr_conns >= MOST_CONNECTIONS - _SPARE:
            self._make_room()
        super().accept(listener)

    def enqueue_req(self, conn: Any) -> None:
        """Called by gunicorn when something may have come, first for who is new."""
        conn.queued = time.monotonic()
        if conn.timeout is None:
            conn.until = conn.queued + self.app.request_s
        self._queued.add(conn)
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        """Called by gunicorn in a thread."""
        self._queued.discard(conn)
        if conn.initialized:
            kept = super().handle(conn)
            while kept is True and self._another(conn.sock):
                kept = super().handle(conn)
            return kept
        now = time.monotonic()
        # It is no fault of the caller's if all threads were at work.
        conn.until += now - conn.queued
        if now > conn.until:
            return False
        try:
            # What has come of a handshake is all that is looked at; then it waits without a thread.
            if conn.wait_for_data(0):
                _shake_hands(conn)
                if not self.alive:
                    return super().handle(conn)
        except ssl.SSLWantReadError:
            conn.data_ready = False
        except ssl.SSLError as error:
            self.handle_error(None, conn.sock, conn.client, error)
            return False
        except OSError as error:
            self.log.debug("a caller has gone: %s", error)
            return False
        return gthread._DEFER  # noqa: SLF001 - what it has its own threads say

    def _another(self, sock: ssl.SSLSocket) -> bool:
        """Whether the next call comes soon. At most half of the threads wait for that, and none
        while somebody waits for a thread."""
        if not self.alive or self._queued:
            return False
        # What TLS has read already shows on no descriptor.
        if sock.pending():
            return True
        if not self._lingering.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(_LINGER_MS))
        finally:
            self._lingering.release()

    def murder_pending(self) -> None:
        """Called by gunicorn now and then, to end those who have sent no request in time."""
        now = time.monotonic()
        if now > self._looked + _LOOK_S:
            self._looked = now
            for conn in tuple(self.pending_conns):
                if now > conn.until:
                    self._end(conn, self.pending_conns)
        super().murder_pending()

    def _make_room(self) -> None:
        """End a connection of the caller who has most: one that never had a request, if any."""
        lists = (self.pending_conns, self.keepalived_conns)
        most = Counter(conn.client[0] for waiting in lists for conn in waiting).most_common(1)
        for waiting in lists:
            for conn in tuple(waiting):
                if conn.client[0] == most[0][0]:
                    self._end(conn, waiting)
                    super().murder_pending()
                    super().murder_keepalived()
                    return

    def _end(self, conn: Any, waiting: deque[Any]) -> None:
        # gunicorn looks at the first alone.
        conn.timeout = 0.0
        waiting.remove(conn)
        waiting.appendleft(conn)

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


def _shake_hands(conn: Any) -> None:
    """Continue with what has come. Raises OSError; ssl.SSLWantReadError while it isn't all."""
    if not isinstance(conn.sock, ssl.SSLSocket):
        conn.sock = ssl_wrap_socket(conn.sock, conn.cfg)
    conn.sock.setblocking(False)
    conn.sock.do_handshake()
    conn.parser = get_parser(conn.cfg, conn.sock, conn.client)
    conn.init()


def _tell(client: socket.socket, status: str, sentence: str) -> None:
    body = orjson.dumps({"error": sentence, "Error": sentence})
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with contextlib.suppress(OSError):
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
