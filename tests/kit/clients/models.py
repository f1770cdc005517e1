"""Asking models through the proxy, and judging what they answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import requests


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. Times in seconds since the request was sent."""

    status: int
    first_byte: float
    seconds: float
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def counter(self) -> int:
        """How many requests the model has answered in its life, as its device memory says."""
        return int(self.body["kyb"]["counter"])

    @property
    def intact(self) -> bool:
        """Whether the model's device memory holds what it was filled with."""
        kyb = self.body["kyb"]
        return bool(kyb["checksum"] == kyb["expected"])


class Models:
    """A client of the proxy with one kept-alive connection."""

    def __init__(self, proxy_url: str) -> None:
        self._url = proxy_url
        self._session = requests.Session()
        self._session.trust_env = False

    def ask(
        self, model: str, *, limit: float = 60.0, max_tokens: int = 1, **more: object
    ) -> Answer:
        """One chat completion, not streamed. `more`: what else the model is asked for."""
        body = {
            "model": model,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "hello"}],
            **more,
        }
        started = time.perf_counter()
        with self._session.post(
            f"{self._url}/v1/chat/completions", json=body, timeout=limit, stream=True
        ) as answer:
            first = time.perf_counter() - started
            content = answer.json()
            seconds = time.perf_counter() - started
        return Answer(answer.status_code, first, seconds, content, dict(answer.headers))

    def names(self) -> list[str]:
        """What /v1/models lists."""
        answer = self._session.get(f"{self._url}/v1/models", timeout=10)
        return [model["id"] for model in answer.json()["data"]]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
