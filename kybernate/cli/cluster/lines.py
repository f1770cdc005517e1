"""What `seats` and `top` show of GPUNodes and pods. Pure."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.events import stamp
from kybernate.api.gpunodes import read_status
from kybernate.api.placements.status import read_placed
from kybernate.api.pods import is_true, read_pod
from kybernate.api.restoring.artifacts import read_artifact
from kybernate.cli.output import Listing, Row, age, human
from kybernate.core.policy.effective import SPOKEN_OF, Source
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from kybernate.api.gpunodes import GpuRow, SeatRow, Status
    from kybernate.api.pods import Pod
    from kybernate.core.artifacts.listed import Listed
    from kybernate.core.artifacts.placed import Placed
    from kybernate.core.policy.effective import Effective

    Json = dict[str, Any]

_IN_MEMORY = ("active", "draining")
_WAITS = ("NoSeat", "GangWaiting", "GangPlanned")
"""Reasons of the extender's events on pods that wait."""

_PENDING, _STARTING = "pending", "starting"

SEATS = ("NAMESPACE", "POD", "STATE", "TIER", "SIZE", "SINCE", "REQUESTS", "WAKES", "LAST WAKE")
SEATS_WIDE = (*SEATS, "NODE", "SEAT", "MODEL", "REASON")
GPUS = ("NODE", "GPU", "PRODUCT", "MEMORY", "HEALTH", "ACTIVE", "PARKED", "WAITING")
TIERS = ("NODE", "TIER", "SEATS", "USED", "BUDGET")
ARTIFACTS = ("ARTIFACT", "TIER", "SIZE", "NODE", "POD UID")
OBJECTS = (
    "NAMESPACE",
    "NAME",
    "POD",
    "TIER",
    "SIZE",
    "AGE",
    "NODES",
    "MODEL",
    "POLICY",
    "KEPT BY",
    "ARTIFACT",
)
NODES = ("NODE", "READY", "WHY")


@dataclass(frozen=True, slots=True)
class SeatLine:
    """A seat, or a pod that waits for one. `bytes` are those of its artifact, if it is offloaded;
    `last_wake_ms` is None if it has not woken yet."""

    namespace: str
    pod: str
    uid: str
    state: str
    node: str = ""
    group: str = ""
    seat: str = ""
    model: str = ""
    tier: str | None = None
    bytes: int | None = None
    since: str | None = None
    requests: int = 0
    wakes: int = 0
    last_wake_ms: float | None = None
    reason: str = ""


def statuses(items: Iterable[Json]) -> tuple[dict[str, Status], list[str]]:
    """GPUNodes by name, and a sentence for each that this version can't read."""
    found, problems = {}, []
    for item in items:
        try:
            name, status = read_status(item)
        except ConfigError as error:
            problems.append(f"{error}; a newer kybernate may read it")
        else:
            found[name] = status
    return found, problems


def seat_lines(nodes: Mapping[str, Status], items: Iterable[Json] = ()) -> list[SeatLine]:
    """The seats of the nodes, and pods that hold none, by namespace and pod.

    Where `nodes` has nothing of a pod, since it holds no seat or since nobody may read GPUNodes,
    the pod's own annotations and conditions are told.
    """
    found = {
        seat.uid: _of_seat(name, seat) for name, status in nodes.items() for seat in status.seats
    }
    for pod in map(read_pod, items):
        if pod.ask and not pod.over and pod.ref.uid not in found:
            found[pod.ref.uid] = _of_pod(pod)
    return sorted(found.values(), key=lambda line: (line.namespace, line.pod))


def seats_of(lines: Iterable[SeatLine], namespace: str | None, now: datetime) -> Listing:
    """The seats of a namespace, of all if it is None."""
    rows = tuple(
        Row(f"pod/{line.pod}", asdict(line), _seat_cells(line, now))
        for line in lines
        if namespace in (None, line.namespace)
    )
    where = f"in namespace {namespace}" if namespace else "in this cluster"
    return Listing(SEATS_WIDE, len(SEATS), rows, f"No pod holds a seat {where}, or waits for one.")


def gpus_of(nodes: Mapping[str, Status]) -> Listing:
    """GPUs, and who is on them."""
    rows = (_gpu(name, status, gpu) for name, status in nodes.items() for gpu in status.gpus)
    return Listing(GPUS, len(GPUS), tuple(rows), "No node has told of GPUs.")


