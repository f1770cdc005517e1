"""Several proxies, two models that take turns, clients that ask all proxies, and kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from bench.proxy.agent import Agent
from bench.proxy.replicas import Replica
from bench.report import percentile, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.report import Metrics

MODELS = ("left", "right")
CLIENTS = 64
TURN_S = 0.3
_ONE_S = 90.0
"""Seconds that any one answer may take."""
_EVENTS = 5


@dataclass(slots=True)
class Book:
    """What became of the requests. `astray`: a model got them without its turn."""

    answered: int = 0
    on_killed: int = 0
    lost: list[str] = field(default_factory=list)
    astray: int = 0
    took: list[float] = field(default_factory=list)
    by: Counter[int] = field(default_factory=Counter)


class Models:
    """The models' servers: they answer with what they were asked, whole or as events."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.addresses: dict[str, str] = {}
        self.held: set[str] = set()
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """Each on a port of its own."""
        for name in MODELS:
            app = web.Application()
            app["model"] = name
            app.router.add_post("/v1/chat/completions", self._chat)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.addresses[name] = f"127.0.0.1:{runner.addresses[0][1]}"
            self._runners.append(runner)

    async def stop(self) -> None:
        """Close all."""
        for runner in self._runners:
            await runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body, name = await request.json(), request.app["model"]
        if name not in self.held or body["model"] != name:
            self._book.astray += 1
        if not body["stream"]:
            await asyncio.sleep(0.002)
            return web.json_response({"model": name, "nonce": body["nonce"]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with contextlib.suppress(ConnectionError):  # of a proxy that was killed
            await response.prepare(request)
            for number in range(_EVENTS):
                await response.write(f"data: {body['nonce']} {number}\n\n".encode())
                await asyncio.sleep(0.01)
            await response.write(b"data: [DONE]\n\n")
        return response


async def measure(folder: Path, tls: Path, replicas: int, requests: int, kills: int) -> Metrics:
    """Ask `requests` times while `kills` proxies are killed. Raises SystemExit if an answer is lost
    that the killed one had nothing to do with."""
    book = Book()
    models = Models(book)
    await models.start()
    agent = Agent(tls, models.addresses, TURN_S)
    models.held = agent.held
    await agent.start()
    proxies = [Replica(tls, agent.port, folder / f"proxy-{n}.log") for n in range(replicas)]
    began = asyncio.get_running_loop().time()
    try:
        await asyncio.gather(*(one.start() for one in proxies))
        numbers = iter(range(requests))
        async with aiohttp.ClientSession() as session:
            clients = [_client(session, proxies, numbers, n, book) for n in range(CLIENTS)]
            await asyncio.gather(_killer(proxies, requests, kills, book), *clients)
        took = asyncio.get_running_loop().time() - began
    finally:
        for one in proxies:
            one.end()
        await agent.stop()
        await models.stop()
    for why in book.lost[:10]:
        say(f"lost: {why}")
    if book.lost or book.astray:
        raise SystemExit(f"{len(book.lost)} answers lost, {book.astray} sent astray")
    return {
        "requests": (float(requests), "requests"),
        "kills": (float(kills), "kills"),
        "lost": (float(len(book.lost)), "answers"),
        "astray": (float(book.astray), "requests"),
        "on_killed": (float(book.on_killed), "requests, asked again elsewhere"),
        "swaps": (float(agent.swaps), "swaps"),
        "wait_p50_ms": (1000 * percentile(book.took, 50), "ms"),
        "wait_p99_ms": (1000 * percentile(book.took, 99), "ms"),
        "seconds": (took, "s"),
        "least_share": (min(book.by.values()) / requests, "of all answers by one proxy"),
    }


async def _killer(proxies: list[Replica], requests: int, kills: int, book: Book) -> None:
    """Evenly over the requests, one proxy after the other, each once the last one is back."""
    for number in range(kills):
        while book.answered < requests * (number + 1) / (kills + 1):  # noqa: ASYNC110 - a count
            await asyncio.sleep(0.01)
        victim = proxies[number % len(proxies)]
        victim.kill()
        say(f"kill {number + 1}: {book.answered} answered, {book.on_killed} were on killed ones")
        await victim.start()


async def _client(
    session: aiohttp.ClientSession,
    proxies: list[Replica],
    numbers: Iterator[int],
    seed: int,
    book: Book,
) -> None:
    """A client that asks again, elsewhere, where its proxy was killed under its request."""
    dice = random.Random(seed)
    for number in numbers:
        began = asyncio.get_running_loop().time()
        while True:
            at = dice.choice([one for one in proxies if one.ready])
            life = at.life
            try:
                async with asyncio.timeout(_ONE_S):
                    await _ask(session, at, number)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if at.life != life:
                    book.on_killed += 1
                    continue
                book.lost.append(f"{number} by {at.url}: {type(error).__name__} {error}")
            else:
                book.answered += 1
                book.by[at.port] += 1
                book.took.append(asyncio.get_running_loop().time() - began)
            break


async def _ask(session: aiohttp.ClientSession, at: Replica, number: int) -> None:
    """Raises ValueError for an answer that isn't the one that was asked for."""
    model, stream = MODELS[number % 2], number % 10 == 0
    body = {"model": model, "stream": stream, "nonce": number}
    async with session.post(f"{at.url}/v1/chat/completions", json=body) as answer:
        text = (await answer.read()).decode()
        if answer.status != 200:
            raise ValueError(f"{answer.status} {text}")
        if stream:
            whole = [f"data: {number} {n}" for n in range(_EVENTS)] + ["data: [DONE]"]
            right = [line for line in text.splitlines() if line] == whole
        else:
            right = json.loads(text) == {"model": model, "nonce": number}
        if not right:
            raise ValueError(f"answered {text!r}")
