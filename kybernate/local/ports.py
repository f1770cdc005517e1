"""Ports as a box has them: without containers, a kubelet, images and Kubernetes events, and with
models' servers that it asks itself."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import aiohttp

from kybernate.adapters.container.seatsocket import SeatSockets
from kybernate.errors import NotFoundError
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.ports import CooperationPhase
from sidecar.engines import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from kybernate.local.processes import BoxProcs
    from kybernate.local.specs import ModelSpec
    from kybernate.ports import Holder, ImageCommand, Inits, SeatSpec
    from kybernate.types import PodRef, PodUid

log = logging.getLogger(__name__)

_HEALTH_LIMIT = 1.0
_AGAIN_S = (1.0, 30.0)
"""Seconds until a wake that a model's server did not do is asked again, at first and at most."""


class Doors(SeatSockets):
    """Models' sockets. No sidecar has a model's server do its part of a park or a wake, but
    `part(uid, phase, limit)`, which returns why it didn't, or ""."""

    def __init__(
        self,
        folder: Path,
        procs: BoxProcs,
        inits: Inits,
        part: Callable[[PodUid, CooperationPhase, float], Awaitable[str]],
    ) -> None:
        super().__init__(folder, procs, inits)
        self._part = part
        self._again: dict[PodUid, asyncio.Task[None]] = {}
        self._asking: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)
        """Held while a model's server is asked: it may carry out what was cancelled."""

    async def cooperate(self, uid: PodUid, phase: CooperationPhase, limit: float) -> str:
        """See `ports.SeatDoors`. A wake that was not done is asked again, until it is or something
        else is asked: the server would answer no request. What is under way is answered first, or
        given up at its own limit: a wake must not come to the server behind the park."""
        async with self._asking[uid]:
            self._stop(uid)
            why = await self._part(uid, phase, limit)
            if why and phase is CooperationPhase.WAKE:
                self._again[uid] = asyncio.create_task(self._wake_again(uid, limit))
            return why

    async def _wake_again(self, uid: PodUid, limit: float) -> None:
        pause, most = _AGAIN_S
        while True:
            await asyncio.sleep(pause)
            async with self._asking[uid]:
                if not await self._part(uid, CooperationPhase.WAKE, limit):
                    return
            pause = min(2 * pause, most)

    def _stop(self, uid: PodUid) -> None:
        again = self._again.pop(uid, None)
        if again is not None:
            again.cancel()

    async def close(self, uid: PodUid) -> None:
        """See `ports.SeatDoors`."""
        self._stop(uid)
        await super().close(uid)


class Servers:
    """Asks models' servers."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def serves(self, address: str, path: str) -> bool:
        """Whether it answers 200."""
        limit = aiohttp.ClientTimeout(total=_HEALTH_LIMIT)
        try:
            async with self._session.get(f"http://{address}{path}", timeout=limit) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def do_part(self, spec: ModelSpec, phase: CooperationPhase, limit: float) -> str:
        """Have it do its own part within `limit` s; why it didn't, or ""."""
        asked = REQUESTS[spec.cooperate][phase.value]
        url, headers = f"http://{spec.address}{spec.base}{asked.path}", {
            "Content-Type": "application/json",
            "Kyb-Deadline-Ms": str(int(limit * 1000)),
        }  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=limit)
        try:
            async with self._session.post(
                url, data=asked.body, headers=headers, timeout=timeout
            ) as answer:
                refused = "" if answer.status // 100 == 2 else f" is answered {answer.status}"
        except TimeoutError:
            refused = f": no answer within {limit:g} s"
        except (aiohttp.ClientError, OSError) as error:
            refused = f": {error}"
        return refused and f"POST {asked.path}{refused}"


class NoContainers:
    """Implements `ports.Specs`, `ports.PodResources` and `ports.Images`: a model's process has all
    of the box, and CUDA_VISIBLE_DEVICES tells it which GPUs are its own."""

    def write(self, device_id: str, spec: SeatSpec) -> str:
        """See `ports.Specs`."""
        return ""

    def remove(self, device_id: str) -> None:
        """See `ports.Specs`."""

    async def release(
        self,
        device_id: str,
        init: int,
        is_there: Callable[[], bool],
        deadline: float,
        *,
        stays: bool = False,
    ) -> None:
        """See `ports.Specs`."""

    async def shut(
        self, device_id: str, init: int, is_there: Callable[[], bool], deadline: float
    ) -> None:
        """See `ports.Specs`."""

    def ids(self) -> frozenset[str]:
        """See `ports.Specs`."""
        return frozenset()

    async def holder(self, resource: str, device_ids: Sequence[str]) -> Holder:
        """See `ports.PodResources`."""
        raise NotFoundError("no kubelet gives out devices of this box")

    async def held(self) -> Mapping[str, Holder]:
        """See `ports.PodResources`."""
        return {}

    async def command_of(self, image: str) -> ImageCommand:
        """See `ports.Images`."""
        raise NotFoundError("a model of this box is a command, and no image")

    async def digest_of(self, uid: PodUid, container: str) -> str:
        """See `ports.Images`."""
        raise NotFoundError("a model of this box is a command, and no image")


class NoEvents:
    """Implements the guard's `Announcer`: people read it in the log."""

    def told_node(self, kind: str, reason: str, sentence: str) -> None:
        """See `guard.announce`."""
        log.warning("%s", sentence)

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """See `guard.announce`."""
        log.warning("%s: %s", pod, sentence)
