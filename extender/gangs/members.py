"""Pods of gangs: read from their JSON, and the changes that are made to them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from extender.state.objects import read_pod
from kybernate import keys
from kybernate.api import pods
from kybernate.core.gangs.gang import Member, PlannedSeat
from kybernate.types import GroupName, NodeName

if TYPE_CHECKING:
    from extender.state.objects import Rules

    Json = dict[str, Any]

_FORM = "%Y-%m-%dT%H:%M:%SZ"


def is_member(pod: Json) -> bool:
    """Whether the pod says that it belongs to a gang."""
    return bool(pods.read_pod(pod).gang)


def read_member(raw: Json, rules: Rules) -> Member | None:
    """Read a pod; None if it is of no gang, has ended or is about to."""
    pod = pods.read_pod(raw)
    if not pod.gang or pod.leaving or pod.over:
        return None
    found = read_pod(raw, rules)
    return Member(
        pod=found.ref,
        gang=pod.gang,
        size=pod.notes.get(keys.GANG_SIZE),
        demand=found.demand,
        problem=found.problem,
        node=found.node,
        group=found.group,
        seat=read_seat(pod.notes.get(keys.GANG_PLAN)),
        gates=pod.gates,
        priority=pod.priority,
        created=pod.created,
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
