"""What the agent reads from pods of its node, and a cache of them fed by a watch."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.core.quantity import parse_duration, parse_quantity
from kybernate.core.restores import read_wish
from kybernate.core.seatwishes import read_idle, read_turn
from kybernate.errors import ConfigError
from kybernate.types import GroupName, PodRef, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.core.restores import RestoreWish

log = logging.getLogger(__name__)

_SPEC = ("image", "command", "args", "env", "envFrom", "workingDir", "ports", "securityContext")
_OF_ONE_POD = "kube-api-access-"
_MOST_GONE = 1024


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A managed pod, as far as the agent cares. `assigned_at` in wall-clock seconds.

    `group` is None if the pod never passed the extender. `over` says that it has ended for
    good: its phase is Succeeded or Failed. `grace`: seconds between SIGTERM and SIGKILL.
    `keep_connections`: idle ones aren't reset when the seat is parked. `park_tier`: how deep its
    state may go. `ready_within` (s): what is a timely wake, None if the pod doesn't say.
    `spec_hash` is of what the seat's container is, alike for all replicas of one template.
    `restore`: the saved state that it wants to go on from. `weight`: of a seat that always wants
    its GPUs, None if it waits for requests. `idle` (s): unused for so long it leaves GPU memory
    ("vram") or the tier of that name.
    """

    ref: PodRef
    resource: str
    container: str
    group: GroupName | None
    assigned_at: float
    seat: str | None
    model: str
    vram: int | None
    image: str
    port: int | None
    has_args: bool
    ip: str
    deleting: bool
    over: bool
    priority: int = 0
    grace: float = 30.0
    keep_connections: bool = False
    park_tier: Tier = Tier.OBJECT
    ready_within: float | None = None
    spec_hash: str = ""
    restore: RestoreWish | None = None
    weight: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)


def read_pod(pod: Mapping[str, Any]) -> PodFacts | None:
    """The facts, or None if no container of the pod asks for a seat.

    Raises ConfigError if kyb.ai/vram isn't a quantity, or kyb.ai/restore-from names no state.
    """
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    found = _seat_container(spec.get("containers") or ())
    if found is None:
        return None
    container, resource = found
    notes = meta.get("annotations") or {}
    vram = notes.get(keys.VRAM)
    ports = container.get("ports") or ()
    return PodFacts(
        ref=PodRef(meta["namespace"], meta["name"], PodUid(meta["uid"])),
        resource=resource,
        container=container["name"],
        group=GroupName(notes[keys.ASSIGNED_GROUP]) if notes.get(keys.ASSIGNED_GROUP) else None,
        assigned_at=_assigned_at(meta, notes),
        seat=notes.get(keys.SEAT),
        model=notes.get(keys.MODEL) or "",
        vram=parse_quantity(vram, keys.VRAM) if vram else None,
        image=container.get("image", ""),
        port=ports[0].get("containerPort") if ports else None,
        has_args=bool(container.get("args")),
        ip=status.get("podIP") or "",
        deleting=bool(meta.get("deletionTimestamp")),
        over=status.get("phase") in ("Succeeded", "Failed"),
        priority=spec.get("priority") or 0,
        grace=float(spec.get("terminationGracePeriodSeconds") or 30),
        keep_connections=notes.get(keys.CONNECTIONS) == "keep",
        park_tier=_park_tier(meta, notes),
        ready_within=_ready_within(meta, notes),
        spec_hash=_spec_hash(container),
        restore=read_wish(notes),
        weight=_weight(meta, notes, callable_=bool(notes.get(keys.MODEL) or ports)),
        idle=_idle(meta, notes),
    )


