"""Calls of a WSGI application without a socket or a client library: some 0.1 ms each."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def post(app: Callable[..., Iterable[bytes]], path: str, body: bytes) -> tuple[int, str, bytes]:
    """POST the body; status, content type and body of the answer."""
    told: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]], _info: object = None) -> None:
        told.update({name.lower(): value for name, value in headers}, status=int(status[:3]))

    environ = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "timeout=5s",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    answer = b"".join(app(environ, start))
    return told["status"], told.get("content-type", ""), answer
