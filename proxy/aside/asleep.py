"""Models whose Deployments are scaled to zero: a request for one has it scaled up again.

The controller tells of them by CheckpointRequests with a label. The proxy writes into one that its
model is wanted, and nothing else; what is scaled, and how far, is the controller's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.adapters.k8s import OF_USERS, Watcher
from kybernate.api.events import stamp
from kybernate.api.lenient import mapping, text
from kybernate.api.requests import read_request
from kybernate.core.requests.zero import is_last_step, is_put, sleeps
from kybernate.errors import ConfigError, KybernateError, NotFoundError, RefusedError
from kybernate.lib.retry import retry
from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import SeatInfo

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api
    from kybernate.core.requests.checkpoint import Request
    from proxy.desk import Desk

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_LABELLED = {"labelSelector": f"{keys.ZERO_LABEL}=true"}
_CALL_S = 10.0
_BOUND_S = 120.0
"""Seconds for which a model is still known after its next pod is bound: the agent of that node
tells of its seat once the kubelet has begun with the pod."""
_TRIES_S = 60.0
"""Seconds for which it is tried to have one scaled up; the next request tries again."""


class Asleep:
    """Tells the desk which models sleep, and wakes them. Lives on the event loop; only the watch's
    thread calls `_on_event`. `call_s`: seconds of one call."""

    def __init__(self, api: Api, desk: Desk) -> None:
        self._api = api
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._sleeping: dict[str, tuple[SeatInfo, Request]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watch = Watcher(
            *(api, keys.CHECKPOINT_REQUESTS_PATH, _LABELLED, self._on_event, "CheckpointRequests"),
            names_only=True,
            page=OF_USERS,
        )

    def start(self) -> None:
        """Watch. Requests for models that are awake are served whatever becomes of it."""
        self._watch.start()

    async def stop(self) -> None:
        """End the watch, and what is being asked."""
        await asyncio.to_thread(self._watch.stop)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def rouse(self, model: str) -> None:
        """Have the model's Deployment scaled up, unless that is under way."""
        if model not in self._tasks:
            task = self._tasks[model] = self._loop.create_task(self._rouse(model))
            task.add_done_callback(lambda _: self._tasks.pop(model, None))

    async def _rouse(self, model: str) -> None:
        # One that was scaled up before may stay without a successor, and says nothing of now.
        mine = (one for info, one in self._sleeping.values() if info.route == model)
        wanted = [one for one in mine if sleeps(one)]
        if any(one.wanted for one in wanted):
            return
        # One of them is enough: the controller scales its Deployment as a whole.
        for one in wanted[:1]:
            try:
                await retry(
                    lambda one=one: asyncio.to_thread(self._want, one),  # type: ignore[misc]
                    lambda error: log.warning("%s is not scaled up yet: %s", model, error),
                    but=(NotFoundError, RefusedError),
                    until=self._loop.time() + _TRIES_S,
                )
            except KybernateError as error:
                log.warning("%s can't be scaled up: %s", model, error)

    def _want(self, one: Request) -> None:
        path = f"/apis/{keys.API_VERSION}/namespaces/{one.namespace}/checkpointrequests/{one.name}"
        body = {"metadata": {"annotations": {keys.WANTED: stamp(time.time())}}}
        self._api.patch(path, body, timeout=_CALL_S)

    def _on_event(self, kind: str, item: Json) -> None:
        self._loop.call_soon_threadsafe(self._take, kind, item)

    def _take(self, kind: str, item: Json) -> None:
        meta = item["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        found = None if kind == "DELETED" else _sleeping(item)
        before = self._sleeping.pop(key, None)
        if found is not None and (before is not None or not found[1].successor):
            self._sleeping[key] = found
            if before is not None and found[1].successor and not before[1].successor:
                self._loop.call_later(_BOUND_S, self._take, "DELETED", item)
        self._desk.asleep(info for info, _ in self._sleeping.values())


def _sleeping(item: Json) -> tuple[SeatInfo, Request] | None:
    """The model and the request, if its pod is to come again."""
    try:
        request = read_request(item)
    except ConfigError as error:
        log.warning("nobody is woken by it: %s", error)
        return None
    model = text(mapping(item["metadata"].get("annotations")).get(keys.MODEL))
    if not (model and is_last_step(request) and is_put(request)):
        return None
    nobody, nowhere, gone = PodUid(""), NodeName(""), SeatState.GONE
    info = SeatInfo(nobody, nowhere, "", "", request.pod, model, gone, namespace=request.namespace)
    return info, request
