"""gunicorn's threaded worker, on whose connections the next call is waited for a little.

The kube-scheduler asks again within milliseconds on the same connection. Handing it to the poller
and back to a thread in between costs more than most calls do. Nor is it made to open connections
for binds that overlap: all its calls share one, over HTTP/2 (see docs/design/0026-http2.md).
"""

from __future__ import annotations

import select
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from gunicorn import http
from gunicorn.sock import ssl_wrap_socket

from extender.http.app import QUICK
from kybernate.runtime.deadlines import Worker
from kybernate.runtime.http2 import Connection

if TYPE_CHECKING:
    import ssl

LINGER_MS = 20
"""Milliseconds that a thread waits for a connection's next call."""


class LingeringWorker(Worker):
    """At most half of the threads wait so, and none while connections wait for a thread."""

    most_body = 1 << 27
    """How many bytes a call over HTTP/2 may have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = threading.BoundedSemaphore(max(1, self.cfg.threads // 2))

    def handle(self, conn: Any) -> Any:
        """Answer the connection's calls as long as one follows another. Called by gunicorn."""
        if _is_http2(conn):
            return self.handle_http2(conn)
        conn.init = partial(self._init, conn)
        while True:
            kept = super().handle(conn)
            # False and gunicorn's sentinel for "nothing came" go back as they are.
            if kept is not True or _is_http2(conn) or not self._another(conn.sock):
                return kept

    def handle_http2(self, conn: Any) -> bool:
        """The same for a connection of HTTP/2, on which calls overlap."""
        peer: Connection = conn.parser
        try:
            while True:
                for request in peer.read():
                    if request.path in QUICK:
                        peer.serve(request, self.wsgi)
                    else:
                        self.tpool.submit(peer.serve, request, self.wsgi)
                if not self.alive:
                    peer.leave()
                if peer.is_over():
                    return False
                if not self._waits_for(conn.sock):
                    return True
        except OSError as error:
            self.log.debug("a connection ended: %s", error)
            peer.end()
            return False

    def _init(self, conn: Any) -> None:
        """What gunicorn does with a new connection, but for HTTP/2, which we speak ourselves."""
        if conn.initialized:
            return
        conn.initialized = True
        conn.sock.setblocking(True)
        conn.sock = ssl_wrap_socket(conn.sock, conn.cfg)
        if conn.sock.selected_alpn_protocol() == "h2":
            conn.is_http2 = True
            conn.parser = Connection(conn.sock, self.most_body)
        else:
            conn.parser = http.get_parser(conn.cfg, conn.sock, conn.client)

    def _another(self, sock: Any) -> bool:
        if self.tpool._work_queue.qsize():  # noqa: SLF001 - it has no other way
            return False
        # What TLS has read already shows on no descriptor.
        if self.alive and getattr(sock, "pending", int)():
            return True
        return self._waits_for(sock)

    def _waits_for(self, sock: ssl.SSLSocket) -> bool:
        """Whether something comes on the socket soon, if there is a thread to wait for it."""
        if not self.alive or not self._places.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(LINGER_MS))
        finally:
            self._places.release()


def _is_http2(conn: Any) -> bool:
    return isinstance(getattr(conn, "parser", None), Connection)
