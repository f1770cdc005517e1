"""HTTP/1.1 over kept connections, as little of it as calls to an API server take.

A general client costs more per call than the extender's own work for a bind. Credentials, proxies
and all else that it knows stay its business: `made_for` says whether these settings need it.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = 32
"""Connections that are kept between calls."""

_CHUNK = 1 << 16
_MOST_HEAD = 1 << 16
_PLAIN = re.compile(r"[!-~]+")
_AS_THEY_ARE = "/%?=&,:;+@!$'()*~-._"
_WITHOUT_BODY = (204, 304)


class BrokenError(OSError):
    """The connection ended, or what came is no answer. `unasked`: before anything came, on a
    connection that was kept: the server may have closed it just before."""

    def __init__(self, what: str, *, unasked: bool = False) -> None:
        super().__init__(what)
        self.unasked = unasked


class Answer(NamedTuple):
    """What the server said."""

    status: int
    body: bytes


class Calls:
    """Calls of one server. Safe to use from several threads."""

    def __init__(self, configuration: Any) -> None:
        """The settings are those of the official client's Configuration."""
        address = urlsplit(configuration.host)
        self._host, self._is_tls = address.hostname or "", address.scheme == "https"
        self._port = address.port or (443 if self._is_tls else 80)
        self._prefix = address.path.rstrip("/")
        self._named = address.netloc.rpartition("@")[2]
        self._tls = _Tls(configuration) if self._is_tls else None
        self._kept: deque[socket.socket] = deque()

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, limit: float
    ) -> Answer:
        """One call, within `limit` seconds. Raises OSError; BrokenError if it may be repeated."""
        deadline = time.monotonic() + limit
        sock = self._idle()
        is_kept = sock is not None
        if sock is None:
            sock = self._connect(deadline)
        try:
            _set_limit(sock, deadline)
            try:
                sock.sendall(self._head(method, target, headers, body) + (body or b""))
            except TimeoutError:
                raise
            except OSError as error:
                raise BrokenError(str(error), unasked=is_kept) from error
            answer, goes_on = _Incoming(sock, deadline, is_kept=is_kept).read(method)
        except BaseException:
            sock.close()
            raise
        if goes_on and len(self._kept) < KEPT:
            self._kept.append(sock)
        else:
            sock.close()
        return answer

    def close(self) -> None:
        """Drop all idle connections."""
        while self._kept:
            self._kept.pop().close()

    __del__ = close

    def _idle(self) -> socket.socket | None:
        while True:
            try:
                sock = self._kept.pop()
            except IndexError:
                return None
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            if not poll.poll(0):
                return sock
            # Nothing was asked, so what came is its end.
            sock.close()

    def _connect(self, deadline: float) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), _left(deadline))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _set_limit(plain, deadline)
            return self._tls.wrap(plain, self._host) if self._tls else plain
        except BaseException:
            plain.close()
            raise

    def _head(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        if not _PLAIN.fullmatch(target):
            target = quote(target, safe=_AS_THEY_ARE)
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"host: {self._named}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method != "GET":
            lines.append(f"content-length: {len(body or b'')}")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header has a line break")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def made_for(configuration: Any) -> bool:
    """Whether calls by these settings need no more than what is here."""
    plain = urlsplit(configuration.host).scheme in ("http", "https")
    return plain and not configuration.proxy and not isinstance(configuration.assert_hostname, str)


class _Tls:
    """TLS by the settings' files, which are read again once one of them has changed."""

    def __init__(self, configuration: Any) -> None:
        self._settings = configuration
        self._known: tuple[tuple[int, ...], ssl.SSLContext] | None = None

    def wrap(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """The socket after its handshake."""
        name = self._settings.tls_server_name or host
        return self._context().wrap_socket(plain, server_hostname=name)

    def _context(self) -> ssl.SSLContext:
        settings = self._settings
        files = (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
        stamp = tuple(Path(file).stat().st_mtime_ns for file in files if file)
        known = self._known
        if known is None or known[0] != stamp:
            known = self._known = stamp, self._made()
        return known[1]

    def _made(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
        if settings.assert_hostname is False or not settings.verify_ssl:
            context.check_hostname = False
        if not settings.verify_ssl:
            context.verify_mode = ssl.CERT_NONE
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        return context


class _Incoming:
    """An answer as it comes in."""

    def __init__(self, sock: socket.socket, deadline: float, *, is_kept: bool) -> None:
        self._sock = sock
        self._deadline = deadline
        self._is_kept = is_kept
        self._data = bytearray()

    def read(self, method: str) -> tuple[Answer, bool]:
        """The whole answer, and whether the connection can be asked again."""
        while True:
            lines = self._read_head()
            status = _number(lines[0][9:12], 10)
            # Those below 200 only announce others.
            if status >= 200:
                break
        fields = dict(_field(line) for line in lines[1:])
        goes_on = lines[0].startswith(b"HTTP/1.1") and fields.get(b"connection") != b"close"
        if method == "HEAD" or status in _WITHOUT_BODY:
            return Answer(status, b""), goes_on
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            return Answer(status, self._read_chunks()), goes_on
        if b"content-length" in fields:
            return Answer(status, self._take(_number(fields[b"content-length"], 10))), goes_on
        return Answer(status, self._read_all()), False

    def _read_head(self) -> list[bytes]:
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            if len(self._data) > _MOST_HEAD:
                raise BrokenError("an answer's headers do not end")
            self._more()
        lines = bytes(self._data[:end]).split(b"\r\n")
        del self._data[: end + 4]
        if not lines[0].startswith(b"HTTP/1."):
            raise BrokenError(f"the server's answer is no HTTP: {lines[0][:80]!r}")
        return lines

    def _take(self, size: int) -> bytes:
        """The next bytes, so many."""
        have = len(self._data)
        if have < size:
            self._data += bytes(size - have)
            room = memoryview(self._data)
            while have < size:
                _set_limit(self._sock, self._deadline)
                got = self._sock.recv_into(room[have:])
                if not got:
                    raise BrokenError("the answer ended in the middle")
                have += got
            room.release()
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken

    def _read_chunks(self) -> bytes:
        parts = []
        while size := _number(self._line().partition(b";")[0], 16):
            parts.append(self._take(size))
            self._line()
        while self._line():
            pass
        return b"".join(parts)

    def _line(self) -> bytes:
        while (end := self._data.find(b"\r\n")) < 0:
            if len(self._data) > _MOST_HEAD:
                raise BrokenError("a line of the answer does not end")
            self._more()
        line = bytes(self._data[:end])
        del self._data[: end + 2]
        return line

    def _read_all(self) -> bytes:
        while True:
            _set_limit(self._sock, self._deadline)
            data = self._sock.recv(_CHUNK)
            if not data:
                return bytes(self._data)
            self._data += data

    def _more(self) -> None:
        _set_limit(self._sock, self._deadline)
        try:
            data = self._sock.recv(_CHUNK)
        except ConnectionResetError as error:
            raise BrokenError(str(error), unasked=self._is_unasked()) from error
        if not data:
            raise BrokenError("the server ended the connection", unasked=self._is_unasked())
        self._data += data

    def _is_unasked(self) -> bool:
        return self._is_kept and not self._data


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip().lower()


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise BrokenError(
            f"the server's answer has no number where one must be: {text!r}"
        ) from None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the answer did not come within its deadline")
    return left


def _set_limit(sock: socket.socket, deadline: float) -> None:
    sock.settimeout(_left(deadline))
