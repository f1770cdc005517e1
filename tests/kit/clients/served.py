"""Asking servers that nobody here wrote, at their pods' addresses: HTTP, and Redis's protocol."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from collections.abc import Mapping

REDIS = 6379
LIMIT = 60.0


def command(*words: str | bytes) -> bytes:
    """What a client of Redis sends."""
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in raw)


@dataclass(frozen=True, slots=True)
class Served:
    """A server in a pod that has an address."""

    ip: str

    @classmethod
    def by(cls, pod: Mapping[str, Any]) -> Served:
        """The server of this pod."""
        return cls(str(pod["status"]["podIP"]))

    def http(
        self, path: str, port: int, body: Mapping[str, object] | None = None, limit: float = LIMIT
    ) -> requests.Response:
        """A GET, or a POST of JSON, on a connection of its own."""
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://{self.ip}:{port}{path}"
            if body is None:
                return session.get(url, timeout=limit)
            return session.post(url, json=body, timeout=limit)

    def connect(self, port: int, limit: float = LIMIT) -> socket.socket:
        """A connection that is kept."""
        return socket.create_connection((self.ip, port), timeout=limit)

    def redis(self, *words: str, limit: float = LIMIT) -> bytes:
        """Redis's answer on a connection of its own; empty if there is none yet."""
        try:
            with self.connect(REDIS, limit) as link:
                return said(link, *words)
        except ConnectionError:
            return b""


def said(link: socket.socket, *words: str) -> bytes:
    """Redis's answer to one command, of at most 64 KiB."""
    link.sendall(command(*words))
    answer = link.recv(65536)
    while not _whole(answer):
        more = link.recv(65536)
        if not more:
            raise ConnectionError("Redis hung up")
        answer += more
    return answer


def _whole(answer: bytes) -> bool:
    head, end, rest = answer.partition(b"\r\n")
    if not end:
        return False
    if head.startswith(b"$") and head != b"$-1":
        return len(rest) >= int(head[1:]) + 2
    return True
