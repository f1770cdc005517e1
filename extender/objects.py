"""Pods and GPUNodes as the extender understands them, read from their JSON. Pure.

Reading is lenient where the object exists whatever we think of it: what can't be understood
becomes a sentence (`problem`, `not_ready`) and never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any

from extender.house import HOUSE
from extender.states import read_rests, read_saved
from kybernate import keys
from kybernate.core.forecast import observed
from kybernate.core.ledger import Claim, NodeSeats
from kybernate.core.placement import Demand
from kybernate.core.quantity import parse_quantity
from kybernate.errors import ConfigError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.core.forecast import Traffic

    Json = dict[str, Any]

_FINISHED = ("Succeeded", "Failed")

_LINKS = {
    "system": Link.SYSTEM,
    "numa": Link.NUMA_NODE,
    "numanode": Link.NUMA_NODE,
    "hostbridge": Link.HOST_BRIDGE,
    "pcie": Link.PCIE_SWITCH,
    "pcieswitch": Link.PCIE_SWITCH,
    "nvlink": Link.NVLINK,
}


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


def slim_pod(pod: Json) -> Json:
    """The parts of a pod that `read_pod` reads, and those by which a watch keeps pods apart."""
    meta, spec = _dict(pod.get("metadata")), _dict(pod.get("spec"))
    notes = _dict(meta.get("annotations"))
    more = _OF_GANGS if keys.GANG in notes else ()
    labels = _dict(meta.get("labels"))
    return {
        "metadata": {
            **{k: meta[k] for k in (*_NAMES, *more) if k in meta},
            **({_DELETED: meta[_DELETED]} if _DELETED in meta else {}),
            "annotations": {k: v for k, v in notes.items() if k in _ANNOTATIONS},
            **({"labels": _named(labels)} if HOUSE.sharing.labels else {}),
        },
        "spec": {
            **{k: spec[k] for k in (*_RANK, *more) if k in spec},
            **({_PROFILE: spec.get(_PROFILE)} if HOUSE.choosing.profiles else {}),
            "nodeName": spec.get("nodeName"),
            "containers": [_slim_container(c) for c in _dicts(spec.get("containers"))],
            "initContainers": [_slim_container(c) for c in _dicts(spec.get("initContainers"))],
        },
        "status": {"phase": _dict(pod.get("status")).get("phase")},
    }


def read_pod(pod: Json) -> SeatPod:
    """Read a pod, whole or slimmed."""
    meta, spec = _dict(pod.get("metadata")), _dict(pod.get("spec"))
    notes = _dict(meta.get("annotations"))
    seats = list(_seats(_dicts(spec.get("containers"))))
    resource = seats[0][0] if seats else None
    party = HOUSE.sharing.party(str(meta.get("namespace", "")), _named(_dict(meta.get("labels"))))
    demand, problem = None, ""
    try:
        _check_seats(seats, list(_seats(_dicts(spec.get("initContainers")))))
        demand = _demand(resource, meta, spec, party) if resource else None
    except ConfigError as error:
        problem = str(error)
    group = notes.get(keys.ASSIGNED_GROUP)
    return SeatPod(
        ref=PodRef(
            intern(str(meta.get("namespace", ""))),
            str(meta.get("name", "")),
            PodUid(str(meta.get("uid", ""))),
        ),
        resource=resource,
        demand=demand,
        problem=problem,
        node=NodeName(intern(str(spec["nodeName"]))) if spec.get("nodeName") else None,
        group=GroupName(intern(str(group))) if group else None,
        expendable=notes.get(keys.ON_PREEMPT) == "kill",
        finished=_dict(pod.get("status")).get("phase") in _FINISHED,
        seated=keys.SEAT in notes,
        gang=str(notes.get(keys.GANG) or ""),
        priority=_whole(spec.get("priority")),
        preempts=spec.get("preemptionPolicy") != "Never",
        leaving=bool(meta.get(_DELETED)),
        model=str(notes.get(keys.MODEL) or meta.get("name", "")),
        party=party,
        restore=str(notes.get(keys.RESTORE_FROM) or ""),
    )


def slim_node(node: Json) -> Json:
    """The parts of a GPUNode that `read_gpu_node` reads, and those by which a watch keeps nodes
    apart. What its seats do now is most of a GPUNode, and changes with every swap."""
    meta, status = _dict(node.get("metadata")), _dict(node.get("status"))
    slim = {"metadata": {k: meta[k] for k in _OF_NODES if k in meta}}
    if not status:
        return slim
    seats = [
        {k: seat[k] for k in ("uid", *TOLD_OF_SEATS) if k in seat}
        for seat in _dicts(status.get("seats"))
        if any(k in seat for k in TOLD_OF_SEATS)
    ]
    return {**slim, "status": {**{k: status[k] for k in _STATUS if k in status}, "seats": seats}}


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


@lru_cache(256)
def parse_link(text: str) -> Link | None:
    """The kind of link that a person or an agent names, or None if there is no such kind."""
    return _LINKS.get(text.lower().replace("-", "").replace("_", "").replace(" ", ""))


_NAMES = ("namespace", "name", "uid", "resourceVersion")
_OF_GANGS = ("creationTimestamp", "deletionTimestamp", "schedulingGates", "priority")
_OF_NODES = ("name", "uid", "resourceVersion", "ownerReferences")
_STATUS = ("gpus", "links", "groups", "budget", "conditions", "deviceStrategy", "saved")

TOLD_OF_SEATS = ("activity", "tier", "savedBytes")
"""What the status of a seat says that `read_gpu_node` reads, beside the UID of its pod."""


def has_wishes(pod: Json) -> bool:
    """Whether the pod says which nodes it would rather have, in ways that the scheduler weighs."""
    spec = _dict(pod.get("spec"))
    kinds = (_dict(one) for one in _dict(spec.get("affinity")).values())
    spread = _dicts(spec.get("topologySpreadConstraints"))
    return any(one.get(_PREFERRED) for one in kinds) or any(
        one.get("whenUnsatisfiable") == "ScheduleAnyway" for one in spread
    )


_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ANNOTATIONS = (
    keys.MODEL,
    *(keys.GANG, keys.GANG_SIZE, keys.GANG_PLAN),
    *(keys.VRAM, keys.GPU_PRODUCT, keys.GPU_TOPOLOGY, keys.PREFER_GROUP, keys.REQUIRE_GROUP),
    *(keys.ASSIGNED_GROUP, keys.SEAT, keys.ON_PREEMPT, keys.POLICY, keys.RESTORE_FROM),
)


def _named(labels: Json) -> dict[str, str]:
    """The labels that the cluster's rule names."""
    return {name: str(labels[name]) for name in HOUSE.sharing.labels if name in labels}


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


