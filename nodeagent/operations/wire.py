"""Between the agent's records and the messages of its API."""

from __future__ import annotations

import functools
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from kybernate.core.seat.operations import Kind
from kybernate.core.seat.seats import TIER_OF, shown
from kybernate.core.tiers.tiers import Artifact, wake_seconds
from kybernate.gen import agent_pb2 as pb
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, Tier
from nodeagent.seat.node import Inventory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.operations.record import Operation
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat


@functools.cache
def agent_version() -> str:
    """This agent's version; "0" when it runs from its sources."""
    try:
        return version("kybernate")
    except PackageNotFoundError:
        return "0"


def inventory_from(report: pb.ReportInventoryRequest) -> Inventory:
    """The plugin's report."""
    return Inventory(
        tuple(
            Gpu(GpuUuid(g.uuid), g.index, g.product, g.memory_bytes, g.numa, g.healthy)
            for g in report.gpus
        ),
        tuple((link.a, link.b, link.kind) for link in report.links),
        tuple(
            Group(
                GroupName(g.name),
                g.resource,
                tuple(GpuUuid(uuid) for uuid in g.gpus),
                g.seats,
                g.active_slots or 1,
            )
            for g in report.groups
        ),
        report.driver_version,
        report.cuda_version,
        report.device_strategy or "cdi",
    )


def inventory_answer(node: Node) -> pb.ReportInventoryResponse:
    """What the plugin must know to cut groups and offer seats."""
    held = {str(seat.identity.group) for seat in node.seats.values()}
    return pb.ReportInventoryResponse(park_budget_bytes=node.park_budget, held_groups=sorted(held))


def holdings_message(node: Node) -> pb.Holdings:
    """What is held here, and what may still be parked."""
    seats = sorted(node.seats.values(), key=lambda seat: seat.uid)
    return pb.Holdings(
        park_budget_bytes=node.park_budget,
        parked_bytes=node.parked_bytes(),
        seats=[
            pb.HeldSeat(
                device_id=seat.identity.device_id,
                group=seat.identity.group,
                vram_bytes=seat.identity.vram or 0,
            )
            for seat in seats
        ],
    )


def movable(node: Node, seat: Seat) -> str:
    """Why a parked seat can't wake here, as a sentence; empty if it can."""
    inventory = node.inventory
    if inventory is None or seat.state not in TIER_OF or node.places(seat):
        return ""
    for uuid in seat.identity.gpus:
        gpu = inventory.gpu(uuid)
        if gpu is None or not gpu.healthy:
            return (
                f"GPU {uuid} is lost: it stays parked here until the GPU is back, "
                "or may be moved to another node"
            )
    return ""


def measured_wake(seat: Seat) -> float | None:
    """What a parked seat's last wake from its tier took (s); None if unknown, and of others."""
    tier = TIER_OF.get(seat.state)
    return seat.history.wake_from(tier) if tier else None


def expected_wake(seat: Seat) -> float:
    """How long a parked seat is expected to take from its tier into its GPUs (s); 0.0 of others.
    What isn't measured is a guess, by the table of tiers."""
    tier, measured = TIER_OF.get(seat.state), measured_wake(seat)
    if measured is not None:
        return measured
    if tier is None:
        return 0.0
    size = sum(seat.tree.held.values()) if tier is Tier.RAM else seat.saved.size
    return wake_seconds(Artifact(tier, size), NodeName(""), len(seat.identity.gpus))


def seat_message(seat: Seat, stranded: str = "") -> pb.Seat:
    """A seat as proxies and people see it. `stranded`: why it can't wake here, see `movable`."""
    return pb.Seat(
        uid=seat.uid,
        name=seat.identity.name,
        group=seat.identity.group,
        namespace=seat.identity.pod.namespace,
        pod=seat.identity.pod.name,
        model=seat.identity.model,
        state=shown(seat.state),
        address=seat.contact.address,
        in_flight=seat.demand.in_flight,
        waiting=seat.demand.waiting,
        wakes=seat.history.wakes,
        last_wake_ms=seat.history.last_wake_ms,
        active_seconds=seat.history.active_seconds,
        requests=seat.demand.requests,
        reason=seat.why,
        generation=seat.history.lease,
        movable=bool(stranded),
        movable_reason=stranded,
        since=seat.history.since,
        held_bytes=sum(seat.tree.held.values()),
        unparkable=seat.backoff.unparkable,
        leave=seat.wishes.leave,
        tier=TIER_OF.get(seat.state, ""),
        saved_bytes=seat.saved.size,
        undumpable=seat.saved.undumpable,
        wake_seconds=expected_wake(seat),
        wake_measured=measured_wake(seat) is not None,
        refused=seat.backoff.refused,
        weight=seat.wishes.turn_weight,
        predecessor=seat.saved.predecessor,
    )


def operation_message(operation: Operation) -> pb.Operation:
    """An operation as its watchers see it."""
    saved = None
    if operation.saved is not None:
        tier = operation.saved_in or Tier.RAM
        keeps = operation.kind is Kind.SAVE or bool(operation.left_s)
        saved = pb.Saved(tier=tier.value, bytes=operation.saved, outlives_pod=keeps)
    return pb.Operation(
        name=operation.name,
        kind=operation.kind.value,
        uid=operation.uid,
        namespace=operation.namespace,
        pod=operation.pod,
        state=operation.state.value,
        sentence=operation.sentence,
        why=operation.why,
        by=operation.by,
        created_at=operation.created_at,
        started_at=operation.started_at,
        ended_at=operation.ended_at,
        due_at=operation.due_at,
        phases=[pb.Phase(name=name, seconds=took) for name, took in operation.phases.items()],
        done=operation.done,
        total=operation.total,
        saved=saved,
        tier=operation.tier or "",
        artifact=operation.artifact,
        successor=operation.successor,
        report=operation.report,
        bytes_done=operation.bytes_done,
        bytes_total=operation.bytes_total,
    )


def status_message(node: Node, used: Mapping[GpuUuid, int]) -> pb.NodeStatus:
    """The whole node. `used` in bytes by GPU, as NVML says."""
    inventory = node.inventory or Inventory()
    return pb.NodeStatus(
        node=node.settings.node,
        gpus=[
            pb.Gpu(
                uuid=g.uuid,
                index=g.index,
                product=g.product,
                memory_bytes=g.memory,
                numa=g.numa,
                healthy=g.healthy,
            )
            for g in inventory.gpus
        ],
        links=[pb.Link(a=a, b=b, kind=kind) for a, b, kind in inventory.links],
        groups=[
            pb.Group(
                name=g.name,
                resource=g.resource,
                gpus=g.gpus,
                seats=g.seats,
                active_slots=g.active_slots,
            )
            for g in inventory.groups
        ],
        seats=[seat_message(seat, movable(node, seat)) for seat in node.seats.values()],
        used_bytes={str(gpu): size for gpu, size in used.items()},
        park_budget_bytes=node.park_budget,
        parked_bytes=node.parked_bytes(),
        draining=node.draining,
        version=agent_version(),
        tiers=[
            pb.TierUse(name=name, seats=seats, used_bytes=used, budget_bytes=budget)
            for name, seats, used, budget in tier_rows(node)
        ],
    )


def tier_rows(node: Node) -> list[tuple[str, int, int, int]]:
    """Of each tier of this node: name, seats, bytes used, and bytes there are, 0 for no limit."""
    rows = []
    for tier, limit in node.tiers().items():
        seats, used = node.in_tier(tier)
        rows.append((tier.value, seats, used, 0 if limit == sys.maxsize else limit))
    return rows
