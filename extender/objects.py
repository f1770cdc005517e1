"""Pods and GPUNodes as the extender understands them, read from their JSON. Pure.

Reading is lenient where the object exists whatever we think of it: what can't be understood
becomes a sentence (`problem`, `not_ready`) and never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from extender.states import read_rests, read_saved
from kybernate import keys
from kybernate.api import podnotes, pods
from kybernate.core.forecast import observed
from kybernate.core.ledger import Claim, NodeSeats
from kybernate.core.placement import Choosing, Demand
from kybernate.core.sharing import Sharing
from kybernate.errors import ConfigError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, NodeName, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kybernate.core.forecast import Traffic
    from kybernate.types import PodRef

    Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """The cluster's rules, under which every pod is read wherever it comes from (a watch, a call,
    the API server): one read without them could get a seat beside one that it must not share with.

    `apart`: no two models share that are hot at the same hours. `choosing`: who is placed how.
    """

    sharing: Sharing = field(default_factory=Sharing)
    apart: bool = False
    choosing: Choosing = field(default_factory=Choosing)


@dataclass(frozen=True, slots=True)
class SeatPod:
    """What placing a pod needs to know of it.

    `resource` is None if it asks for no seat, `demand` also if what it asks for can't be had
    anywhere: then `problem` says why and what to write instead. `seated` says that the node's agent
    has seen which device ID it got. `gang` is the name of the gang that it belongs to, if any.
    `preempts` is False if its priority class says that it takes nobody's place; `leaving` says that
    it is being deleted. `model` is what it serves, `party` says with whom it may share GPUs,
    `restore` from which saved state it wants to go on.
    """

    ref: PodRef
    resource: str | None
    demand: Demand | None
    problem: str
    node: NodeName | None
    group: GroupName | None
    expendable: bool
    finished: bool
    seated: bool = False
    gang: str = ""
    priority: int = 0
    preempts: bool = True
    leaving: bool = False
    model: str = ""
    party: str = ""
    restore: str = ""

    def claim(self) -> Claim | None:
        """The seat that the pod holds: none before it is bound and after it has ended."""
        if self.node is None or self.resource is None or self.finished:
            return None
        vram = self.demand.vram if self.demand else None
        return Claim(self.ref, self.node, self.group, self.resource, vram, self.party)


def read_pod(raw: Json, rules: Rules) -> SeatPod:
    """Read a pod, whole or without what nobody reads."""
    pod = pods.read_pod(raw)
    ref, ask, notes = pod.ref, pod.ask, pod.notes
    party = rules.sharing.party(ref.namespace, pod.labels if rules.sharing.labels else {})
    demand, problem = None, ""
    try:
        pod.check()
        demand = _demand(ask.resource, pod, party, rules) if ask else None
    except ConfigError as error:
        problem = str(error)
    return SeatPod(
        ref=ref,
        resource=ask.resource if ask else None,
        demand=demand,
        problem=problem,
        node=pod.node,
        group=pod.group,
        expendable=_expendable(notes),
        finished=pod.over,
        seated=pod.seat is not None,
        gang=pod.gang,
        priority=pod.priority,
        preempts=pod.preempts,
        leaving=pod.leaving,
        model=pod.model or ref.name,
        party=party,
        restore=notes.get(keys.RESTORE_FROM, ""),
    )


def _expendable(notes: Mapping[str, str]) -> bool:
    try:
        return podnotes.expendable(notes)
    except ConfigError:
        return False


def _demand(resource: str, pod: pods.Pod, party: str, rules: Rules) -> Demand:
    """What the pod asks for. Raises ConfigError."""
    own = pod.notes.get(keys.POLICY, "")
    policy = rules.choosing.name(pod.namespace, pod.scheduler, own)
    stated = tuple((name, pod.notes[name]) for name in _OF_DEMAND if name in pod.notes)
    return _demand_of(resource, party, rules.apart, policy, stated)


_OF_DEMAND = (
    keys.VRAM,
    keys.GPU_PRODUCT,
    keys.PREFER_GROUP,
    keys.REQUIRE_GROUP,
    keys.GPU_TOPOLOGY,
)


@lru_cache(4096)
def _demand_of(
    resource: str, party: str, apart: bool, policy: str, stated: tuple[tuple[str, str], ...]
) -> Demand:
    """Pods of one workload share one object, which is read once."""
    notes = dict(stated)
    prefer, require = notes.get(keys.PREFER_GROUP), notes.get(keys.REQUIRE_GROUP)
    return Demand(
        resource=resource,
        vram=podnotes.vram(notes),
        products=podnotes.products(notes),
        prefer_group=GroupName(prefer) if prefer else None,
        require_group=GroupName(require) if require else None,
        topology=podnotes.topology(notes),
        party=party,
        apart=apart,
        policy=policy,
    )


def read_gpu_node(node: Json, reserve: int) -> NodeSeats:
    """Read a GPUNode; `reserve` is what no seat may use of a GPU, in bytes.

    A status that can't be read gives a node without groups whose `not_ready` says so.
    """
    name = NodeName(str(_dict(node.get("metadata")).get("name", "")))
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
            park_budget=_dict(status.get("budget")).get("parkBytes"),
            not_ready=_not_ready(status.get("conditions") or ()),
            by_device_id=status.get("deviceStrategy") == "nodes",
            traffic=dict(_traffic(_dicts(status.get("seats")))),
            rests=dict(read_rests(_dicts(status.get("seats")))),
            saved=tuple(read_saved(_dicts(status.get("saved")))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return replace(empty, not_ready=f"its GPUNode's status can't be read: {error!r}")


TOLD_OF_SEATS = ("activity", "tier", "savedBytes")
"""What the status of a seat says that `read_gpu_node` reads, beside the UID of its pod."""


def _traffic(seats: Iterable[Json]) -> Iterator[tuple[PodUid, Traffic]]:
    """What is told of when each seat is used. Without it a seat is one like any other."""
    for seat in seats:
        told = _dict(seat.get("activity"))
        recent = told.get("recentBusy") or 0, told.get("recentCalls") or 0
        try:
            traffic = observed(told["busy"], told["calls"], recent)
        except (KeyError, TypeError, ValueError):
            continue
        if traffic is not None:
            yield PodUid(str(seat.get("uid"))), traffic


def _gpu(item: Json) -> Gpu:
    return Gpu(
        uuid=GpuUuid(item["uuid"]),
        index=int(item["index"]),
        product=str(item["product"]),
        memory=int(item["memoryBytes"]),
        numa=int(item.get("numa", -1)),
        healthy=bool(item["healthy"]),
    )


def _link(item: Json) -> tuple[frozenset[GpuUuid], Link]:
    kind = podnotes.parse_link(item["kind"])
    # A kind that only a newer agent knows is no reason to lose the node.
    return frozenset((GpuUuid(item["a"]), GpuUuid(item["b"]))), kind or Link.SYSTEM


def _group(item: Json) -> Group:
    return Group(
        name=GroupName(item["name"]),
        resource=str(item["resource"]),
        gpus=tuple(GpuUuid(uuid) for uuid in item["gpus"]),
        seats=int(item["seats"]),
        active_slots=int(item.get("activeSlots", 1)),
    )


def _not_ready(conditions: Iterable[Json]) -> str | None:
    for condition in conditions:
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "it is not ready")
    return None


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Iterator[Json]:
    return (
        (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
    )
