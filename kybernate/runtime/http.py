"""The HTTPS server of extender, webhook and registry: gunicorn with one worker of many threads.

One process, since what is known of the cluster is in memory; threads, since connections stay open:
a TLS handshake costs more than most calls. Of gunicorn only settings, hooks, the methods that its
own workers override, one constant, and its two lists of those whom no thread serves are used.

gunicorn gives no deadline to a request. Whoever opens as many connections as there are threads and
then sends nothing more, or reads nothing, would keep every other caller out. So would who opens as
many as there may be, or sends a handshake byte by byte: no thread waits for those, and where room
is short the one who has most connections loses one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from gunicorn.app.base import BaseApplication

from kybernate.dataclass import dataclass

from .worker import MOST_CONNECTIONS, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from wsgiref.types import WSGIApplication

    from kybernate.runtime.http2 import Http2, Peers

KEEP_ALIVE_S = 120
"""Seconds for which an idle connection is kept: longer than Go's client keeps it, so that the
client closes first."""

_DESCRIPTORS = 4096
"""For all connections, and what a service has open itself; without one more it would end."""

_END_S = 5
"""Seconds that the service's own end may take, once its calls have ended."""


@dataclass(frozen=True, slots=True)
class Listening:
    """How a service is served."""

    name: str
    """The process's name, such as kyb-registry."""
    address: str
    """host:port."""
    threads: int
    """Calls that are answered at the same time."""
    request_s: float
    """Seconds in which a request must arrive, TLS handshake included, and its answer be read."""
    stop_s: int
    """Seconds in which calls under way may end after SIGTERM."""
    log_level: str
    http2: Http2 | None = None
    """Calls over HTTP/2 overlap on one connection; None: it is not offered."""


class Server(BaseApplication):  # type: ignore[misc]
    """Serves until SIGTERM; calls under way are answered, idle connections are closed."""

    def __init__(
        self,
        listening: Listening,
        context: Callable[[], ssl.SSLContext],
        serving: AbstractContextManager[WSGIApplication],
    ) -> None:
        """`context` is asked for with each connection. `serving` is entered and left in the worker,
        after gunicorn has forked it, and gives the application; it must leave within seconds."""
        self._listening = listening
        self.request_s = listening.request_s
        self._tls = context
        self._serving = serving
        self._entered = contextlib.ExitStack()
        self._connections: dict[int, ref[DeadlineSocket]] = {}
        limits = {"limit_s": listening.request_s, "connections": self._connections}
        self._socket_class: type[ServedSocket] = type("ServedSocket", (ServedSocket,), limits)
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn. Nothing comes from its own files or environment."""
        listening = self._listening
        for name, value in {
            "bind": [listening.address],
            "workers": 1,
            "worker_class": Worker,
            "threads": listening.threads,
            "worker_connections": MOST_CONNECTIONS,
            "keepalive": KEEP_ALIVE_S,
            # When this is over the worker is killed, and so must have ended its calls before.
            "graceful_timeout": listening.stop_s + _END_S,
            "post_worker_init": self._begin,
            # They only tell gunicorn that this is TLS; the hook below says which.
            "certfile": os.devnull,
            "keyfile": os.devnull,
            "ssl_context": self._context,
            # Nobody steers us by a socket in root's home.
            "control_socket_disable": True,
            "proc_name": listening.name,
            "loglevel": listening.log_level.lower(),
            "worker_exit": lambda _server, _worker: self._entered.close(),
        }.items():
            self.cfg.set(name, value)

    def load(self) -> WSGIApplication:
        """Called by gunicorn in the worker."""
        _allow_descriptors(_DESCRIPTORS)
        app = self._entered.enter_context(self._serving)
        listening = self._listening
        if listening.http2 is not None:
            from kybernate.runtime.http2 import Peers  # noqa: PLC0415 - not every image has h2

            peers = Peers(listening.http2, listening.threads, app)
            self._entered.callback(peers.stop, listening.stop_s)
            self._socket_class.peers = peers
        return _closing(app)

    def _begin(self, worker: Any) -> None:
        """Called by gunicorn in the worker, whose SIGTERM it handles by then."""
        worker.cfg.set("graceful_timeout", self._listening.stop_s)
        handled = signal.getsignal(signal.SIGTERM)

        def leave(number: int, frame: Any) -> None:
            if callable(handled):
                handled(number, frame)
            self._leave()
            for waiting in tuple(worker.pending_conns):
                # Nothing has come on it yet; gunicorn finds it ended.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(waiting.sock, socket.SHUT_RDWR)

        signal.signal(signal.SIGTERM, leave)

    def _leave(self) -> None:
        """No idle connection is to hold the worker up until it is killed."""
        if self._socket_class.peers is not None:
            self._socket_class.peers.leave()
        for found in list(self._connections.values()):
            connection = found()
            if connection is not None:
                connection.end_if_idle()

    def _context(self, _config: object, _default: object) -> ssl.SSLContext:
        context = self._tls()
        context.sslsocket_class = self._socket_class
        if self._listening.http2 is not None:
            context.set_alpn_protocols(["h2", "http/1.1"])
        return context


def peer_certificate(environ: Mapping[str, Any]) -> Mapping[str, Any]:
    """The verified certificate of a request's peer, as `ssl` shows it; empty if it has none."""
    return environ["gunicorn.socket"].getpeercert() or {}


