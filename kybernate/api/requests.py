"""CheckpointRequest: what a person asks of a pod with a seat, once, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from kybernate import keys
from kybernate.api.asked import (
    DEADLINE_S,
    MOST_OF_POD,
    NAME,
    BytesDone,
    BytesTotal,
    Conditions,
    CopyRestarts,
    EstimatedTime,
    ProgressTime,
    RequestedBy,
    TimeToLive,
    created_at,
    deadline,
    dump,
    how_far,
    owned_by,
    owner_of,
    read_copied,
    reading,
    seconds_of,
    to_create,
)
from kybernate.api.lenient import mapping, text, whole
from kybernate.api.schema import CAMEL, TIME, checked, one_of, rule
from kybernate.api.schema import text as texts
from kybernate.api.schema import whole as number
from kybernate.core.requests.checkpoint import (
    Mode,
    Outcome,
    Request,
    Status,
    Target,
    operation_name,
)
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.zero import back
from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.policy.effective import Policy
    from kybernate.core.policy.snapshots import Order
    from kybernate.core.requests.zero import Rest

    Json = dict[str, Any]

DEPLOYMENT = "Deployment"
LONGEST_ARTIFACT = 400
"""Characters of an artifact's name in a status."""

_SCALED_UP = "scaledUpTime"
_LAST_STEP_S, _TAKEN_BACK_KEPT_S = 300, 3600
_STEP_KEPT_S = 7_200
"""Seconds for which a step's request stays: longer than anybody looks for a successor."""
_MAKERS = (keys.CHECKPOINT_POLICY_KIND, keys.SNAPSHOT_TEMPLATE_KIND)


@dataclass(frozen=True, slots=True)
class SuccessorRow:
    """Where the pod that takes its place is to go."""

    __pydantic_config__ = CAMEL
    node: Annotated[str, texts(253, "Name of a node.", least=1, pattern=NAME)]
    group: Annotated[str, texts(63, "Name of one of the node's groups; absent: any group.")] = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is asked for."""

    __pydantic_config__ = checked(
        rule(
            "self == oldSelf",
            "a CheckpointRequest is done once, as it was written; delete it and create another",
        ),
        rule(
            "self.mode != 'Snapshot' || !has(self.tier) || self.tier != 'ram'",
            "a snapshot outlives the RAM of its processes; write tier: nvme or object",
        ),
        rule(
            "!has(self.successor) || "
            "(self.mode == 'Evict' && has(self.tier) && self.tier == 'object')",
            "a successor anywhere continues from the object store; write mode: Evict, tier: object",
        ),
        rule(
            "self.mode != 'Wake' || !has(self.tier)",
            "a wake brings the seat into GPU memory; leave tier out",
        ),
    )
    pod: Annotated[
        str,
        texts(253, "Name of the pod, in this namespace.", least=1, pattern=NAME),
    ]
    mode: Annotated[
        str,
        one_of(
            Mode,
            "Park: the seat leaves GPU memory and rests until the next request. Snapshot: an "
            "artifact of the pod is made, and the pod continues. Evict: the seat is parked and "
            "stays parked until its pod is deleted or somebody wakes it. Wake: the seat comes "
            "back into GPU memory at its turn, without a request; this also ends an Evict.",
        ),
    ]
    tier: Annotated[
        str | None,
        one_of(
            Tier,
            "Tier for the parked seat or for the snapshot. Default of Park: ram, from where the "
            "node may offload it. Default of Snapshot: the deepest tier that the node has and "
            "kyb.ai/park-tier allows. Default of Evict: the tier in which the seat is parked; in "
            "object it outlives its node.",
        ),
    ] = None
    successor: Annotated[
        SuccessorRow | None,
        Field(
            description="For mode Evict: where the pod that replaces this one is bound, if it "
            "fits there by then; otherwise it is bound wherever it fits."
        ),
    ] = None
    deadline_seconds: Annotated[
        int,
        deadline(
            "Seconds from the request's creation after which it is cancelled unless it is done. "
            "Those of an Evict count from its beginning, once that has come: it may be Queued."
        ),
    ] = DEADLINE_S
    ttl_seconds_after_finished: TimeToLive = None
    requested_by: RequestedBy = ""


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """The artifact that the request has made."""

    __pydantic_config__ = CAMEL
    name: Annotated[
        str,
        texts(LONGEST_ARTIFACT, "Of a snapshot: name of the artifact, for kyb.ai/restore-from."),
    ] = ""
    tier: Annotated[str, one_of(Tier)] = Tier.RAM.value
    bytes: Annotated[int, number(told="Size of the artifact in that tier (bytes).")] = 0


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """How far the request is."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, number()] = 1
    pod_uid: Annotated[
        str,
        Field(alias="podUID"),
        texts(128, "UID of the pod; the request does nothing to another pod of the same name."),
    ] = ""
    owner: Annotated[
        str,
        texts(
            400,
            "What replaces the pod: the UID of its controller and, for a StatefulSet, which of "
            "its pods this is.",
        ),
    ] = ""
    bytes_limit: Annotated[
        int | None,
        number(
            told="Memory that the pod may have (bytes): its artifact has no more; absent: the pod "
            "has no limit."
        ),
    ] = None
    node: Annotated[str, texts(253, "The pod's node.")] = ""
    operation: Annotated[str, texts(63, "Name of the operation on the node's agent.")] = ""
    start_time: Annotated[str | None, TIME] = None
    completion_time: Annotated[str | None, TIME] = None
    artifact: Annotated[
        ArtifactRow | None, Field(description="The artifact that the request has made.")
    ] = None
    bytes_done: BytesDone = None
    bytes_total: BytesTotal = None
    copy_restarts: CopyRestarts = None
    estimated_completion_time: EstimatedTime = None
    progress_time: ProgressTime = None
    scaled_up_time: Annotated[
        str | None,
        TIME,
        Field(
            description="Of a pod of a Deployment that was scaled to zero: when the Deployment "
            "was scaled up again."
        ),
    ] = None
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: Spec
    status: RequestStatus | None = None