def tiers_of(nodes: Mapping[str, Status]) -> Listing:
    """Where parked seats' states lie."""
    rows = tuple(
        Row(
            f"gpunode.{keys.GROUP}/{name}",
            {"node": name, **asdict(tier)},
            (
                name,
                tier.name,
                str(tier.seats),
                human(tier.used_bytes),
                human(tier.budget_bytes) if tier.budget_bytes else "-",
            ),
        )
        for name, status in nodes.items()
        for tier in status.tiers
    )
    return Listing(TIERS, len(TIERS), rows, "No node has told of tiers.")


def artifacts_of(nodes: Mapping[str, Status], namespace: str | None) -> Listing:
    """Artifacts of a namespace that nodes tell of, of all if it is None."""
    rows = tuple(
        Row(
            one.artifact,
            {"node": name, **asdict(one)},
            (one.artifact, one.tier, human(one.bytes), name, one.uid),
        )
        for name, status in nodes.items()
        for one in status.saved
        if namespace is None or one.artifact.startswith(f"{namespace}/")
    )
    return Listing(ARTIFACTS, len(ARTIFACTS), rows, "No node tells of an artifact.")


def artifact_lines(items: Iterable[Json], now: datetime, placed: Iterable[Json] = ()) -> Listing:
    """Artifacts, the newest first, and the TierPlacements by which they are `kept`; one that can't
    be read is left out."""
    placements = [(str(one["metadata"]["name"]), read_placed(one)) for one in placed]
    found = [(item, one) for item in items if (one := read_artifact(item)) is not None]
    found.sort(key=lambda pair: pair[1].created_ms, reverse=True)
    rows = tuple(_artifact(item, one, now, _keepers(one, placements, now)) for item, one in found)
    return Listing(OBJECTS, OBJECTS.index("NODES"), rows, "The registry tells of no artifact.")


def _keepers(one: Listed, by: Iterable[tuple[str, Placed]], now: datetime) -> str:
    at = now.timestamp()
    return ",".join(sorted(name for name, placed in by if placed.counts(one.artifact, at)))


def _artifact(item: Json, one: Listed, now: datetime, keepers: str) -> Row:
    meta = item["metadata"]
    nodes = sorted({copy.node for copy in one.copies if copy.node})
    cells = (
        *(meta["namespace"], meta["name"], one.pod, one.tier or "-", human(one.size)),
        age(stamp(one.created_ms / 1000), now),
        *(",".join(nodes) or "-", one.model or "-", one.policy or "-", keepers or "-"),
        one.artifact,
    )
    return Row(f"artifact.{keys.GROUP}/{meta['name']}", item, cells)


def unready(nodes: Mapping[str, Status]) -> Listing:
    """Nodes on which nothing starts or wakes, and why."""
    rows = tuple(_unready(nodes))
    return Listing(NODES, len(NODES), rows, "")


def explained(item: Json, events: Iterable[Json], nodes: Mapping[str, Status]) -> Json:
    """What a pod waits for, or what its seat does, and why; `events` are those of the pod."""
    pod = read_pod(item)
    if pod.ask is None:
        raise RefusedError(
            f"pod {pod.namespace}/{pod.ref.name} asks for no seat (kyb.ai/gpu-<n>x-seat)"
        )
    (line,) = (one for one in seat_lines(nodes, [item]) if one.uid == pod.ref.uid)
    found = {"pod": f"{line.namespace}/{line.pod}"}
    if line.state != _PENDING:
        return {**found, "summary": _doing(line)}
    why = {one.get("reason"): str(one.get("message")) for one in sorted(events, key=_last)}
    told = next((why[reason] for reason in reversed(why) if reason in _WAITS), "")
    scheduled = pod.condition("PodScheduled") or {}
    found["summary"] = told or str(scheduled.get("message") or "no scheduler has looked at it yet")
    return {**found, "scheduler": scheduled["message"]} if told and scheduled else found