class PodCache:
    """The node's managed pods by UID. Fed on the loop; `on_change` hears of each one."""

    def __init__(
        self, on_change: Callable[[PodFacts], None], on_gone: Callable[[PodUid], None]
    ) -> None:
        self._pods: dict[PodUid, PodFacts] = {}
        self._gone: deque[PodUid] = deque(maxlen=_MOST_GONE)
        self._on_change = on_change
        self._on_gone = on_gone

    def event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """An event of the watch: ADDED, MODIFIED or DELETED."""
        uid = PodUid(pod["metadata"]["uid"])
        if kind == "DELETED":
            self._pods.pop(uid, None)
            self._gone.append(uid)
            self._on_gone(uid)
            return
        try:
            facts = read_pod(pod)
        except ConfigError as error:
            # Its container will be refused with this sentence; here it only isn't awaited.
            log.info("pod %s: %s", uid, error)
            return
        if facts is not None:
            self._pods[uid] = facts
            self._on_change(facts)

    def named(self, namespace: str, name: str) -> PodFacts | None:
        """The pod of this name that isn't being deleted, as the watch last showed it."""
        for facts in self._pods.values():
            named = facts.ref.namespace == namespace and facts.ref.name == name
            if named and not facts.deleting:
                return facts
        return None

    def bound(self, resource: str) -> list[PodFacts]:
        """Live pods with a group and this resource, oldest bind first."""
        live = (p for p in self._pods.values() if not (p.deleting or p.over))
        wanted = (p for p in live if p.resource == resource and p.group is not None)
        return sorted(wanted, key=lambda p: (p.assigned_at, p.ref.uid))

    def is_gone(self, uid: PodUid) -> bool:
        """Whether the pod was deleted of late: whoever read of it before is to forget it."""
        return uid in self._gone

    def uids(self) -> frozenset[PodUid]:
        """UIDs of all pods in the cache."""
        return frozenset(self._pods)


def _seat_container(
    containers: Iterable[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], str] | None:
    for container in containers:
        for resource in (container.get("resources") or {}).get("limits") or {}:
            if keys.seat_resource_size(resource):
                return container, resource
    return None


def _park_tier(meta: Mapping[str, Any], notes: Mapping[str, str]) -> Tier:
    """How deep it may go; no deeper than RAM if that can't be read."""
    try:
        return Tier(notes.get(keys.PARK_TIER, Tier.OBJECT))
    except ValueError:
        log.warning("pod %s: %s is no tier; it stays in RAM", meta["uid"], keys.PARK_TIER)
        return Tier.RAM


def _ready_within(meta: Mapping[str, Any], notes: Mapping[str, str]) -> float | None:
    text = notes.get(keys.READY_WITHIN)
    try:
        return parse_duration(text, keys.READY_WITHIN) if text else None
    except ConfigError as error:
        log.warning("pod %s: %s", meta["uid"], error)
        return None


def _weight(meta: Mapping[str, Any], notes: Mapping[str, str], *, callable_: bool) -> float | None:
    owners = meta.get("ownerReferences") or ()
    of_job = any(o.get("kind") == "Job" and o.get("controller") for o in owners)
    try:
        return read_turn(notes, of_job=of_job, callable_=callable_)
    except ConfigError as error:
        log.warning("pod %s: %s; it is left out", meta["uid"], error)
        return read_turn({}, of_job=of_job, callable_=callable_)


def _idle(meta: Mapping[str, Any], notes: Mapping[str, str]) -> Mapping[str, float]:
    try:
        return read_idle(notes)
    except ConfigError as error:
        log.warning("pod %s: %s; it is left out", meta["uid"], error)
        return {}


def _spec_hash(container: Mapping[str, Any]) -> str:
    """Without what differs between two pods of one template."""
    mounts = container.get("volumeMounts") or ()
    what = {
        **{name: container.get(name) for name in _SPEC},
        "volumeMounts": [m for m in mounts if not m.get("name", "").startswith(_OF_ONE_POD)],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _assigned_at(meta: Mapping[str, Any], notes: Mapping[str, str]) -> float:
    """When it was bound. Where that can't be read, when it was created: it only ranks pods."""
    stamp = notes.get(keys.ASSIGNED_AT)
    try:
        if stamp:
            return _seconds(stamp)
    except (ValueError, OverflowError):
        log.warning("pod %s: %s is no time: %.40r", meta["uid"], keys.ASSIGNED_AT, stamp)
    return _seconds(meta.get("creationTimestamp"))


def _seconds(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
