"""What a workload says of its own phases, by HTTP on the pod's loopback.

`POST /acquire`: from now on it wants its GPUs whenever it may have them. `POST /yield`: its phase
is over, and it gives up the turn that it has.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.link import Link

PORT = 15484
_HEAD_LIMIT = 4096
_SECONDS = 2.0
_BACKLOG = 16
_PATHS = {"/acquire": "acquire", "/yield": "yield"}


def start(link: Link, port: int = PORT) -> socket.socket | None:
    """Listen in a thread of its own; without the port, probes are served all the same."""
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        sys.stderr.write(f"kyb-sidecar: no hints of turns, port {port}: {error.strerror}\n")
        return None
    threading.Thread(target=_run, args=(listener, link), name="hints", daemon=True).start()
    return listener


def _run(listener: socket.socket, link: Link) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # it was closed
        # One after the other: each has little time, and only the pod itself comes here.
        with client, suppress(OSError, ValueError):
            client.settimeout(_SECONDS)
            _serve(client, link)


def _serve(client: socket.socket, link: Link) -> None:
    method, path = _request(client)
    hint = _PATHS.get(path)
    if hint is None:
        status, said = "404 Not Found", "POST /acquire or /yield"
    elif method != "POST":
        status, said = "405 Method Not Allowed", f"POST {path}"
    elif link.turn(hint):
        status, said = "200 OK", hint
    else:
        status, said = "503 Service Unavailable", "process 1 of the seat's container is away"
    body = f"{said}\n"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall((head + body).encode())


def _request(client: socket.socket) -> tuple[str, str]:
    """Method and path. Raises OSError, or ValueError for what isn't HTTP."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = client.recv(_HEAD_LIMIT)
        if not part or len(head) > _HEAD_LIMIT:
            raise ValueError("no head of a request")
        head += part
    method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    return method, path
