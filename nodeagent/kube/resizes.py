"""CPU and memory of pods whose seats are offloaded: given back to their node, and taken again
before they wake.

A seat on NVMe or in the object store has no processes but kyb-init, and its pod still reserves what
the workload needs. So the requests of its container are lowered in place (`pods/resize`), and what
they were is noted in the pod itself: whoever continues after a crash reads it there. Limits stay as
they are: a workload that runs with lowered requests, for a moment, runs as it did.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api import pods
from kybernate.api.lenient import mapping, mappings, text, texts
from kybernate.core.quantity import parse_number
from kybernate.core.seat.seats import TIER_OF
from kybernate.errors import (
    ConflictError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.lib.retry import Pauses, retry
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kybernate.ports import KubeApi
    from kybernate.types import PodUid
    from nodeagent.seat.record import Seat

    Json = dict[str, Any]
    Requests = dict[str, str]

log = logging.getLogger(__name__)

LEAST: Mapping[str, str] = {"cpu": "10m", "memory": "64Mi"}
"""What kyb-init needs, and the pod keeps."""
_CALL_S, _LOOK_S = 10.0, 0.2
_AGAIN = Pauses(1.0, 60.0)
_LATER_S = 5.0
"""Seconds until a wake is tried again that found no room on its node."""


def lowered(pod: pods.Pod, container: str) -> Requests | None:
    """The container's requests as they are to be while nothing runs in it; None if they stay as
    they are, for they are no more than that, or can't be lowered alone."""
    found = _container(pod, container)
    restarts = any(
        one.get("restartPolicy") == "RestartContainer"
        for one in mappings(found.get("resizePolicy"))
    )
    # Those of a Guaranteed pod are its limits, too, which the workload would wake to.
    if restarts or not pod.burstable:
        return None
    now = requests_of(pod, container)
    least = {name: _lesser(name, amount) for name, amount in now.items()}
    return least if least != now else None


def requests_of(pod: pods.Pod, container: str) -> Requests:
    """What the container requests of CPU and memory."""
    found = texts(mapping(_container(pod, container).get("resources")).get("requests"))
    return {name: found[name] for name in LEAST if name in found}


def noted(pod: pods.Pod) -> Requests | None:
    """What the container's requests were before they were lowered; None if they weren't."""
    try:
        found = json.loads(pod.notes.get(keys.REQUESTS, "null"))
    except ValueError:
        return None
    known = {name: amount for name, amount in texts(found).items() if name in LEAST}
    return known or None


def why_not_there(pod: pods.Pod, container: str, wanted: Requests) -> str:
    """Why the container does not have these requests yet, in a sentence; empty once its kubelet has
    reserved them."""
    waits = pod.condition("PodResizePending")
    if waits is not None and pods.is_true(waits):
        return f"{text(waits.get('reason'))}: {text(waits.get('message'))}"
    there = pod.allocated(container)
    if all(_number(there.get(name, "")) == _number(wanted[name]) for name in wanted):
        return ""
    return "its kubelet has not reserved them yet"


