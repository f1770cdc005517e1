"""What a GPUNode offers, read from its JSON. Pure.

A GPUNode is written by a node, and may be of another version or of no form at all: what can't be
understood is a sentence (`not_ready`) or left out, and never an exception.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kybernate.api.lenient import mapping, mappings, text, whole
from kybernate.api.podnotes import parse_link
from kybernate.core.ledger.ledger import NodeSeats
from kybernate.core.policy import balance
from kybernate.core.policy.balance import Load, Use
from kybernate.core.requests.evictions import EvictedSeat
from kybernate.core.swap.forecast import observed
from kybernate.core.tiers.tiers import Artifact, StoredArtifact, about
from kybernate.types import ArtifactId, Gpu, GpuUuid, Group, GroupName, Link, NodeName, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.core.swap.forecast import Traffic

    Json = dict[str, Any]

OF_STATUS = ("gpus", "links", "groups", "budget", "conditions", "deviceStrategy", "saved")
"""What of the status is read, beside `seats`."""

OF_SEATS = ("uid", "activity", "tier", "savedBytes", "heldBytes")
"""What of each seat is read. What it does now is most of a GPUNode, and changes with every swap."""

_OFFLOADED = (Tier.NVME, Tier.OBJECT)
_MOST = 1 << 62


def read_gpu_node(node: Json, reserve: int) -> NodeSeats:
    """Read a GPUNode; `reserve` is what no seat may use of a GPU, in bytes.

    A status that can't be read gives a node without groups whose `not_ready` says so.
    """
    name = NodeName(str(mapping(node.get("metadata")).get("name", "")))
    empty = NodeSeats(name, (), {}, (), reserve=reserve)
    status = node.get("status")
    if not status:
        return replace(empty, not_ready="its agent has not reported GPUs yet")
    try:
        gpus = tuple(_gpu(item) for item in status.get("gpus") or ())
        return replace(
            empty,
            gpus=gpus,
            links=dict(_link(item) for item in status.get("links") or ()),
            groups=tuple(_group(item) for item in status.get("groups") or ()),
            park_budget=_bytes(mapping(status.get("budget")).get("parkBytes")),
            not_ready=_not_ready(status.get("conditions") or ()),
            by_device_id=status.get("deviceStrategy") == "nodes",
            traffic=dict(_traffic(mappings(status.get("seats")))),
            rests=dict(_rests(mappings(status.get("seats")))),
            held=dict(_held(mappings(status.get("seats")))),
            saved=tuple(_saved(mappings(status.get("saved")))),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return replace(empty, not_ready=f"its GPUNode's status can't be read: {error!r}")


def read_load(node: Json) -> Load:
    """How busy the node's seats were of late. Empty if its status can't be read."""
    status = mapping(node.get("status"))
    try:
        groups = tuple(_group(one) for one in mappings(status.get("groups")))
    except (KeyError, TypeError, ValueError):
        return Load()
    uses = (
        Use(text(one.get("uid")), text(one.get("group")), _busy(one), whole(one.get("heldBytes")))
        for one in mappings(status.get("seats"))
    )
    return Load(
        tuple(
            balance.Group(
                str(one.name), one.resource, frozenset(one.gpus), one.seats, one.active_slots
            )
            for one in groups
        ),
        tuple(uses),
    )


def _busy(seat: Json) -> float:
    """The part of the time in which it served requests; what can't be is as far as it can be."""
    return min(max(whole(mapping(seat.get("activity")).get("recentBusy")), 0), 1000) / 1000


def evicted_seats(node: Json) -> dict[tuple[str, str], EvictedSeat]:
    """The node's seats as an eviction sees them, by namespace and name of their pods."""
    status = mapping(node.get("status"))
    keeps = any(row.get("name") == Tier.OBJECT.value for row in mappings(status.get("tiers")))
    return {
        (text(row.get("namespace")), text(row.get("pod"))): EvictedSeat(
            text(row.get("uid")),
            text(row.get("state")),
            text(row.get("tier")),
            text(row.get("operation")),
            keeps,
        )
        for row in mappings(status.get("seats"))
    }


def _traffic(seats: Iterable[Json]) -> Iterator[tuple[PodUid, Traffic]]:
    """What is told of when each seat is used. Without it a seat is one like any other."""
    for seat in seats:
        told = mapping(seat.get("activity"))
        recent = told.get("recentBusy") or 0, told.get("recentCalls") or 0
        try:
            traffic = observed(told["busy"], told["calls"], recent)
        except (KeyError, TypeError, ValueError):
            continue
        if traffic is not None:
            yield PodUid(str(seat.get("uid"))), traffic


def _gpu(item: Json) -> Gpu:
    return Gpu(
        uuid=GpuUuid(str(item["uuid"])),
        index=int(item["index"]),
        product=str(item["product"]),
        memory=int(item["memoryBytes"]),
        numa=int(item.get("numa", -1)),
        healthy=bool(item["healthy"]),
    )


def _link(item: Json) -> tuple[frozenset[GpuUuid], Link]:
    kind = parse_link(item["kind"])
    # A kind that only a newer agent knows is no reason to lose the node.
    return frozenset((GpuUuid(str(item["a"])), GpuUuid(str(item["b"])))), kind or Link.SYSTEM


def _group(item: Json) -> Group:
    return Group(
        name=GroupName(str(item["name"])),
        resource=str(item["resource"]),
        gpus=tuple(GpuUuid(str(uuid)) for uuid in item["gpus"]),
        seats=int(item["seats"]),
        active_slots=int(item.get("activeSlots", 1)),
    )


def _not_ready(conditions: Iterable[Json]) -> str | None:
    for condition in conditions:
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "it is not ready")
    return None


def _bytes(value: object) -> int | None:
    if value is None or type(value) is int:
        return value
    raise TypeError(value)


def _rests(seats: Iterable[Json]) -> Iterator[tuple[PodUid, Artifact]]:
    """The state of each seat that is offloaded. A seat of which nothing can be read counts
    as one in RAM."""
    for seat in seats:
        tier, size = seat.get("tier"), seat.get("savedBytes")
        if tier in _OFFLOADED and type(size) is int and 0 < size <= _MOST:
            yield PodUid(str(seat.get("uid"))), state_of(Tier(tier), size)


def _held(seats: Iterable[Json]) -> Iterator[tuple[PodUid, int]]:
    """The GPU memory that each seat was seen to hold."""
    for seat in seats:
        size = seat.get("heldBytes")
        if type(size) is int and 0 < size <= _MOST:
            yield PodUid(str(seat.get("uid"))), size


def _saved(rows: Iterable[Json]) -> Iterator[StoredArtifact]:
    """The artifacts that a node tells of; what can't be read is left out."""
    for row in rows:
        tier, size = row.get("tier"), row.get("bytes")
        if tier in _OFFLOADED and type(size) is int and 0 < size <= _MOST:
            artifact, uid = ArtifactId(str(row.get("artifact"))), PodUid(str(row.get("uid")))
            yield StoredArtifact(artifact, uid, Tier(tier), size)


@lru_cache(maxsize=4096)
def state_of(tier: Tier, size: int, node: NodeName | None = None) -> Artifact:
    """Rounded, and kept: states of one model are nearly alike."""
    return Artifact(tier, about(size), node)