def valued(found: Effective, notes: Mapping[str, str]) -> Json:
    """What counts for a pod of what policies may speak of, where that comes from, and until when it
    does unless somebody changes it."""
    rows = []
    for name in SPOKEN_OF:
        value = found.values.get(name)
        # What isn't said of these is no setting of the agent's.
        means_nothing = name == keys.RESTORE_ELSE and keys.RESTORE_FROM not in notes
        if value is None and (means_nothing or name == keys.ON_PREEMPT):
            continue
        row = {"annotation": name, "value": "", "source": _UNSAID.get(name, "the agent's setting")}
        if value is not None:
            row |= {"value": value.text, "source": _SOURCES[value.source].format(found.policy)}
        if (value is None or value.source is not Source.ANNOTATION) and found.until < inf:
            row["until"] = stamp(found.until)
        rows.append(row)
    return {"policy": found.policy, "values": rows}


_UNSAID = {keys.PRIORITY: "the pod's PriorityClass"}
_SOURCES = {
    Source.ANNOTATION: "the pod's annotation",
    Source.SCHEDULE: "a schedule of policy {}",
    Source.POLICY: "policy {}",
}


def _last(event: Json) -> str:
    return str(event.get("lastTimestamp") or "")


def _doing(line: SeatLine) -> str:
    where = f"on {line.node}, group {line.group}" if line.group else f"on {line.node}"
    tier = f" ({line.tier})" if line.tier else ""
    return f"it is {line.state}{tier} {where}" + (f": {line.reason}" if line.reason else "")


def _unready(nodes: Mapping[str, Status]) -> Iterator[Row]:
    for name, status in nodes.items():
        ready = next((one for one in status.conditions if one.type == "Ready"), None)
        if ready is None or ready.status != "True":
            why = ready.message if ready else "its agent has not reported yet"
            yield Row(f"gpunode.{keys.GROUP}/{name}", {"node": name}, (name, "no", why))


def _gpu(name: str, status: Status, gpu: GpuRow) -> Row:
    groups = {group.name for group in status.groups if gpu.uuid in group.gpus}
    here = [seat for seat in status.seats if seat.group in groups]
    active = [f"{seat.namespace}/{seat.pod}" for seat in here if seat.state in _IN_MEMORY]
    parked = sum(seat.state == "parked" for seat in here)
    waiting = sum(seat.state in ("waiting", "waking", "restoring") for seat in here)
    document = {**asdict(gpu), "node": name, "active": active, "parked": parked, "waiting": waiting}
    cells = (
        *(name, str(gpu.index), gpu.product, human(gpu.memory_bytes)),
        "healthy" if gpu.healthy else "lost",
        ", ".join(active) or "-",
        str(parked),
        str(waiting),
    )
    return Row(f"gpu/{gpu.uuid}", document, cells)


def _of_seat(node: str, seat: SeatRow) -> SeatLine:
    return SeatLine(
        namespace=seat.namespace,
        pod=seat.pod,
        uid=seat.uid,
        state=seat.state,
        node=node,
        group=seat.group,
        seat=seat.name,
        model=seat.model,
        tier=seat.tier,
        bytes=seat.saved_bytes,
        since=seat.since,
        requests=seat.requests,
        wakes=seat.wakes,
        last_wake_ms=seat.last_wake_ms if seat.wakes else None,
        reason=seat.movable_reason or seat.reason,
    )


def _of_pod(pod: Pod) -> SeatLine:
    where = (pod.condition("PodScheduled") or {}) if pod.node is None else {}
    active = pod.condition(keys.WAKEABLE_CONDITION) or {}
    return SeatLine(
        namespace=pod.namespace,
        pod=pod.ref.name,
        uid=str(pod.ref.uid),
        state=_PENDING if pod.node is None else _state(active),
        node=pod.node or "",
        group=pod.group or "",
        seat=pod.seat or "",
        model=pod.model,
        reason=str(where.get("message") or active.get("message") or ""),
    )


def _state(wakeable: Json) -> str:
    """What a pod tells of its seat to who may not read the node's own word."""
    return "wakeable" if is_true(wakeable) else _STARTING


def _seat_cells(line: SeatLine, now: datetime) -> tuple[str, ...]:
    return (
        *(line.namespace, line.pod, line.state, line.tier or "-"),
        "-" if line.bytes is None else human(line.bytes),
        age(line.since, now) if line.since else "-",
        *(str(line.requests), str(line.wakes)),
        "-" if line.last_wake_ms is None else f"{line.last_wake_ms:.0f} ms",
        *(line.node or "-", line.seat or "-", line.model or "-", line.reason or "-"),
    )
