"""What a GPUNode's status says: made from what the agent knows, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.api.events import stamp
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
    Summary,
    TierRow,
)
from kybernate.core.seat.seats import shown
from kybernate.core.tiers.tiers import about
from kybernate.types import SeatState, Tier
from nodeagent.kube.places import resting
from nodeagent.operations.wire import agent_version, movable, tier_rows
from nodeagent.seat.node import Inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.api.gpunodes import ArtifactRow
    from kybernate.types import PodUid
    from nodeagent.kube.attendance import Attendance
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat


class NodeStatus:
    """Of one node. `address`: the agent's; `saved`: where artifacts are; `under_way`: what is done
    for seats that somebody asked for, by the UIDs of their pods."""

    def __init__(
        self,
        node: Node,
        address: str,
        attendance: Attendance,
        saved: Callable[[], list[ArtifactRow]],
        under_way: Callable[[], dict[PodUid, str]],
    ) -> None:
        self._node = node
        self._address = address
        self._attendance = attendance
        self._saved = saved
        self._under_way = under_way
        self._ready = "", ""

    def now(self) -> dict[str, Any]:
        """The status, whole."""
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
            summary=_summary(node, inventory),
            saved=tuple(self._saved()),
            usage=node.used,
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


def _summary(node: Node, inventory: Inventory) -> Summary:
    states = [seat.state for seat in node.seats.values()]
    active = sum(shown(one) == SeatState.ACTIVE.value for one in states)
    parked = sum(shown(one) == SeatState.PARKED.value for one in states)
    free = max(0, sum(group.seats for group in inventory.groups) - len(states))
    full = {name: round(100 * used / most) for name, _, used, most in tier_rows(node) if most}
    return Summary(
        gpus=sum(gpu.healthy for gpu in inventory.gpus),
        seats=f"{active}/{parked}/{free}",
        ram_percent=full.get(Tier.RAM.value),
        nvme_percent=full.get(Tier.NVME.value),
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
        copied_bytes=seat.saved.copied,
        held_bytes=about(node.held(seat)) or None,
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
