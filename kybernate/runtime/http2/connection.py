"""A connection of HTTP/2: its socket, and a WSGI application that answers what comes."""

from __future__ import annotations

import logging
import math
import ssl
import sys
import threading
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

import orjson

from .conversation import Broken, Conversation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from wsgiref.types import WSGIApplication

    from .conversation import Request

    Headers = Sequence[tuple[str, str]]

log = logging.getLogger(__name__)

MOST_UNSENT = 1 << 20
"""Bytes: who makes us answer, with pings for example, and reads nothing, is heard no further."""

_CHUNK = 1 << 16
_CHUNKS = 4
"""How many are read at a time, so that others get their turn; one is a record of TLS at most."""

_NOT_OURS = {"connection", "keep-alive", "transfer-encoding", "upgrade", "proxy-connection"}


class Socket(Protocol):
    """A TLS socket, which a server may close for good."""

    def setblocking(self, flag: bool, /) -> None:
        """As `ssl.SSLSocket` does it, like all of these."""

    def fileno(self) -> int:
        """Its descriptor."""

    def getpeername(self) -> Any:
        """Whose it is; the address comes first."""

    def recv(self, buflen: int, /) -> bytes:
        """What has come."""

    def send(self, data: bytes, /) -> int:
        """How much of it was sent."""

    def hang_up(self) -> None:
        """Close it."""


class Connection:
    """One thread reads; any may answer. Nothing waits: what can't be sent at once is left in
    `unsent` for the next `read`."""

    def __init__(self, sock: Socket, most_body: int, ring: Callable[[], None]) -> None:
        """`most_body` is how many bytes a request's body may have. `ring` is called once something
        is left unsent."""
        self.sock = sock
        sock.setblocking(False)
        self.caller = _address(sock)
        """The peer's address; empty if it has gone."""
        self.again = False
        """Whether there was more to read than one `read` takes."""
        self.heard = time.monotonic()
        """When something was last read (monotonic, s)."""
        self.stuck = math.inf
        """Since when there has always been something unsent (monotonic, s)."""
        self._ring = ring
        self._talk = Conversation(most_body)
        # What OpenSSL knows of a connection is for one thread at a time.
        self._lock = threading.Lock()
        self._closed = False

    @property
    def unsent(self) -> int:
        """Bytes that are left to send. Above MOST_UNSENT nothing more is read."""
        return len(self._talk.out)

    def read(self) -> list[Request]:
        """The requests that are whole by now. Raises OSError."""
        found: list[Request] = []
        with self._lock:
            try:
                for _ in range(0 if self.unsent > MOST_UNSENT else _CHUNKS):
                    data = self.sock.recv(_CHUNK)
                    self._closed = self._closed or not data
                    if self._closed:
                        break
                    self.heard = time.monotonic()
                    found += self._talk.receive(data)
                self.again = not self._closed and self.unsent <= MOST_UNSENT
            except ssl.SSLWantReadError:
                self.again = False
            except Broken as error:
                log.warning("no HTTP/2: %s", error)
                self._closed = True
            self._flush()
        return found

    def is_over(self) -> bool:
        """Whether nothing more can come of it. If so, no thread will touch its socket any more."""
        with self._lock:
            done = self._talk.left and not self._talk.open and not self._talk.out
            self._closed = self._closed or done
            return self._closed

    def end(self) -> None:
        """Have no thread touch its socket any more."""
        with self._lock:
            self._closed = True

    def leave(self) -> None:
        """Have the peer send no more requests here. Raises OSError."""
        with self._lock:
            self._talk.leave()
            self._flush()

    def serve(self, request: Request, app: WSGIApplication) -> None:
        """Answer a request. Nothing is raised: nobody could do anything about it."""
        answer = _Answer()
        try:
            body = b"".join(app(self._environ(request), answer.start))
        except Exception:
            log.exception("%s %s", request.method, request.path)
            sentence = "a fault of its own; its log says which"
            body = orjson.dumps({"error": sentence, "Error": sentence})
            answer.start("500 Internal Server Error", [("Content-Type", "application/json")])
        try:
            self._answer(request, answer, body)
        except OSError as error:
            log.debug("an answer was not sent: %s", error)

    def _answer(self, request: Request, answer: _Answer, body: bytes) -> None:
        if request.method == "HEAD":
            body = b""
        with self._lock:
            if self._closed:
                return
            self._talk.respond(request.stream, answer.status, answer.headers, body)
            if answer.status == 503:
                # Behind a Service the next connection may lead to the replica that can answer.
                self._talk.leave()
            self._flush()
            unsent = self.unsent
        if unsent:
            self._ring()

    def _flush(self) -> None:
        out = self._talk.out
        try:
            while out:
                del out[: self.sock.send(bytes(out[:_CHUNK]))]
            self.stuck = math.inf
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self.stuck = min(self.stuck, time.monotonic())

    def _environ(self, request: Request) -> dict[str, Any]:
        path, _, query = request.path.partition("?")
        environ: dict[str, Any] = {
            **_EVERY,
            "REQUEST_METHOD": request.method,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "wsgi.input": BytesIO(request.body),
            "gunicorn.socket": self.sock,
        }
        for name, value in request.headers.items():
            # By their variables alone, x_y and x-y could not be told apart.
            if name[0] != 58 and 95 not in name:
                variable = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
                environ[variable] = value.decode("latin-1")
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
        environ.pop("HTTP_CONTENT_LENGTH", None)
        environ["CONTENT_LENGTH"] = str(request.length)
        host = request.headers.get(b":authority")
        if host is not None:
            environ["HTTP_HOST"] = host.decode("latin-1")
        return environ


def _address(sock: Socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


class _Answer:
    """What an application says of its answer, as WSGI has it say that."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []

    def start(self, status: str, headers: Headers, _error: object = None) -> Any:
        self.status = int(status.split(" ", 1)[0])
        self.headers = list(_written(headers))
        return self._unsupported

    @staticmethod
    def _unsupported(_data: bytes) -> None:
        raise NotImplementedError("return the body; writing it is a way of old")


def _written(headers: Headers) -> Iterable[tuple[bytes, bytes]]:
    for name, value in headers:
        if name.lower() not in _NOT_OURS:
            yield name.lower().encode("latin-1"), value.encode("latin-1")


_EVERY: dict[str, Any] = {
    "SCRIPT_NAME": "",
    "SERVER_NAME": "localhost",
    "SERVER_PORT": "443",
    "SERVER_PROTOCOL": "HTTP/2",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "https",
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}
