"""A caller over TLS who sends what nobody should, and is owed an answer in JSON all the same."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1 << 20


@dataclass
class Caller:
    """Calls one server; `limit_s` is what an answer may take."""

    port: int
    context: ssl.SSLContext
    limit_s: float = 20.0
    slowest_s: float = field(default=0.0, init=False)
    _connection: http.client.HTTPSConnection | None = field(default=None, init=False)

    def post(self, path: str, body: bytes | Iterable[bytes], **headers: str) -> tuple[int, Any]:
        """Status and what the JSON of the answer says; on one connection while that lasts.

        Raises OSError if none comes in time, ValueError if it is no JSON.
        """
        started = time.monotonic()
        connection = self._connection or http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=self.limit_s, context=self.context
        )
        self._connection = None
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        told = answer.read()
        if answer.will_close:
            connection.close()
        else:
            self._connection = connection
        self.slowest_s = max(self.slowest_s, time.monotonic() - started)
        if answer.headers.get_content_type() != "application/json":
            raise ValueError(f"{answer.status} {answer.headers} {told[:200]!r}")
        return answer.status, json.loads(told)

    def raw(self, text: bytes) -> bytes:
        """What comes back for bytes that need not be HTTP, until the server closes."""
        plain = socket.create_connection(("127.0.0.1", self.port), self.limit_s)
        with plain, self.context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
            wrapped.sendall(text)
            told = b""
            try:
                while got := wrapped.recv(65536):
                    told += got
            except (ConnectionResetError, ssl.SSLEOFError):
                pass
            return told

    def close(self) -> None:
        """Hang up."""
        if self._connection:
            self._connection.close()


HEAD = (
    b"POST /mutate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
)
NOT_HTTP: tuple[bytes, ...] = (
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x00" * 5000,
    b"POST / HTTP/9.9\r\n\r\n",
    b"POST " + b"/a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /mutate HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    HEAD + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n{}",
    HEAD + b"Content-Length: 9" + b"9" * 40 + b"\r\n\r\n{}",
    HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}\r\n",
    HEAD + b"Transfer-Encoding: gzip\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: other\r\n\r\n{}",
    HEAD + b"Expect: other\r\n\r\n{}",
    HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
)
"""Requests that are none."""


def large(mib: int) -> Iterable[bytes]:
    """A JSON text of so many MiB, a MiB at a time: one long string."""
    yield b'{"Pod":"' + b"x" * (MIB - 8)
    for _ in range(mib - 2):
        yield b"x" * MIB
    yield b"x" * (MIB - 2) + b'"}'
