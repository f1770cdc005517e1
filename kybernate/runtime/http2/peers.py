"""All connections of HTTP/2 of a server: one thread reads them, a pool answers."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

from .connection import MOST_UNSENT, Connection

if TYPE_CHECKING:
    from collections.abc import Container
    from wsgiref.types import WSGIApplication

    from .connection import Socket
    from .conversation import Request

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
"""Above it, whoever has most loses the one that was silent longest: an idle one costs a descriptor
and some 100 KiB."""

IDLE_S = 120.0
"""Seconds for which a connection is kept on which nothing comes."""

SEND_S = 10.0
"""Seconds that a peer may take to read what it is sent."""

_TICK_S = 0.5
_QUICK_BYTES = 1 << 20
"""Larger bodies are left to the pool, whatever is asked."""


@dataclass(frozen=True, slots=True)
class Http2:
    """What a service says of its calls."""

    most_body: int
    """Bytes that the body of a call may have."""
    quick: Container[str]
    """Paths whose calls wait for nothing; the thread that reads answers them."""


class Peers:
    """The connections. A peer that is slow, or hostile, keeps no thread from others: what can't be
    read or sent at once is left for later."""

    def __init__(self, options: Http2, threads: int, app: WSGIApplication) -> None:
        self._options = options
        self._app = app
        self._pool = ThreadPoolExecutor(threads, "http2")
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._new: SimpleQueue[Socket] = SimpleQueue()
        self._connections: dict[Connection, int] = {}
        """With what each is waiting for, as the selector has it."""
        self._leaving = 0.0
        """Since when (monotonic, s), or 0."""
        self._thread = threading.Thread(target=self._run, name="http2-read", daemon=True)
        self._thread.start()

    def take(self, sock: Socket) -> None:
        """Serve this socket, after its handshake, and hang it up in the end."""
        self._new.put(sock)
        self._ring()

    def leave(self) -> None:
        """Have the peers send no more calls; those under way are answered. Safe in a signal."""
        self._leaving = self._leaving or time.monotonic()

    def stop(self, limit_s: float) -> None:
        """End once all calls are answered, or so long (s) after the peers were to leave."""
        self.leave()
        self._thread.join(max(0.0, self._leaving + limit_s - time.monotonic()))
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            self._read_all()
        except BaseException:
            # Without this thread no peer is heard any more; gunicorn starts another worker.
            log.critical("the thread that reads HTTP/2 met a fault", exc_info=True)
            os._exit(1)

    def _read_all(self) -> None:
        looked = 0.0
        ready: list[Connection] = []
        while self._connections or not self._leaving:
            events = self._selector.select(0 if ready else _TICK_S)
            now = time.monotonic()
            for key, _ in events:
                if key.data is None:
                    self._answer_bell()
                    looked = 0.0
                elif key.data not in ready:
                    ready.append(key.data)
            if now > looked + _TICK_S:
                ready, looked = list(self._connections), now
            for one in ready:
                self._attend(one, now)
            ready = [one for one in ready if one.again and one in self._connections]

    def _answer_bell(self) -> None:
        with suppress(BlockingIOError):
            self._bell.recv(4096)
        self._welcome()

    def _welcome(self) -> None:
        with suppress(Empty):
            while True:
                sock = self._new.get_nowait()
                if self._leaving:
                    sock.hang_up()
                    continue
                one = Connection(sock, self._options.most_body, self._ring)
                self._connections[one] = selectors.EVENT_READ
                self._selector.register(sock, selectors.EVENT_READ, one)
                if len(self._connections) > MOST_CONNECTIONS:
                    self._make_room()

    def _make_room(self) -> None:
        of = Counter(one.caller for one in self._connections)
        most = of.most_common(1)[0][0]
        its = (one for one in self._connections if one.caller == most)
        silent = min(its, key=lambda one: one.heard)
        silent.end()
        self._wait_for(silent)

    def _attend(self, one: Connection, now: float) -> None:
        try:
            for request in one.read():
                self._serve(one, request)
            if self._leaving:
                one.leave()
            if now > one.heard + IDLE_S or now > one.stuck + SEND_S:
                log.debug("a connection ended: nothing was sent or read on it for long")
                one.end()
        except OSError as error:
            log.debug("a connection ended: %s", error)
            one.end()
        except Exception:
            log.exception("a connection ended by a fault of ours")
            one.end()
        self._wait_for(one)

    def _wait_for(self, one: Connection) -> None:
        if one.is_over():
            del self._connections[one]
            self._selector.unregister(one.sock)
            one.sock.hang_up()
            return
        waits = selectors.EVENT_WRITE if one.unsent else 0
        waits |= selectors.EVENT_READ if one.unsent <= MOST_UNSENT else 0
        if waits != self._connections[one]:
            self._connections[one] = waits
            self._selector.modify(one.sock, waits, one)

    def _serve(self, one: Connection, request: Request) -> None:
        if request.path in self._options.quick and len(request.body) <= _QUICK_BYTES:
            one.serve(request, self._app)
        else:
            self._pool.submit(one.serve, request, self._app)

    def _ring(self) -> None:
        with suppress(BlockingIOError):
            self._rope.send(b"!")
