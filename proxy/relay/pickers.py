"""Endpoint pickers of InferencePools: what one holds for its pool has the pool's model woken.

A picker holds requests while none of its pool's pods is ready, and counts them in its metrics. For
as long as it holds any, one visit waits for the model's seat here as a client's request does, by
the same rules, and keeps the seat once it has it. Nothing is sent to the seat: its pod becomes
ready, so the picker sends what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import aiohttp

from proxy.actions import ANYONE
from proxy.openai import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxy.desk import Desk

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
_LOOK_LIMIT_S = 2.0
_STAY_S = 5.0
"""Seconds of a visit to a seat that is active: a seat that is to leave is not held up longer."""
_AGAIN_S = 1.0
_MOST = 8 * 2**20
"""Bytes of a page of metrics."""
_HELD = re.compile(
    rb"^inference_extension_flow_control_queue_size(?:\{.*\})? ([0-9]+(?:\.[0-9]+)?)\r?$",
    re.MULTILINE,
)


def held(page: bytes) -> int:
    """How many requests a picker holds, by its page of metrics; 0 without a word of it."""
    return round(sum(float(number) for number in _HELD.findall(page)))


class Pickers:
    """Visits of the desk for pickers. `pickers`: where each model's picker has its metrics, by the
    model's NAMESPACE/MODEL. Create it on a running event loop."""

    def __init__(self, desk: Desk, pickers: Mapping[str, str]) -> None:
        self._desk, self._pickers = desk, pickers
        self._tasks: list[asyncio.Task[None]] = []
        self._silent: set[str] = set()
        """Models whose pickers did not answer when they were asked last."""

    def start(self) -> None:
        """Ask all of them, again and again."""
        for model, url in self._pickers.items():
            self._tasks.append(asyncio.create_task(self._attend(model, url)))

    async def stop(self) -> None:
        """Ask none any more, and leave all seats."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _attend(self, model: str, url: str) -> None:
        visit: asyncio.Task[None] | None = None
        limit = aiohttp.ClientTimeout(total=_LOOK_LIMIT_S)
        async with aiohttp.ClientSession(timeout=limit) as session:
            try:
                while True:
                    asked = await self._asked(session, model, url)
                    if asked and (visit is None or visit.done()):
                        visit = asyncio.create_task(self._visit(model))
                    elif visit is not None and not asked:
                        visit.cancel()
                    await asyncio.sleep(_LOOK_EVERY_S)
            finally:
                if visit is not None:
                    visit.cancel()

    async def _asked(self, session: aiohttp.ClientSession, model: str, url: str) -> int:
        """How many requests it holds; none if it doesn't say: it has ended, and they with it."""
        try:
            async with session.get(url) as answer:
                answer.raise_for_status()
                page = await _page(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            if model not in self._silent:
                log.warning("the picker of %s doesn't answer at %s: %r", model, url, error)
            self._silent.add(model)
            return 0
        self._silent.discard(model)
        return held(page)

    async def _visit(self, model: str) -> None:
        try:
            async with await self._desk.admit(self._desk.ticket(), model, ANYONE):
                await asyncio.sleep(_STAY_S)
        except ApiError as error:
            log.warning("%s isn't woken for its picker: %s", model, error)
            await asyncio.sleep(max(_AGAIN_S, error.retry_after))


async def _page(answer: aiohttp.ClientResponse) -> bytes:
    """Raises ClientPayloadError if it is too long."""
    page = bytearray()
    async for piece in answer.content.iter_chunked(2**16):
        page += piece
        if len(page) > _MOST:
            raise aiohttp.ClientPayloadError(f"more than {_MOST} bytes")
    return bytes(page)
