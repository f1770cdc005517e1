"""RebalanceRequests read and their statuses written. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.events import stamp
from kybernate.api.lenient import mapping, mappings, number, text, whole
from kybernate.api.rebalances.model import DEADLINE_S
from kybernate.api.requests import STATUSES, condition, keep_of, seconds_of
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.checkpoint import Target
from kybernate.core.requests.rebalance import (
    Budget,
    Plan,
    RebalanceReason,
    Request,
    Stage,
    Status,
    Step,
)
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

_DAY_S = 86_400
_READY_AT, _START = "estimatedCompletionTime", "startTime"


def read_rebalance(item: Mapping[str, Any]) -> Request:
    """The request that a RebalanceRequest of the API server is. Pure.

    Raises ConfigError, naming it, for one that the CRD of this version would not let in.
    """
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    move, budget = mapping(spec.get("move")), mapping(spec.get("budget"))
    name = f"{keys.REBALANCE_REQUEST_KIND} {meta.get('namespace')}/{meta.get('name')}"
    try:
        return Request(
            uid=str(meta["uid"]),
            namespace=str(meta["namespace"]),
            name=str(meta["name"]),
            pod=text(move.get("pod")) or text(mapping(spec.get("defragment")).get("pod")),
            target=_spot(move.get("to")),
            empty=text(spec.get("emptyNode")),
            budget=Budget(whole(budget.get("moves"), 10), float(whole(budget.get("seconds")))),
            approved=text(spec.get("approvedPlan")),
            by=text(spec.get("requestedBy")),
            deadline_s=float(whole(spec.get("deadlineSeconds"), DEADLINE_S)),
            keep_s=keep_of(spec),
            status=_read_status(mapping(item.get("status"))),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(name, f"this version can't read it: {error}") from error


def to_rebalance(what: str, spec: Json, deadline_s: int) -> Json:
    """A RebalanceRequest to create, named by the API server after what is asked. It stays for a day
    once it has ended."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.REBALANCE_REQUEST_KIND,
        "metadata": {"generateName": f"{what}-"},
        "spec": {**spec, "deadlineSeconds": deadline_s, "ttlSecondsAfterFinished": _DAY_S},
    }


def read_plan(document: Mapping[str, Any], why: str = "") -> Plan:
    """The plan that the extender's answer to GET /defrag is. Raises ValueError for none."""
    steps = tuple(_step(row) for row in mappings(document.get("steps")))
    sentences = document.get("sentences") or [why]
    return Plan(
        hash=text(document.get("id")),
        steps=steps,
        moves=whole(document.get("moves")),
        seconds=round(number(document.get("seconds")), 1),
        told=str(sentences[0])[:1024],
    )


def dump_rebalance(status: Status, before: object, generation: int, now: float) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    reason = status.reason or RebalanceReason.PLANNING
    told = {"status": STATUSES[reason.standing], "reason": reason.value}
    found: Json = {
        "observedGeneration": generation,
        "conditions": [condition(told, status.message, before, generation, now)],
        "plan": None,
    }
    if plan := status.plan:
        done = [one for one in plan.steps if one.stage is Stage.DONE and one.kind is Kind.MOVE]
        found |= {"movesDone": len(done), "bytesDone": sum(one.size for one in done)}
        found["plan"] = {
            "hash": plan.hash,
            "moves": plan.moves,
            "seconds": round(plan.seconds, 1),
            "bytes": plan.size,
            "message": plan.told,
            "steps": [_row(one) for one in plan.steps],
        }
    times = (
        *((_START, status.began_at), ("completionTime", status.ended_at)),
        (_READY_AT, status.ready_at),
    )
    for name, at in times:
        if at:
            found[name] = stamp(at)
        elif name in mapping(before):
            # It is merged into what is there.
            found[name] = None
    if not status.plan and "plan" not in mapping(before):
        del found["plan"]
    return found


def _row(step: Step) -> Json:
    found: Json = {
        "kind": step.kind.value,
        "namespace": step.namespace,
        "pod": step.pod,
        "uid": step.uid,
        "bytes": step.size,
        "seconds": round(step.seconds, 1),
        "stage": step.stage.value,
    }
    for name, place in (("from", step.source), ("to", step.target)):
        if place is not None:
            found[name] = {"node": place.node, "group": place.group}
    return found | ({"successor": step.successor} if step.successor else {})


def _step(row: Json) -> Step:
    """Raises ValueError. `pod` may have its namespace before it, as the extender writes it."""
    namespace, _, pod = text(row.get("pod")).rpartition("/")
    return Step(
        kind=Kind(text(row.get("kind"))),
        namespace=namespace or text(row.get("namespace")),
        pod=pod,
        uid=text(row.get("uid")),
        source=_spot(row.get("from")),
        target=_spot(row.get("to")),
        seconds=round(number(row.get("seconds")), 1),
        size=whole(row.get("bytes")),
        stage=Stage(text(row.get("stage")) or Stage.WAITING),
        successor=text(row.get("successor")),
    )


def _read_status(status: Json) -> Status:
    conditions = mappings(status.get("conditions"))
    last = next((one for one in conditions if one.get("type") == "Complete"), {})
    reason, plan = text(last.get("reason")), mapping(status.get("plan"))
    return Status(
        plan=read_plan({**plan, "id": plan.get("hash")}, text(plan.get("message")))
        if plan
        else None,
        began_at=seconds_of(status.get(_START)),
        ended_at=seconds_of(status.get("completionTime")),
        ready_at=seconds_of(status.get(_READY_AT)),
        # A newer version may have reasons that this one doesn't know.
        reason=RebalanceReason(reason) if reason in set(RebalanceReason) else None,
        message=text(last.get("message")),
    )


def _spot(given: object) -> Target | None:
    place = mapping(given)
    node, group = text(place.get("node")), text(place.get("group"))
    return Target(node, group) if node or group else None
