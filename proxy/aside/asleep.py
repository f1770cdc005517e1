"""Models whose Deployments are scaled to zero: a request for one has it scaled up again.

The controller tells of them by CheckpointRequests with a label. The proxy writes into one that its
model is wanted, and nothing else; what is scaled, and how far, is the controller's. How long a wake
takes is told by where the artifact lies: by the request, and by the registry where there is one.
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
from kybernate.core.tiers.tiers import Artifact, wake_seconds
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, KybernateError, NotFoundError, RefusedError
from kybernate.lib.retry import retry
from kybernate.types import NodeName, PodUid, SeatState, Tier
from proxy.actions import SeatInfo

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api
    from kybernate.core.requests.checkpoint import Request
    from proxy.aside.records import Records
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


_LOOKS_S = 1.0
"""Between looks whether the registry is to be asked."""
_FRESH_S = 300.0
"""Seconds for which what the registry said of an artifact counts: a copy may come or go."""
_AWAY_S = 30.0
"""Seconds until it is asked again of one of which nobody has answered."""


@dataclass(slots=True)
class _Sleeper:
    """A pod that is to come again. `copies`: where the registry says that its artifact lies;
    `ask_at`: when it is asked next, by the loop's clock."""

    model: str
    request: Request
    copies: tuple[Artifact, ...] = ()
    ask_at: float = 0.0

    def info(self) -> SeatInfo:
        """As the desk has it. The request tells of the copy by which its pod was put away."""
        request, outcome = self.request, self.request.status.outcome
        copies = self.copies
        if not copies and outcome is not None and outcome.tier in set(Tier):
            copies = (Artifact(Tier(outcome.tier), outcome.size),)
        best = min((one for one in copies if one.size), key=_wake, default=None)
        return SeatInfo(
            *(PodUid(""), NodeName(""), "", "", request.pod, self.model, SeatState.GONE),
            namespace=request.namespace,
            tier=best.tier if best else "",
            size=best.size if best else 0,
            wake=_wake(best) if best else 0.0,
        )


def _wake(artifact: Artifact) -> float:
    return wake_seconds(artifact, NodeName(""), 1)


class Asleep:
    """Tells the desk which models sleep, and wakes them. Lives on the event loop; only the watch's
    thread calls `_on_event`. `records`: None where there is no registry."""

    def __init__(self, api: Api, desk: Desk, records: Records | None = None) -> None:
        self._api = api
        self._desk = desk
        self._records = records
        self._loop = asyncio.get_running_loop()
        self._sleeping: dict[str, _Sleeper] = {}
        self._asking: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watch = Watcher(
            *(api, keys.CHECKPOINT_REQUESTS_PATH, _LABELLED, self._on_event, "CheckpointRequests"),
            names_only=True,
            page=OF_USERS,
        )

    def start(self) -> None:
        """Watch. Requests for models that are awake are served whatever becomes of it."""
        self._watch.start()
        if self._records is not None:
            self._asking = self._loop.create_task(self._ask(self._records), name="asleep")

    async def stop(self) -> None:
        """End the watch, and what is being asked."""
        await asyncio.to_thread(self._watch.stop)
        tasks = [*self._tasks.values(), *((self._asking,) if self._asking else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def rouse(self, model: str) -> None:
        """Have the model's Deployment scaled up, unless that is under way."""
        if model not in self._tasks:
            task = self._tasks[model] = self._loop.create_task(self._rouse(model))
            task.add_done_callback(lambda _: self._tasks.pop(model, None))

    async def _rouse(self, model: str) -> None:
        # One that was scaled up before may stay without a successor, and says nothing of now.
        mine = (one.request for one in self._sleeping.values() if one.info().route == model)
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
        if found is not None and (before is not None or not found.request.successor):
            self._sleeping[key] = found
            if before is not None:
                found.copies, found.ask_at = before.copies, before.ask_at
                if found.request.successor and not before.request.successor:
                    self._loop.call_later(_BOUND_S, self._take, "DELETED", item)
        self._tell()

    def _tell(self) -> None:
        self._desk.asleep([one.info() for one in self._sleeping.values()])

    async def _ask(self, records: Records) -> None:
        """Where artifacts lie of what sleeps: one after another, each again after a while."""
        while True:
            now = self._loop.time()
            for key in [key for key, one in self._sleeping.items() if one.ask_at <= now]:
                if (one := self._sleeping.get(key)) is None:
                    continue
                namespace, uid = one.request.namespace, PodUid(one.request.status.pod_uid)
                one.ask_at = now + _AWAY_S
                try:
                    copies = await records.copies(namespace, uid) if uid else ()
                except (KybernateError, OSError):
                    break
                if (one := self._sleeping.get(key)) is not None:
                    one.copies, one.ask_at = copies, now + _FRESH_S
                    self._tell()
            await asyncio.sleep(_LOOKS_S)


def _sleeping(item: Json) -> _Sleeper | None:
    """The model and the request, if its pod is to come again."""
    try:
        request = read_request(item)
    except ConfigError as error:
        log.warning("nobody is woken by it: %s", error)
        return None
    model = text(mapping(item["metadata"].get("annotations")).get(keys.MODEL))
    if not (model and is_last_step(request) and is_put(request)):
        return None
    return _Sleeper(model, request)
