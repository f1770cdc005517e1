"""Pods of gangs: read from their JSON, and the changes that are made to them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from extender.objects import read_pod
from kybernate import keys
from kybernate.core.gang import Member, PlannedSeat
from kybernate.types import GroupName, NodeName

if TYPE_CHECKING:
    Json = dict[str, Any]

_FORM = "%Y-%m-%dT%H:%M:%SZ"


def is_member(pod: Json) -> bool:
    """Whether the pod says that it belongs to a gang."""
    return bool(_notes(pod).get(keys.GANG))


def read_member(pod: Json) -> Member | None:
    """Read a pod, whole or slimmed; None if it is of no gang, has ended or is about to."""
    if not is_member(pod) or pod["metadata"].get("deletionTimestamp"):
        return None
    found, notes = read_pod(pod), _notes(pod)
    if found.finished:
        return None
    spec = _dict(pod.get("spec"))
    gates, priority = spec.get("schedulingGates"), spec.get("priority")
    gates = gates if isinstance(gates, list) else []
    size = notes.get(keys.GANG_SIZE)
    return Member(
        pod=found.ref,
        gang=str(notes[keys.GANG]),
        size=None if size is None else str(size),
        demand=found.demand,
        problem=found.problem,
        node=found.node,
        group=found.group,
        seat=read_seat(notes.get(keys.GANG_PLAN)),
        gates=tuple(str(_dict(gate).get("name")) for gate in gates),
        priority=priority if isinstance(priority, int) else 0,
        created=str(pod["metadata"].get("creationTimestamp") or ""),
    )


def read_seat(text: Any) -> PlannedSeat | None:
    """The planned seat that an annotation tells of; None if there is none or it can't be read."""
    try:
        fields = orjson.loads(text or "")
        until = datetime.strptime(fields["until"], _FORM).replace(tzinfo=UTC).timestamp()
        return PlannedSeat(NodeName(str(fields["node"])), GroupName(str(fields["group"])), until)
    except (ValueError, KeyError, TypeError):
        return None


def hold_patch(member: Member, seat: PlannedSeat | None) -> Json:
    """The merge patch that writes the member's planned seat, or takes it away."""
    text = None
    if seat is not None:
        until = datetime.fromtimestamp(seat.until, UTC).strftime(_FORM)
        fields = {"node": seat.node, "group": seat.group, "until": until}
        text = orjson.dumps(fields).decode()
    return {"metadata": {"uid": member.pod.uid, "annotations": {keys.GANG_PLAN: text}}}


def lift_patch(member: Member) -> Json:
    """The strategic merge patch that takes our gate away, and leaves those of others."""
    gates = [{"name": keys.GANG_GATE, "$patch": "delete"}]
    return {"metadata": {"uid": member.pod.uid}, "spec": {"schedulingGates": gates}}


def _notes(pod: Json) -> Json:
    return _dict(_dict(pod.get("metadata")).get("annotations"))


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}
