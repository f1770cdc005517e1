"""Has the workload of a SnapshotTemplate's pod answer its first requests, before its state is kept.

    --warm-up={"port":8000,"ready":"/health","requests":[["POST","/v1/completions","{}"]],"within":9}

It waits until the path `ready` is answered with 2xx, if there is one, makes the requests one after
another, and listens at port 15485 from then on: so the kubelet calls the pod ready. A request that
is not answered with 2xx ends it with a sentence, which the pod's status has.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.engines import connect

if TYPE_CHECKING:
    from typing import NoReturn

PORT = 15485
_PAUSE_S = 0.2
_LONGEST_ASK_S = 5.0
_PIECE = 65536


@dataclass(frozen=True, slots=True)
class WarmUp:
    """`port` of the workload; `ready`: the path that says so, empty if none; `requests` by method,
    path and body; `within` seconds from now."""

    port: int
    ready: str
    requests: tuple[tuple[str, str, str], ...]
    within: float


class ColdError(Exception):
    """It could not be warmed up; the sentence says why."""


def read(text: str) -> WarmUp:
    """What the argument says. Raises ColdError."""
    try:
        given = json.loads(text)
        requests = tuple((str(how), str(path), str(body)) for how, path, body in given["requests"])
        return WarmUp(int(given["port"]), str(given["ready"]), requests, float(given["within"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ColdError(f"--warm-up={text[:100]}: {error!r}") from error


def run(wanted: WarmUp, listen: int = PORT) -> NoReturn:
    """Warm it up, then say so until the pod ends. Raises ColdError, OSError."""
    until = time.monotonic() + wanted.within
    _await_ready(wanted, until)
    for how, path, body in wanted.requests:
        status = _ask(wanted.port, how, path, body, _left(until))
        if not _good(status):
            raise ColdError(f"{how} {path} was answered with {status}")
        sys.stderr.write(f"kyb-sidecar: {how} {path}: {status}\n")
    with socket.create_server(("", listen)) as listener:
        while True:
            listener.accept()[0].close()


def _await_ready(wanted: WarmUp, until: float) -> None:
    last = ""
    while True:
        left = _left(until, last)
        try:
            if not wanted.ready:
                connect(wanted.port, min(left, _LONGEST_ASK_S)).close()
                return
            status = _ask(wanted.port, "GET", wanted.ready, "", min(left, _LONGEST_ASK_S))
            if _good(status):
                return
            last = f"GET {wanted.ready} was answered with {status}"
        except ColdError as error:
            last = str(error)
        except OSError as error:
            last = f"port {wanted.port} does not listen: {error!r}"
        time.sleep(_PAUSE_S)


def _left(until: float, last: str = "") -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise ColdError(f"its time is over{last and f': {last}'}")
    return left


def _good(status: int) -> bool:
    return 200 <= status < 300


def _ask(port: int, how: str, path: str, body: str, limit: float) -> int:
    """The answer's status, once all of it has come. Raises ColdError if none comes in `limit`
    seconds."""
    until = time.monotonic() + limit
    try:
        with closing(http.client.HTTPConnection("localhost", port)) as connection:
            connection.sock = connect(port, limit)
            kind = {"Content-Type": "application/json"} if body else {}
            connection.request(how, path, body or None, {**kind, "Connection": "close"})
            sock = connection.sock
            answer = connection.getresponse()
            while not answer.isclosed():
                sock.settimeout(_left(until))
                answer.read(_PIECE)
            return answer.status
    except (OSError, http.client.HTTPException) as error:
        raise ColdError(f"{how} {path} was not answered: {error!r}") from error
