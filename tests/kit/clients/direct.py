"""Asking models at their pods' addresses: no proxy is between."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

from tests.kit.clients.models import Answer
from tests.kit.pods import PORT

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Direct:
    """A client of one pod; each request has a connection of its own."""

    address: str

    @classmethod
    def to(cls, pod: Mapping[str, Any]) -> Direct:
        """The client of a pod that has an address."""
        return cls(f"{pod['status']['podIP']}:{PORT}")

    def get(self, path: str, *, limit: float = 60.0) -> requests.Response:
        """A plain GET."""
        return requests.get(
            f"http://{self.address}{path}", timeout=limit, proxies={"http": "", "https": ""}
        )

    def ask(self, *, limit: float = 60.0, max_tokens: int = 1, token_delay: float = 0.0) -> Answer:
        """One chat completion, not streamed."""
        body = {
            "max_tokens": max_tokens,
            "token_delay": token_delay,
            "messages": [{"role": "user", "content": "hello"}],
        }
        started = time.perf_counter()
        with requests.Session() as session:
            session.trust_env = False
            with session.post(
                f"http://{self.address}/v1/chat/completions", json=body, timeout=limit, stream=True
            ) as answer:
                first = time.perf_counter() - started
                content = answer.json()
                seconds = time.perf_counter() - started
        return Answer(answer.status_code, first, seconds, content, dict(answer.headers))