class DeadlineSocket(ssl.SSLSocket):
    """A server's connection on which each request and each answer has `limit_s`, as a whole.

    The time of a request begins as its first byte is asked for, that of an answer as it is first
    sent: what the application takes in between is its own.
    """

    limit_s = 10.0
    connections: ClassVar[dict[int, ref[DeadlineSocket]]] = {}
    """Those of the server by descriptor; a closed one stays until its descriptor is used again."""
    _answering = False
    """Whether what was done last was to send."""
    _deadline = 0.0
    _certificate: Any = None

    def getpeercert(self, binary_form: bool = False) -> Any:
        """As ever; the peer's names are read once, since a connection's certificate stays."""
        if binary_form:
            return super().getpeercert(binary_form=True)
        if not self._certificate:
            self._certificate = super().getpeercert()
        return self._certificate

    def do_handshake(self, block: bool = False) -> None:
        """As ever, but in time; what is read next is part of the same request."""
        if not self._deadline:
            self.connections[self.fileno()] = ref(self)
            self._begin()
        self._in_time(super().do_handshake, block)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 - the base's name
        """As ever, but in time."""
        if self._answering:
            self._answering = False
            self._begin()
        return self._in_time(super().read, len, buffer)

    def send(self, data: Any, flags: int = 0) -> int:
        """As ever, but in time."""
        if not self._answering:
            self._answering = True
            self._begin()
        sent: int = self._in_time(super().send, data, flags)
        return sent

    def end_if_idle(self) -> None:
        """End the connection unless a request is on its way, or is answered by a thread."""
        # One that waits for its next request doesn't block; a thread that has it makes it do so.
        if self.fileno() < 0 or self.gettimeout() != 0.0:
            return
        poll = select.poll()
        poll.register(self, select.POLLIN)
        if not poll.poll(0):
            with contextlib.suppress(OSError):
                # Not as SSLSocket does it, beside a thread that may have begun to read.
                socket.socket.shutdown(self, socket.SHUT_RDWR)

    def _begin(self) -> None:
        self._deadline = time.monotonic() + self.limit_s

    def _in_time(self, act: Callable[..., Any], *arguments: Any) -> Any:
        if self.gettimeout() != 0.0:
            # A timeout of 0 would mean not to wait at all, and to say so by another error.
            self.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            return act(*arguments)
        except TimeoutError as error:
            # What gunicorn takes for a caller who has gone: nothing to say, nothing to log.
            raise ConnectionResetError(errno.ECONNRESET, "the caller took too long") from error


class ServedSocket(DeadlineSocket):
    """A connection that is served by gunicorn, or over HTTP/2 by `peers`.

    gunicorn speaks HTTP/2, too, but answers the calls of a connection one after the other. So it
    is not told of it: as it first reads, the connection goes to `peers`, and looks ended to it.
    """

    peers: ClassVar[Peers | None] = None
    _given = False

    def selected_alpn_protocol(self) -> str | None:
        """None: nothing that gunicorn need know."""
        return None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As ever, but for HTTP/2."""
        if self._given:
            # Peers has deadlines of its own, and waits for nothing here.
            data: bytes = ssl.SSLSocket.read(self, buflen)
            return data
        if self.peers is None or super().selected_alpn_protocol() != "h2":
            return super().recv(buflen, flags)
        self._given = True
        self.peers.take(self)
        return b""

    def send(self, data: Any, flags: int = 0) -> int:
        """As ever, but for HTTP/2."""
        return ssl.SSLSocket.send(self, data) if self._given else super().send(data, flags)

    def end_if_idle(self) -> None:
        """As ever, but for HTTP/2, where calls may be under way that can't be seen here."""
        if not self._given:
            super().end_if_idle()

    def close(self) -> None:
        """As ever, unless it is no more gunicorn's."""
        if not self._given:
            super().close()

    def hang_up(self) -> None:
        """Close it, whosever it is."""
        super().close()


def _allow_descriptors(least: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = least if hard == resource.RLIM_INFINITY else min(least, hard)
    if soft != resource.RLIM_INFINITY and soft < least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))


def _closing(app: WSGIApplication) -> WSGIApplication:
    """The application, with a connection closed after each 503: behind a Kubernetes Service the
    next one may lead to the replica that can answer. gunicorn drops an application's own header
    that says so."""

    def wrapped(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
            if status.startswith("503 "):
                start_response.__self__.force_close()
            return start_response(status, headers, error)

        return app(environ, start)

    return wrapped
