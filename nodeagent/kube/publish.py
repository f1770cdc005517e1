"""What the agent writes to Kubernetes: GPUNode status, pod conditions, annotations, events.

Nothing waits for it. Writes are queued by key, so that a newer one replaces an older one that
has not gone out yet, and retried while the API server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api import pods
from kybernate.api.events import of_pod, stamp
from kybernate.api.gpunodes import (
    LONGEST_MESSAGE,
    Activity,
    AgentAddress,
    Budget,
    Condition,
    Driver,
    GpuRow,
    GroupRow,
    LinkRow,
    SeatRow,
    Status,
    TierRow,
)
from kybernate.core.seat.seats import TIER_OF, shown
from kybernate.errors import (
    ConflictError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.types import SeatState
from nodeagent.kube.events import Events
from nodeagent.kube.gpunode import WRITE_LIMIT, Record
from nodeagent.kube.places import resting
from nodeagent.operations.wire import agent_version, expected_wake, movable, tier_rows
from nodeagent.seat.node import Inventory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kybernate.api.gpunodes import ArtifactRow
    from kybernate.ports import KubeApi
    from kybernate.types import PodRef, PodUid, SeatName
    from nodeagent.kube.attendance import Attendance
    from nodeagent.kube.pods import PodFacts
    from nodeagent.seat.node import Blocking, Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_RETRY = 1.0
_LOOK_AGAIN = 2.0
_REWRITE_S = 300.0
"""Seconds after which the GPUNode is written although nothing changed: somebody may have taken it
away."""
_CALL_DEADLINE = 15.0
_REFUSALS = 10
_QUEUE_LIMIT = 10_000
_WAKEABLE = (
    SeatState.ACTIVE,
    SeatState.DRAINING,
    SeatState.PARKING,
    *TIER_OF,
    SeatState.WAKING,
)


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


class Publisher:
    """Implements `node.Observer` and `prepare.Pods`. `saved`: where artifacts are; `under_way`:
    what is done for seats that somebody asked for, by the UIDs of their pods."""

    def __init__(
        self,
        node: Node,
        api: Callable[[], Awaitable[KubeApi]],
        address: str,
        attendance: Attendance,
        saved: Callable[[], list[ArtifactRow]] = list,
        under_way: Callable[[], dict[PodUid, str]] = dict,
    ) -> None:
        self._node = node
        self._saved = saved
        self._under_way = under_way
        self._attendance = attendance
        self._api = api
        self._address = address
        self._writes = Writes(api, node.world.blocking)
        self._wakeable: dict[PodUid, bool] = {}
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._events = Events(self._writes.put, node.world.wall, node.settings.node)
        self._ready = "", ""
        self._record = Record(node.settings.node)
        attendance.on_change(self._hurry)

    async def run(self) -> None:
        """Publish, for ever."""
        await asyncio.gather(self._writes.run(), self._publish_node())

    def touch(self) -> None:
        """Something that the GPUNode status shows has changed."""
        self._changed.set()

    # --- Observer -----------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self.touch()
        self._set_wakeable(seat)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self.touch()
        self._wakeable.pop(seat.uid, None)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""
        self.told_pod(seat.identity.pod, kind, reason, sentence)

    # --- Announcer ----------------------------------------------------------------------------

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """See `announce.Announcer`."""
        self._events.tell(pod.namespace, of_pod(pod), kind, reason, sentence)

    def told_node(self, kind: str, reason: str, sentence: str) -> None:
        """See `announce.Announcer`. Events of what has no namespace live in `default`."""
        name = self._node.settings.node
        about = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND, "name": name}
        self._events.tell("default", about, kind, reason, sentence)
        self.touch()

    # --- pods ---------------------------------------------------------------------------------

    def mark_seat(self, facts: PodFacts, seat: SeatName) -> None:
        """Write kyb.ai/seat once; this also makes the kubelet look at the pod again."""
        body = {"metadata": {"uid": facts.ref.uid, "annotations": {keys.SEAT: seat}}}
        self._writes.put(f"seat {facts.ref}", lambda api: api.patch(_path(facts.ref), body))

    def touch_pod(self, pod: PodRef) -> None:
        """Change an annotation of the pod: the kubelet looks at the pod again at once."""
        note = {keys.TOUCHED: stamp(self._node.world.wall())}
        body = {"metadata": {"uid": pod.uid, "annotations": note}}
        self._writes.put(f"touch {pod}", lambda api: api.patch(_path(pod), body))

    def mark_failed(self, pod: PodRef, sentence: str) -> None:
        """Say in the pod's status that it has to be replaced by another one."""
        condition = {
            "type": keys.REPLACE_CONDITION,
            "status": "True",
            "reason": "SeatsNotThere",
            "message": sentence,
            "lastTransitionTime": stamp(self._node.world.wall()),
        }
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        path = f"{_path(pod)}/status"
        self._writes.put(f"replace {pod}", lambda api: api.patch(path, body, "strategic"))

    def _set_wakeable(self, seat: Seat) -> None:
        late = _late(seat)
        value = seat.state in _WAKEABLE and not late
        if self._wakeable.get(seat.uid, None if seat.history.started_once else False) == value:
            return
        self._wakeable[seat.uid] = value
        condition = {
            "type": keys.WAKEABLE_CONDITION,
            "status": str(value),
            "reason": "Started" if value else "WakesTooLate" if late else "NotStarted",
            "message": "serves, or wakes on a request" if value else late or seat.history.reason,
            "lastTransitionTime": stamp(self._node.world.wall()),
        }
        ref = seat.identity.pod
        body = {"metadata": {"uid": ref.uid}, "status": {"conditions": [condition]}}
        path = f"{_path(ref)}/status"
        self._writes.put(f"wakeable {ref}", lambda api: api.patch(path, body, "strategic"))

    # --- GPUNode ------------------------------------------------------------------------------

    async def _publish_node(self) -> None:
        api = await self._api()
        written: dict[str, Any] | None = None
        clock, again = asyncio.get_running_loop().time, 0.0
        while True:
            self._changed.clear()
            self._urgent.clear()
            status = self.status()
            late = clock() >= again
            if (late or status != written) and await self._write_node(api, status):
                written, again = status, clock() + _REWRITE_S
            self._node.count_states()
            await self._told(self._changed, _LOOK_AGAIN)
            # After the change, not before it: a swap comes first, and its end is told with it.
            await self._told(self._urgent, self._node.settings.status_interval_s)

    def _hurry(self) -> None:
        self._changed.set()
        self._urgent.set()

    async def _told(self, event: asyncio.Event, limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), limit)

    async def _write_node(self, api: KubeApi, status: dict[str, Any]) -> bool:
        try:
            await self._node.world.blocking(lambda: self._record.write(api, status), WRITE_LIMIT)
        except KybernateError as error:
            log.warning("GPUNode %s is not written: %s", self._node.settings.node, error)
            return False
        return True

    def status(self) -> dict[str, Any]:
        """The GPUNode status now."""
        node, under_way = self._node, self._under_way()
        inventory = node.inventory or Inventory()
        status = Status(
            conditions=(self._ready_condition(), *self._notices()),
            agent=AgentAddress(self._address, agent_version()),
            driver=Driver(inventory.driver_version, inventory.cuda_version),
            device_strategy=inventory.strategy,
            gpus=tuple(
                GpuRow(g.index, g.uuid, g.product, g.memory, g.healthy, g.numa)
                for g in inventory.gpus
            ),
            links=tuple(LinkRow(*link) for link in inventory.links),
            groups=tuple(
                GroupRow(g.name, g.resource, g.gpus, g.seats, g.active_slots)
                for g in inventory.groups
            ),
            budget=Budget(node.park_budget, node.parked_bytes(), node.host_available),
            tiers=tuple(TierRow(*row) for row in tier_rows(node)),
            seats=tuple(
                _seat_row(node, seat, under_way.get(seat.uid, "")) for seat in node.seats.values()
            ),
            saved=tuple(self._saved()),
        )
        return status.dump()

    def _notices(self) -> list[Condition]:
        return [
            Condition(
                name,
                str(notice.ok),
                notice.reason,
                notice.message[:LONGEST_MESSAGE],
                stamp(notice.since),
            )
            for name, notice in sorted(self._node.notices.items())
        ]

    def _ready_condition(self) -> Condition:
        missing = self._attendance.missing()
        if self._node.inventory is None:
            missing = "its device plugin has not reported this node's GPUs yet"
        if self._node.draining:
            missing = f"it is drained ({self._node.draining}); kybernate agent undrain ends that"
        status = str(missing is None)
        if self._ready[0] != status:
            self._ready = status, stamp(self._node.world.wall())
        return Condition(
            "Ready",
            status,
            "SeatsUnavailable" if missing else "SeatsAvailable",
            missing or "agent, plugin and kubelet work together",
            self._ready[1],
        )


