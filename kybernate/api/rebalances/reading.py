"""RebalanceRequests read and their statuses written. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.asked import (
    DAY_S,
    created_at,
    dump,
    how_far,
    owned_by,
    owner_of,
    reading,
    seconds_of,
    to_create,
)
from kybernate.api.lenient import mapping, mappings, number, text, whole
from kybernate.api.rebalances.model import DEADLINE_S
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.policy.balance import Move, Rule
    from kybernate.core.policy.effective import Policy

    Json = dict[str, Any]

_POLICY = (keys.CHECKPOINT_POLICY_KIND,)
_BY_POLICY_S = 900
"""Seconds in which a plan that a policy asks for has to begin, and in which it has to end."""
_READY_AT, _PLANNED_AT = "estimatedCompletionTime", "planTime"


def read_rebalance(item: Mapping[str, Any]) -> Request:
    """The request that a RebalanceRequest of the API server is. Pure.

    Raises ConfigError, naming it, for one that the CRD of this version would not let in.
    """
    spec = mapping(item.get("spec"))
    move, budget = mapping(spec.get("move")), mapping(spec.get("budget"))
    with reading(keys.REBALANCE_REQUEST_KIND, item, DEADLINE_S) as common:
        return Request(
            **common,
            pod=text(move.get("pod")) or text(mapping(spec.get("defragment")).get("pod")),
            model=text(move.get("model")),
            target=_spot(move.get("to")),
            empty=text(spec.get("emptyNode")),
            budget=Budget(whole(budget.get("moves"), 10), float(whole(budget.get("seconds")))),
            approved=text(spec.get("approvedPlan")),
            created_at=created_at(item),
            policy=owner_of(mapping(item.get("metadata")), common["by"], _POLICY, "uid"),
            status=_read_status(mapping(item.get("status"))),
        )


def to_rebalance(what: str, spec: Json, deadline_s: int) -> Json:
    """A RebalanceRequest to create, named by the API server after what is asked. It stays for a day
    once it has ended."""
    kept = {"deadlineSeconds": deadline_s, "ttlSecondsAfterFinished": DAY_S}
    return to_create(keys.REBALANCE_REQUEST_KIND, {"generateName": f"{what}-"}, spec | kept)


def by_policy(policy: Policy, rule: Rule, move: Move, now: float) -> Json:
    """The RebalanceRequest that a CheckpointPolicy asks for, by itself: one in each interval of its
    rule, as its name says."""
    place = {"node": move.pod.node, "group": move.target}
    budget = {"moves": 1} | ({"seconds": rule.seconds} if rule.seconds else {})
    spec = {"move": {"pod": move.pod.name.rpartition("/")[2], "to": place}, "budget": budget}
    kept = {"deadlineSeconds": _BY_POLICY_S, "ttlSecondsAfterFinished": DAY_S}
    owner = owned_by(keys.CHECKPOINT_POLICY_KIND, policy.name, policy.uid)
    name = f"balance-{policy.uid}-{rule.slot(now)}"
    meta = {"name": name, "ownerReferences": [owner]}
    return to_create(keys.REBALANCE_REQUEST_KIND, meta, spec | kept)


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
    times = {_READY_AT: status.ready_at, _PLANNED_AT: status.planned_at}
    found = dump(status, RebalanceReason.PLANNING, before, generation, now, **times)
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
    elif "plan" in mapping(before):
        found["plan"] = None
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
    plan = mapping(status.get("plan"))
    return Status(
        **how_far(status, RebalanceReason),
        plan=read_plan({**plan, "id": plan.get("hash")}, text(plan.get("message")))
        if plan
        else None,
        planned_at=seconds_of(status.get(_PLANNED_AT)),
        ready_at=seconds_of(status.get(_READY_AT)),
    )


def _spot(given: object) -> Target | None:
    place = mapping(given)
    node, group = text(place.get("node")), text(place.get("group"))
    return Target(node, group) if node or group else None
