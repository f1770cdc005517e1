"""The client: plays the planned requests on time and checks every answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp

from .verdict import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .trace import Request

ANSWER_LIMIT = 120.0
"""Seconds after which a request counts as not answered."""

STREAMED_EVERY = 4
"""Every so many requests one asks for a stream of events."""

SHORTER = 8
"""Answers have so many times fewer tokens than in the trace, for time is squeezed too."""


class Player:
    """Plays one plan against a proxy; `answers` grows while it runs."""

    def __init__(self, proxy: str, plan: Sequence[Request]) -> None:
        self.answers: list[Answer] = []
        self.open: Counter[str] = Counter()
        """Requests on their way, by model."""
        self.plan = plan
        self._proxy = proxy

    async def play(self) -> None:
        """All requests, each at its time, whatever became of those before it."""
        started = time.monotonic()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=ANSWER_LIMIT)
        async with (
            aiohttp.ClientSession(self._proxy, connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for request in self.plan:
                await asyncio.sleep(max(0.0, started + request.at - time.monotonic()))
                group.create_task(self._ask(session, request))

    async def _ask(self, session: aiohttp.ClientSession, request: Request) -> None:
        started = time.monotonic()
        self.open[request.model] += 1
        try:
            answer = await _exchange(session, request, started)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            problem = f"{request.model}: {str(error) or type(error).__name__}"
            answer = Answer(request.model, 0, _ms(started), problem=problem)
        finally:
            self.open[request.model] -= 1
        self.answers.append(answer)


async def _exchange(session: aiohttp.ClientSession, request: Request, started: float) -> Answer:
    stream = request.number % STREAMED_EVERY == 0
    body = {
        "model": request.model,
        "messages": [{"role": "user", "content": f"request {request.number}"}],
        "max_tokens": max(1, request.generated // SHORTER),
        "stream": stream,
    }
    async with session.post("/v1/chat/completions", json=body) as response:
        raw = await response.read()
        held = float(response.headers.get("X-Kyb-Wake-Ms", 0))
    if response.status != 200:
        return Answer(
            request.model, response.status, _ms(started), held, problem=raw.decode()[:300]
        )
    counter, problem = checked(request.model, last_event(raw) if stream else json.loads(raw))
    return Answer(request.model, 200, _ms(started), held, counter, problem)


def last_event(raw: bytes) -> dict[str, Any]:
    """The last event of a stream that carries the model's own word. Raises ValueError if none."""
    events = [line[6:] for line in raw.splitlines() if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        raise ValueError("the stream ended before [DONE]")
    for event in reversed(events[:-1]):
        data: dict[str, Any] = json.loads(event)
        if "kyb" in data:
            return data
    raise ValueError("no event of the stream carries a counter")


def checked(model: str, data: dict[str, Any]) -> tuple[int | None, str]:
    """The answer's counter, and a sentence if its state is not what it must be."""
    word = data.get("kyb") or {}
    counter = word.get("counter")
    if data.get("model") != model:
        return counter, f"{data.get('model')} answered a request to {model}"
    if not isinstance(counter, int):
        return None, f"{model} answered without a counter"
    if any(number != counter for number in word.get("device", [])):
        return counter, f"{model} lost state: {word['device']} in GPU memory at answer {counter}"
    if word.get("checksum") != word.get("expected") or "checksum" not in word:
        return counter, f"{model} lost state: checksum {word.get('checksum')} at answer {counter}"
    return counter, ""


def _ms(started: float) -> float:
    return (time.monotonic() - started) * 1000