def ask_for(mode: Mode, pod: str, tier: Tier | None, deadline_s: int, keep_s: int | None) -> Json:
    """A CheckpointRequest to create, named by the API server after its mode and pod.

    It is cancelled if it isn't done `deadline_s` seconds after its creation, and deleted `keep_s`
    seconds after its end, if that is not None.
    """
    spec: Json = {"pod": pod, "mode": mode.value, "deadlineSeconds": deadline_s}
    if tier is not None:
        spec["tier"] = tier.value
    if keep_s is not None:
        spec["ttlSecondsAfterFinished"] = keep_s
    meta = {"generateName": f"{mode.value.lower()}-{pod[:MOST_OF_POD]}-"}
    return to_create(keys.CHECKPOINT_REQUEST_KIND, meta, spec)


def to_evict(
    name: str,
    pod: str,
    deadline_s: int,
    target: Target | None = None,
    keep_s: int = _STEP_KEPT_S,
) -> Json:
    """A CheckpointRequest of this name that puts the pod's state into the object store for another
    pod, which is to go to the target; kept so many seconds."""
    found = ask_for(Mode.EVICT, pod, Tier.OBJECT, deadline_s, keep_s)
    found["metadata"] = {"name": name}
    if target is not None:
        found["spec"]["successor"] = {"node": target.node} | (
            {"group": target.group} if target.group else {}
        )
    return found


def to_wake(name: str, pod: str) -> Json:
    """A CheckpointRequest of this name that takes an eviction of the pod back."""
    found = ask_for(Mode.WAKE, pod, None, DEADLINE_S, _STEP_KEPT_S)
    found["metadata"] = {"name": name}
    return found