class Resizes:
    """Implements `node.Observer` and `node.Resizing`. Lives on the loop. One thing at a time is
    done for each pod, to its end: a wake waits for the calls that lower requests. `wait` (s): so
    long a kubelet gets to reserve them again."""

    def __init__(
        self,
        api: Callable[[], Awaitable[KubeApi]],
        wait: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._wait = wait
        self._now = now
        self._rests: dict[PodUid, bool] = {}
        self._locks: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)
        self._tasks: dict[PodUid, asyncio.Task[None]] = {}

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`. A wake takes them again itself; a seat that left its tier otherwise,
        such as with its container, does so here."""
        rests = TIER_OF.get(seat.state, Tier.RAM) is not Tier.RAM
        if seat.state is SeatState.RESTORING or self._rests.get(seat.uid) is rests:
            return
        self._rests[seat.uid] = rests
        if (before := self._tasks.get(seat.uid)) is not None:
            before.cancel()
        self._tasks[seat.uid] = asyncio.create_task(self._follow(seat))

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._rests.pop(seat.uid, None)
        if (task := self._tasks.pop(seat.uid, None)) is not None:
            task.cancel()

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Nothing of it concerns requests."""

    async def take(self, seat: Seat) -> None:
        """Return once the pod has again what its workload asked for. Raises RetryableError while
        its node, or its namespace's quota, has no room for it, NotFoundError if it is gone."""
        self._rests[seat.uid] = False
        try:
            await self._alone(seat, self._take)
        except (RefusedError, ConflictError) as error:
            raise RetryableError(_untaken(str(error)), _LATER_S) from error

    async def _follow(self, seat: Seat) -> None:
        """Nobody waits for it."""
        what = self._give if self._rests[seat.uid] else self._take

        def say(error: Exception) -> None:
            log.info("%s: its requests are not changed now: %s", seat, error)

        try:
            on = (RetryableError, ConflictError, DeadlineError)
            await retry(lambda: self._alone(seat, what), say, on, pauses=_AGAIN)
        except NotFoundError:
            log.debug("%s: its pod is gone", seat)
        except KybernateError as error:
            log.warning("%s: its requests stay as they are: %s", seat, error)

    async def _alone(self, seat: Seat, what: Callable[[Calls], Awaitable[None]]) -> None:
        """Run it to its end, though who waits for it is cancelled."""
        calls = Calls(await self._api(), seat)

        async def alone() -> None:
            async with self._locks[seat.uid]:
                await what(calls)

        await asyncio.shield(asyncio.ensure_future(alone()))

    async def _give(self, calls: Calls) -> None:
        seat, pod = calls.seat, await calls.read()
        container = seat.identity.container
        least, now = lowered(pod, container), requests_of(pod, container)
        if least is None or not self._rests.get(seat.uid):
            return
        if noted(pod) != now:
            pod = await calls.note(now, pod)
        if self._rests.get(seat.uid):
            # Not if anything has changed: a wake takes the note away.
            await calls.resize(least, pod)

    async def _take(self, calls: Calls) -> None:
        pod, container = await calls.read(), calls.seat.identity.container
        wanted, until = noted(pod), self._now() + self._wait
        while wanted is not None:
            if requests_of(pod, container) != wanted:
                pod = await calls.resize(wanted)
            while why := why_not_there(pod, container, wanted):
                if self._now() >= until:
                    raise RetryableError(_untaken(why), _LATER_S)
                await asyncio.sleep(_LOOK_S)
                pod = await calls.read()
            pod = await calls.note(None)
            if requests_of(pod, container) == wanted:
                return


class Calls:
    """Calls of the API server about a seat's pod, by threads. All raise KybernateError."""

    def __init__(self, api: KubeApi, seat: Seat) -> None:
        self._api = api
        self.seat = seat
        self._path = pods.path(seat.identity.pod.namespace, seat.identity.pod.name)

    async def read(self) -> pods.Pod:
        """The pod. Raises NotFoundError if it is gone."""
        found = await asyncio.to_thread(self._api.get, self._path, timeout=_CALL_S)
        pod = pods.read_pod(found)
        if pod.ref.uid != self.seat.uid:
            raise NotFoundError(f"another pod has the name of {self.seat.identity.pod}")
        return pod

    async def note(self, requests: Requests | None, seen: pods.Pod | None = None) -> pods.Pod:
        """Write what the requests were, None for nothing; with `seen` only if the pod is as it was
        then. Raises ConflictError."""
        note = json.dumps(requests, sort_keys=True) if requests else None
        return await self._patch("", {}, seen, {"annotations": {keys.REQUESTS: note}})

    async def resize(self, requests: Requests, seen: pods.Pod | None = None) -> pods.Pod:
        """Have the seat's container request this; `seen` as above."""
        one = {"name": self.seat.identity.container, "resources": {"requests": requests}}
        return await self._patch("/resize", {"spec": {"containers": [one]}}, seen, {})

    async def _patch(self, what: str, body: Json, seen: pods.Pod | None, meta: Json) -> pods.Pod:
        meta = {"uid": self.seat.uid, **meta}
        if seen is not None:
            meta["resourceVersion"] = seen.meta["resourceVersion"]
        call = partial(self._api.patch, f"{self._path}{what}", timeout=_CALL_S)
        return pods.read_pod(await asyncio.to_thread(call, {**body, "metadata": meta}, "strategic"))


def _untaken(why: str) -> str:
    return (
        f"its pod gave its CPU and memory back, and does not get them again: {why}; make room on "
        "the node, or move the pod"
    )


def _container(pod: pods.Pod, name: str) -> Json:
    known = mappings(pod.spec.get("containers"))
    return next((one for one in known if one.get("name") == name), {})


def _lesser(name: str, amount: str) -> str:
    return min((amount, LEAST[name]), key=_number)


def _number(written: str) -> Decimal:
    return parse_number(written) or Decimal(0)
