"""What the agent writes to Kubernetes: GPUNode status, pod conditions, annotations, events.

Nothing waits for it: see `writes`. What the GPUNode's status says is made by `nodestatus`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api import pods
from kybernate.api.events import of_pod, stamp
from kybernate.core.seat.seats import TIER_OF
from kybernate.errors import KybernateError
from kybernate.types import SeatState
from nodeagent.kube.events import Events
from nodeagent.kube.gpunode import WRITE_LIMIT, Record
from nodeagent.kube.nodestatus import NodeStatus
from nodeagent.kube.writes import Writes
from nodeagent.operations.wire import expected_wake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.api.gpunodes import ArtifactRow
    from kybernate.ports import KubeApi
    from kybernate.types import PodRef, PodUid, SeatName
    from nodeagent.kube.attendance import Attendance
    from nodeagent.kube.pods import PodFacts
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_LOOK_AGAIN = 2.0
_REWRITE_S = 300.0
"""Seconds after which the GPUNode is written although nothing changed: somebody may have taken it
away."""
_WAKEABLE = (
    SeatState.ACTIVE,
    SeatState.DRAINING,
    SeatState.PARKING,
    *TIER_OF,
    SeatState.WAKING,
)


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
        self._api = api
        self.status = NodeStatus(node, address, attendance, saved, under_way)
        self._writes = Writes(api, node.world.blocking)
        self._wakeable: dict[PodUid, bool] = {}
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._events = Events(self._writes.put, node.world.wall, node.settings.node)
        self._record = Record(node.settings.node)
        attendance.on_change(self.hurry)

    async def run(self) -> None:
        """Publish, for ever."""
        await asyncio.gather(self._writes.run(), self._publish_node())

    def touch(self) -> None:
        """Something that the GPUNode status shows has changed."""
        self._changed.set()

    def hurry(self) -> None:
        """Somebody waits for what the GPUNode status shows now: such as an eviction, for the end of
        what its pod's seat was asked for."""
        self._changed.set()
        self._urgent.set()

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
        late, away = _late(seat), _away(seat)
        value = seat.state in _WAKEABLE and not late and not away
        if self._wakeable.get(seat.uid, None if seat.history.started_once else False) == value:
            return
        self._wakeable[seat.uid] = value
        why = "WakesTooLate" if late else "NotActive" if away else "NotStarted"
        said = late or away or seat.history.reason
        condition = {
            "type": keys.WAKEABLE_CONDITION,
            "status": str(value),
            "reason": "Started" if value else why,
            "message": "serves, or wakes on a request" if value else said,
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
            status = self.status.now()
            late = clock() >= again
            if (late or status != written) and await self._write_node(api, status):
                written, again = status, clock() + _REWRITE_S
            self._node.count_states()
            await self._told(self._changed, _LOOK_AGAIN)
            # After the change, not before it: a swap comes first, and its end is told with it.
            await self._told(self._urgent, self._node.settings.status_interval_s)

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


def _away(seat: Seat) -> str:
    """Why a seat that would wake makes its pod not ready, by the pod's own word; else empty."""
    if not seat.wishes.ready_active or seat.state is SeatState.ACTIVE:
        return ""
    if seat.state not in _WAKEABLE:
        return ""
    return f"it is {seat.state}, and kyb.ai/ready-while says active"


def _path(pod: PodRef) -> str:
    return pods.path(pod.namespace, pod.name)