def regular(policy: Policy, order: Order, tier: Tier | None) -> Json:
    """The snapshot that a CheckpointPolicy has made, which goes with it and is kept without it."""
    found = ask_for(Mode.SNAPSHOT, order.pod, tier, order.deadline_s, None)
    owner = owned_by(keys.CHECKPOINT_POLICY_KIND, policy.name, policy.uid)
    found["metadata"] = {"name": order.name, "ownerReferences": [owner]}
    return found


def last_step(rest: Rest) -> Json:
    """The request that has a pod's artifact wait for another pod, before its Deployment is scaled
    to zero. It goes with the Deployment, and tells the proxy whose requests are waited for."""
    found = ask_for(Mode.EVICT, rest.name, Tier.OBJECT, _LAST_STEP_S, None)
    owner = {
        "apiVersion": "apps/v1",
        "kind": DEPLOYMENT,
        "name": rest.deployment,
        "uid": rest.deployment_uid,
        "blockOwnerDeletion": False,
    }
    found["metadata"] = {
        "name": rest.request,
        "labels": {keys.ZERO_LABEL: "true"},
        "annotations": {keys.MODEL: rest.model},
        "ownerReferences": [owner],
    }
    return found


def taken_back(request: Request) -> Json:
    """The request that has the pod of such a one woken, since its Deployment isn't scaled."""
    found = ask_for(Mode.WAKE, request.pod, None, _LAST_STEP_S, _TAKEN_BACK_KEPT_S)
    found["metadata"] = {"name": back(request)}
    return found


def read_request(item: Mapping[str, Any]) -> Request:
    """The request that a CheckpointRequest of the API server is. Pure.

    Raises ConfigError, naming it, for one that the CRD of this version would not let in.
    """
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    with reading(keys.CHECKPOINT_REQUEST_KIND, item) as common:
        tier, by = text(spec.get("tier")), common["by"]
        return Request(
            **common,
            created_at=created_at(item),
            pod=text(spec.get("pod")),
            mode=Mode(text(spec.get("mode"))),
            tier=Tier(tier) if tier else None,
            status=_own(common["uid"], _read_status(mapping(item.get("status")))),
            successor=text(mapping(meta.get("annotations")).get(keys.SUCCESSOR)),
            target=_target(mapping(spec.get("successor"))),
            policy=owner_of(meta, by, _MAKERS, "uid"),
            deployment=owner_of(meta, by, (DEPLOYMENT,), "name"),
            wanted=keys.WANTED in mapping(meta.get("annotations")),
        )


def dump_status(status: Status, before: object, generation: int, now: float) -> Json:
    """The status as the API server is to have it, given what it has (`before`)."""
    scaled = {_SCALED_UP: status.scaled_up_at}
    found = dump(status, Reason.PENDING, before, generation, now, **scaled)
    if status.operation:
        found |= {"podUID": status.pod_uid, "node": status.node, "operation": status.operation}
    if status.owner:
        found["owner"] = status.owner
    if status.limit:
        found["bytesLimit"] = status.limit
    if outcome := status.outcome:
        found["artifact"] = {"name": outcome.artifact, "tier": outcome.tier, "bytes": outcome.size}
    return found


def _read_status(status: Json) -> Status:
    made = mapping(status.get("artifact"))
    outcome = Outcome(text(made.get("name")), text(made.get("tier")), whole(made.get("bytes")))
    return Status(
        **how_far(status, Reason),
        pod_uid=text(status.get("podUID")),
        node=text(status.get("node")),
        operation=text(status.get("operation")),
        outcome=outcome if made else None,
        copied=read_copied(status),
        owner=text(status.get("owner")),
        limit=whole(status.get("bytesLimit")),
        scaled_up_at=seconds_of(status.get(_SCALED_UP)),
    )


def _own(uid: str, status: Status) -> Status:
    """The status, unless it names an operation that isn't this request's: then none of it is the
    controller's, which would follow, and cancel, what somebody else has asked for."""
    return status if status.operation in ("", operation_name(uid)) else Status()


def _target(given: Json) -> Target | None:
    node = text(given.get("node"))
    return Target(node, text(given.get("group"))) if node else None
