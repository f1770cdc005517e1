"""A server for the tests: `python served.py FOLDER PORT [http2]`; its calls are paths.

It writes `stopped` into the folder as the last thing it does.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.runtime.http import Listening, Server, peer_certificate
from kybernate.runtime.http2 import Http2
from kybernate.runtime.serve import configure_logging
from kybernate.runtime.tls import MutualTls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import WSGIApplication

REQUEST_S = 2.0
STOP_S = 8
THREADS = 2
LARGE = 32 << 20
"""Bytes of an answer that no socket buffer takes."""


def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    """/name, /slow, /large, /unready, /read."""
    path, status, body = environ["PATH_INFO"], "200 OK", b"ok"
    if path == "/name":
        body = str(peer_certificate(environ)["subject"]).encode()
    elif path == "/slow":
        time.sleep(0.3)
    elif path == "/large":
        body = b"x" * LARGE
    elif path == "/unready":
        status = "503 Service Unavailable"
    elif path == "/read":
        body = str(len(environ["wsgi.input"].read())).encode()
    start(status, [("Content-Length", str(len(body)))])
    return [body]


def main() -> None:
    """Serve until SIGTERM."""
    folder, port = Path(sys.argv[1]), sys.argv[2]

    @contextmanager
    def serving() -> Iterator[WSGIApplication]:
        yield app
        (folder / "stopped").touch()

    configure_logging("WARNING")
    http2 = Http2(1 << 20, frozenset({"/name"})) if "http2" in sys.argv else None
    listening = Listening(
        "served", f"127.0.0.1:{port}", THREADS, REQUEST_S, STOP_S, "WARNING", http2
    )
    Server(listening, MutualTls(folder, "extender"), serving()).run()


if __name__ == "__main__":
    main()
