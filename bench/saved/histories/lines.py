"""One client's connections to the registry's replicas, on which each attempt is told apart.

The product's client makes a call again by itself; here every attempt is a call of the history,
since each may take effect.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.kit.servers.registryserver import Server

LIMIT_S = 20.0


class Way(StrEnum):
    """What becomes of a call's answer."""

    HEARD = "heard"
    DEAF = "deaf"
    """The client goes away as soon as the request is sent."""
    CUT = "cut"
    """And here in the middle of sending it."""


class NotSentError(Exception):
    """No replica took the connection: the call has not begun."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call as HTTP has it; `name` is the certificate's."""

    name: str
    method: str
    path: str
    body: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `status` 0: nothing did, and it may have taken effect, or may yet."""

    status: int
    body: Mapping[str, Any]


LOST = Answer(0, {})


class Replica:
    """A replica, and how many lives it had: connections to one before are of no use."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.life = 0

    def die(self) -> None:
        """SIGKILL, and a new life that takes a second to begin."""
        self.server.kill()
        self.life += 1
        self.server.start()


class Contexts:
    """TLS by certificate; made once for all clients."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._made = {name: _context(folder, name) for name in names}

    def __getitem__(self, name: str) -> ssl.SSLContext:
        return self._made[name]


class Lines:
    """The connections of one thread."""

    def __init__(
        self, replicas: Sequence[Replica], contexts: Contexts, limit_s: float = LIMIT_S
    ) -> None:
        """`limit_s`: after which an answer is taken for lost."""
        self.replicas, self._limit_s = len(replicas), limit_s
        self._replicas, self._contexts = replicas, contexts
        self._open: dict[tuple[int, str], tuple[int, http.client.HTTPSConnection]] = {}

    def ask(self, at: int, request: Request, way: Way) -> Answer:
        """The answer of the replica `at`, or LOST. Raises NotSentError."""
        line = self._line(at, request.name)
        body = None if request.body is None else json.dumps(request.body).encode()
        try:
            self._send(line, request, body, way)
            if way is Way.HEARD:
                got = line.getresponse()
                status, said = got.status, json.loads(got.read())
                # After a 503 it may have been committed all the same.
                return LOST if status == 503 else Answer(status, said)
        except (OSError, http.client.HTTPException, ValueError):
            pass
        self._drop(at, request.name)
        return LOST

    def close(self) -> None:
        """Hang up."""
        for at, name in list(self._open):
            self._drop(at, name)

    def _send(
        self, line: http.client.HTTPSConnection, request: Request, body: bytes | None, way: Way
    ) -> None:
        line.putrequest(request.method, request.path)
        if body is None:
            line.endheaders()
            return
        line.putheader("content-type", "application/json")
        line.putheader("content-length", str(len(body)))
        line.endheaders(body[: len(body) // 2] if way is Way.CUT else body)

    def _line(self, at: int, name: str) -> http.client.HTTPSConnection:
        replica = self._replicas[at]
        life, line = self._open.get((at, name), (-1, None))
        if line is not None and life == replica.life:
            return line
        self._drop(at, name)
        life = replica.life
        made = http.client.HTTPSConnection(
            "127.0.0.1", replica.server.port, timeout=self._limit_s, context=self._contexts[name]
        )
        try:
            made.connect()
        except OSError as error:
            raise NotSentError(str(error)) from error
        self._open[at, name] = life, made
        return made

    def _drop(self, at: int, name: str) -> None:
        _, line = self._open.pop((at, name), (0, None))
        if line is not None:
            with suppress(OSError):
                line.close()


def _context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context
