"""Calls to the API server that nobody waits for.

They are queued by key, so that a newer one replaces an older one that has not gone out yet, and
retried while the API server is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from kybernate.errors import (
    ConflictError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.ports import KubeApi
    from nodeagent.seat.node import Blocking

log = logging.getLogger(__name__)

_RETRY = 1.0
_CALL_DEADLINE = 15.0
_REFUSALS = 10
_QUEUE_LIMIT = 10_000


class Writes:
    """A queue of calls to the API server by key, the newest of each key; one at a time."""

    def __init__(self, api: Callable[[], Awaitable[KubeApi]], blocking: Blocking) -> None:
        self._api = api
        self._blocking = blocking
        self._waiting: dict[str, Callable[[KubeApi], object]] = {}
        self._refused: Counter[str] = Counter()
        self._some = asyncio.Event()

    def put(self, key: str, call: Callable[[KubeApi], object]) -> None:
        """Queue a call; quick. Beyond the limit the oldest is dropped, which is logged."""
        self._waiting.pop(key, None)
        if len(self._waiting) >= _QUEUE_LIMIT:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            log.warning("too much to write to the API server: dropping %s", oldest)
        self._waiting[key] = call
        self._some.set()

    async def run(self) -> None:
        """Make the calls, for ever."""
        api = await self._api()
        while True:
            await self._some.wait()
            if not self._waiting:
                self._some.clear()
                continue
            key = next(iter(self._waiting))
            call = self._waiting.pop(key)
            await self._make(api, key, call)

    async def _make(self, api: KubeApi, key: str, call: Callable[[KubeApi], object]) -> None:
        try:
            await self._blocking(lambda: call(api), _CALL_DEADLINE)
        except (RetryableError, DeadlineError) as error:
            await self._again(key, call, error)
        except RefusedError as error:
            # An API server that has just started refuses what it will let pass in a moment.
            self._refused[key] += 1
            if self._refused[key] < _REFUSALS:
                await self._again(key, call, error)
            else:
                del self._refused[key]
                log.warning("%s: %s; given up", key, error)
        except (NotFoundError, ConflictError) as error:
            log.debug("%s: the object has gone: %s", key, error)
        except KybernateError as error:
            log.warning("%s: %s", key, error)
        else:
            self._refused.pop(key, None)

    async def _again(
        self, key: str, call: Callable[[KubeApi], object], error: KybernateError
    ) -> None:
        log.info("%s: %s; trying again", key, error)
        self._waiting.setdefault(key, call)
        await asyncio.sleep(_RETRY)
