"""What every service does around its own work: logs, stop signals, probes and metrics.

Probes and metrics are on a plain port of their own, so that kubelet and Prometheus need no
client certificate.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, make_wsgi_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROBE_S = 5.0
"""Seconds that a probe or a scrape may take, from its connection to the last byte of its answer."""

MOST_PROBES = 64
"""Connections at a time; the oldest makes room for one more. Each costs a thread, and most probes
are answered within a millisecond."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(level: str = "INFO") -> None:
    """Log lines go to stderr, one per event.

    What `_FORMAT` doesn't show isn't gathered (logging's HOWTO, "Optimization"): a swap logs ten
    lines while requests wait.
    """
    logging._srcfile = None  # noqa: SLF001 - as its HOWTO says
    # Not so logProcesses: gunicorn's own format shows the process.
    logging.logThreads = logging.logMultiprocessing = False
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=_FORMAT)


def stop_event() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    event = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: event.set())
    return event


class ProbeServer:
    """`/healthz`, `/readyz` and `/metrics` on a plain port, in a daemon thread."""

    def __init__(self, host: str, port: int, not_ready: Callable[[], str | None]) -> None:
        """`not_ready` returns a sentence while the service can't do its work, else None."""
        self._not_ready = not_ready
        self._metrics = make_wsgi_app(REGISTRY)
        self._server = make_server(host, port, self._app, _Server, _QuietHandler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            result: Iterable[bytes] = self._metrics(environ, start_response)
            return result
        status, text = self._answer(path)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    def _answer(self, path: str) -> tuple[str, str]:
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/readyz":
            reason = self._not_ready()
            return ("503 Service Unavailable", f"{reason}\n") if reason else ("200 OK", "ok\n")
        return "404 Not Found", "try /healthz, /readyz or /metrics\n"


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each of MOST_PROBES connections, which is cut off after PROBE_S: anybody may
    connect here, and a probe that is not answered in time ends the process."""

    daemon_threads = True
    request_queue_size = MOST_PROBES
    """Who finds no place among those to be accepted tries again after a second: then a probe's time
    is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadlines: dict[socket.socket, float] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in tuple(self._deadlines)[: 1 - MOST_PROBES]:
            _cut_off(oldest)
        self._deadlines[request] = time.monotonic() + PROBE_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The caller has gone, or was cut off; faults in an answer are logged where it is made."""

    def service_actions(self) -> None:
        """Called twice a second."""
        now = time.monotonic()
        for connection, deadline in tuple(self._deadlines.items()):
            if deadline < now:
                _cut_off(connection)


def _cut_off(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Probes every second would drown the log."""