def _late(seat: Seat) -> str:
    """Why a wake from its tier takes longer than its pod calls ready; empty if it doesn't."""
    tier = TIER_OF.get(seat.state)
    if tier is None or seat.wishes.ready_within is None:
        return ""
    takes = expected_wake(seat)
    if takes <= seat.wishes.ready_within:
        return ""
    return (
        f"it is parked in {tier}, from where it takes about {takes:.1f} s to wake, and "
        f"kyb.ai/ready-within says {seat.wishes.ready_within:g} s"
    )


def _seat_row(node: Node, seat: Seat, operation: str) -> SeatRow:
    stranded = movable(node, seat)
    used, (tier, saved) = node.activity.get(seat.uid), resting(seat)
    return SeatRow(
        uid=seat.uid,
        name=seat.identity.name,
        group=seat.identity.group,
        namespace=seat.identity.pod.namespace,
        pod=seat.identity.pod.name,
        state=shown(seat.state),
        model=seat.identity.model,
        tier=tier,
        saved_bytes=saved,
        reason=seat.why[:LONGEST_MESSAGE],
        since=stamp(seat.history.since),
        requests=seat.demand.requests,
        active_seconds=round(seat.history.active_seconds, 3),
        wakes=seat.history.wakes,
        last_wake_ms=round(seat.history.last_wake_ms, 3),
        activity=_activity(used) if used else None,
        operation=operation,
        movable=bool(stranded),
        movable_reason=stranded,
    )


def _activity(used: Mapping[str, Any]) -> Activity:
    busy, calls = tuple(used["busy"]), tuple(used["calls"])
    return Activity(busy, calls, used["recentBusy"], used["recentCalls"])


def _path(pod: PodRef) -> str:
    return pods.path(pod.namespace, pod.name)
