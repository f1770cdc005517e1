"""A connection of HTTP/2: its socket, and a WSGI application that answers what comes."""

from __future__ import annotations

import logging
import select
import ssl
import sys
import threading
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import orjson

from .conversation import Broken, Conversation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from wsgiref.types import WSGIApplication

    from .conversation import Request

    Headers = Sequence[tuple[str, str]]

log = logging.getLogger(__name__)

SEND_S = 10.0
"""Seconds that a peer may take to read what it is sent."""

_CHUNK = 1 << 16
_NOT_OURS = {"connection", "keep-alive", "transfer-encoding", "upgrade", "proxy-connection"}


class Connection:
    """One thread reads; any may answer. `sock` is a TLS socket after its handshake."""

    def __init__(self, sock: ssl.SSLSocket, most_body: int) -> None:
        """`most_body` is how many bytes a request's body may have."""
        self._sock = sock
        sock.setblocking(False)
        self._talk = Conversation(most_body)
        # What OpenSSL knows of a connection is for one thread at a time.
        self._lock = threading.Lock()
        self._closed = False

    def read(self) -> list[Request]:
        """The requests that are whole by now. Raises OSError."""
        found: list[Request] = []
        with self._lock:
            try:
                while data := self._sock.recv(_CHUNK):
                    found += self._talk.receive(data)
                self._closed = True
            except ssl.SSLWantReadError:
                pass
            except Broken as error:
                log.warning("no HTTP/2: %s", error)
                self._closed = True
            self._flush()
        return found

    def is_over(self) -> bool:
        """Whether nothing more can come of it. If so, no thread will touch its socket any more."""
        with self._lock:
            self._closed = self._closed or (self._talk.left and not self._talk.open)
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
            if answer.is_last:
                self._talk.leave()
            self._flush()

    def _flush(self) -> None:
        left = memoryview(bytes(self._talk.out))
        self._talk.out.clear()
        if left and self._closed:
            # It ends anyway: what can't be sent at once isn't worth waiting for.
            self._sock.send(left)
            return
        deadline = time.monotonic() + SEND_S
        while left:
            try:
                left = left[self._sock.send(left) :]
            except ssl.SSLWantWriteError:
                self._wait_for_room(deadline)

    def _wait_for_room(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            self._closed = True
            raise TimeoutError("the peer does not read")

    def _environ(self, request: Request) -> dict[str, Any]:
        path, _, query = request.path.partition("?")
        environ: dict[str, Any] = {
            **_EVERY,
            "REQUEST_METHOD": request.method,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "wsgi.input": BytesIO(request.body),
            "gunicorn.socket": self._sock,
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


class _Answer:
    """What an application says of its answer, as WSGI has it say that."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_last = False

    def start(self, status: str, headers: Headers, _error: object = None) -> Any:
        self.status = int(status.split(" ", 1)[0])
        self.headers = list(_written(headers))
        return self._unsupported

    def force_close(self) -> None:
        """The connection is to end after this answer; called as gunicorn's own answers are."""
        self.is_last = True

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