def _slim_container(container: Json) -> Json:
    limits = _dict(_dict(container.get("resources")).get("limits"))
    seats = {name: amount for name, amount in limits.items() if keys.seat_resource_size(name)}
    return {"name": container.get("name"), "resources": {"limits": seats}} if seats else {}


def _seats(containers: Iterable[Json]) -> Iterator[tuple[str, str, str]]:
    """Resource, amount and container of each seat that is asked for."""
    for container in containers:
        limits = _dict(_dict(container.get("resources")).get("limits"))
        for name, amount in sorted(limits.items()) if limits else ():
            if keys.seat_resource_size(name) and str(amount) != "0":
                yield name, str(amount), str(container.get("name"))


def _check_seats(seats: list[tuple[str, str, str]], init: list[tuple[str, str, str]]) -> None:
    if init:
        raise ConfigError(
            f"initContainers[{init[0][2]}].resources.limits",
            f"{init[0][0]} can't be held by an init container; ask for it in a container",
        )
    if len(seats) > 1:
        names = ", ".join(f"{name} in {container}" for name, _, container in seats)
        raise ConfigError("resources.limits", f"a pod holds one seat, not several ({names})")
    if seats and seats[0][1] != "1":
        raise ConfigError(
            f"resources.limits[{seats[0][0]}]",
            f'must be "1": a seat of several GPUs is another resource, such as {_EXAMPLE}',
        )


_EXAMPLE = keys.seat_resource(2)


def _demand(resource: str, meta: Json, spec: Json, party: str) -> Demand:
    notes = _dict(meta.get("annotations"))
    namespace, profile = str(meta.get("namespace", "")), str(spec.get(_PROFILE, ""))
    policy = HOUSE.choosing.name(namespace, profile, str(notes.get(keys.POLICY) or ""))
    return _demand_of(resource, party, HOUSE.apart, policy, *map(notes.get, _OF_DEMAND))


_PROFILE = "schedulerName"
_OF_DEMAND = (
    keys.VRAM,
    keys.GPU_PRODUCT,
    keys.PREFER_GROUP,
    keys.REQUIRE_GROUP,
    keys.GPU_TOPOLOGY,
)


@lru_cache(4096)
def _demand_of(resource: str, party: str, apart: bool, policy: str, *notes: str | None) -> Demand:
    """Pods of one workload share one object, which is read once."""
    vram, product, prefer, require, topology = notes
    products = (one.strip() for one in (product or "").split("|"))
    return Demand(
        resource=resource,
        vram=None if vram is None else parse_quantity(vram, keys.VRAM),
        products=tuple(one for one in products if one),
        prefer_group=GroupName(prefer) if prefer else None,
        require_group=GroupName(require) if require else None,
        topology=_topology(topology),
        party=party,
        apart=apart,
        policy=policy,
    )


def _topology(text: str | None) -> Link | None:
    if not text:
        return None
    link = parse_link(text)
    if link is None:
        raise ConfigError(
            keys.GPU_TOPOLOGY,
            f"{text!r} is no kind of link; write nvlink, pcie-switch, host-bridge, numa-node "
            "or system",
        )
    return link


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
    kind = parse_link(item["kind"])
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


_RANK = ("priority", "preemptionPolicy")
_DELETED = "deletionTimestamp"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Iterator[Json]:
    return (
        (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
    )
