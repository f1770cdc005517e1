"""What a RestoreRequest needs next. Pure.

    nothing chosen    find the artifact that is meant; name it, and the pod that is to be made
    chosen            make the pod of that name, or find it made
    made              follow it until its seat has continued from the artifact

Each step is in the object's status before the next one is made. A pod is made by its name, and told
from others by the request's UID on it: so whoever continues after a crash makes no second one.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from kybernate.core.artifacts.restores import OF_POD, RestoreAs
from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned, Standing
from kybernate.core.requests.asked import Asked, Copied, Decision, copied, ends, rests, waits
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    Json = dict[str, Any]


class RestoreReason(Reasoned):
    """Reasons of the condition Complete of a RestoreRequest."""

    PENDING = "Pending", OPEN, "the artifact is found; its pod is made next"
    REGISTRY_AWAY = "RegistryAway", OPEN, "what there is can't be asked now"
    SOURCE_RUNS = (
        "SourceRuns",
        OPEN,
        "nothing proves that the pod has stopped whose place is to be taken",
    )
    QUOTA = "Quota", OPEN, "the namespace has no room for the pod now"
    POD_NOT_BOUND = "PodNotBound", OPEN, "the pod is made, and on no node yet"
    RESTORING = "Restoring", OPEN, "the pod is on its node, and waits or restores"
    RESTORED = "Restored", DONE, "the pod has continued from the artifact"
    TEMPLATE_NOT_READY = "TemplateNotReady", OPEN, "the SnapshotTemplate has no artifact yet"
    NO_ARTIFACT = "NoArtifact", OVER, "there is no artifact of this name, pod or template"
    NOT_GRANTED = "NotGranted", OVER, "no ArtifactGrant gives it to this namespace"
    TAKEN = "Taken", OVER, "another pod continues in that one's place"
    TEMPLATE_NEEDED = (
        "TemplateNeeded",
        OVER,
        "the pod that it is of is gone, so the request has to say spec.template",
    )
    NAME_TAKEN = "NameTaken", OVER, "the namespace has another pod of that name"
    REFUSED = "Refused", OVER, "the API server takes no such pod"
    POD_GONE = "PodGone", OVER, "the pod went before it was restored"
    POD_ENDED = "PodEnded", OVER, "the pod ended before it was restored"
    DEADLINE_EXCEEDED = "DeadlineExceeded", OVER, "not done within spec.deadlineSeconds"


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """How far it is, as its object says. Times in seconds since 1970, 0 for not yet. `source_uid`:
    the pod whose artifact it is; `pod`, `pod_uid`: the one that is made; `copied`: how much of the
    artifact has come to its node."""

    artifact: str = ""
    source_uid: str = ""
    pod: str = ""
    pod_uid: str = ""
    node: str = ""
    began_at: float = 0.0
    ended_at: float = 0.0
    reason: RestoreReason | None = None
    message: str = ""
    copied: Copied | None = None


@dataclass(frozen=True, slots=True)
class RestoreRequest(Asked):
    """A RestoreRequest. Of `artifact`, an object's name, `source_pod` and `source_template`, a
    SnapshotTemplate's name, two are empty. `template`: of the pod to make, empty for one like the
    artifact's, or the SnapshotTemplate's."""

    uid: str
    namespace: str
    name: str
    artifact: str
    source_pod: str
    source_namespace: str
    kind: RestoreAs
    stopped: bool
    pod_name: str
    by: str
    created_at: float
    deadline_s: float
    keep_s: float | None
    status: RestoreStatus
    template: Json = field(default_factory=dict)
    node_selector: Json = field(default_factory=dict)
    source_template: str = ""

    @property
    def under_way(self) -> bool:
        """Whether something is done for it that has to be called off: its pod is not."""
        return False

    @property
    def restores(self) -> str:
        """What its pod says that it continues from: a successor from the newest state of the pod,
        which may be newer by then, unless an artifact is named."""
        newest = self.kind is RestoreAs.SUCCESSOR and not self.artifact
        return f"{OF_POD}{self.status.source_uid}" if newest else self.status.artifact

    @property
    def foreign(self) -> bool:
        """Whether the artifact is another namespace's."""
        return self.source_namespace != self.namespace


@dataclass(frozen=True, slots=True)
class Source:
    """The artifact that is meant, and the UID of its pod."""

    artifact: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the next step can't be made, in a sentence. Whether it may be later is the reason's."""

    reason: RestoreReason
    sentence: str


@dataclass(frozen=True, slots=True)
class MadePod:
    """The pod of the name. `ours`: it is the request's; `restored`: its seat has continued from the
    artifact; `doing`: what its seat does, in a sentence; `copied`: how much of the artifact has
    come to its node."""

    uid: str
    node: str
    ours: bool
    ended: bool
    restored: bool = False
    doing: str = ""
    copied: Copied | None = None


MAKE = "make"
"""The one act: make the pod."""


@dataclass(frozen=True, slots=True)
class Restoring:
    """A request and what was seen for it: the `source` until one is chosen, then the `pod`, None if
    there is none of the name, or why it can't be made."""

    request: RestoreRequest
    source: Source | Missing | None = None
    pod: MadePod | Missing | None = None


def decide(seen: Restoring, now: float) -> Decision[RestoreStatus, str]:
    """What becomes of the request now, in seconds since 1970."""
    request = seen.request
    if request.ended:
        return rests(request, now)
    if not request.status.artifact:
        return _choose(request, seen.source, now)
    if isinstance(seen.pod, Missing):
        return _lacks(request, seen.pod, now)
    if not request.status.pod_uid:
        return _make(request, seen.pod, now)
    return _follow(request, seen.pod, now)


def _choose(
    request: RestoreRequest, source: Source | Missing | None, now: float
) -> Decision[RestoreStatus, str]:
    if source is None:
        return _open(request, RestoreReason.PENDING, "the artifact is looked for", now)
    if isinstance(source, Missing):
        return _lacks(request, source, now)
    chosen = replace(
        request.status,
        artifact=source.artifact,
        source_uid=source.pod_uid,
        pod=request.pod_name,
        reason=RestoreReason.PENDING,
        message=f"pod {request.pod_name} is made next, of {source.artifact}",
    )
    return Decision(chosen, again=0.0)


def _make(request: RestoreRequest, pod: MadePod | None, now: float) -> Decision[RestoreStatus, str]:
    status = request.status
    if pod is None:
        late = request.left(now) <= 0
        return (
            _open(request, RestoreReason.PENDING, status.message, now)
            if late
            else Decision(status, MAKE)
        )
    if not pod.ours:
        taken = f"namespace {request.namespace} has another pod {status.pod}; name it otherwise"
        return ends(request, RestoreReason.NAME_TAKEN, f"{taken} (spec.podName)", now)
    made = replace(status, pod_uid=pod.uid, began_at=now)
    return _follow(replace(request, status=made), pod, now)


def _follow(
    request: RestoreRequest, pod: MadePod | None, now: float
) -> Decision[RestoreStatus, str]:
    status = request.status
    if pod is None or pod.uid != status.pod_uid:
        gone = f"pod {status.pod} went before it was restored"
        return ends(request, RestoreReason.POD_GONE, gone, now)
    told = copied(status, pod.copied, now)
    if told and pod.copied is None:
        # Nothing is copied now: all is there, or it is tried again.
        told = replace(told, ready_at=0.0, done=told.total if pod.restored else told.done)
    request = replace(request, status=replace(status, node=pod.node, copied=told))
    if pod.restored:
        done = f"pod {status.pod} on node {pod.node} has continued from {status.artifact}"
        return ends(request, RestoreReason.RESTORED, done, now)
    if pod.ended:
        over = f"pod {status.pod} ended before it was restored"
        return ends(request, RestoreReason.POD_ENDED, over, now)
    if not pod.node:
        waits = f"pod {status.pod} is on no node yet"
        return _open(request, RestoreReason.POD_NOT_BOUND, pod.doing or waits, now)
    doing = pod.doing or "starts"
    return _open(request, RestoreReason.RESTORING, f"pod {status.pod}: {doing}", now)


def _lacks(request: RestoreRequest, lack: Missing, now: float) -> Decision[RestoreStatus, str]:
    if lack.reason.standing is Standing.TERMINAL:
        return ends(request, lack.reason, lack.sentence, now)
    return _open(request, lack.reason, lack.sentence, now)


def _open(
    request: RestoreRequest, reason: RestoreReason, message: str, now: float
) -> Decision[RestoreStatus, str]:
    still = ""
    if request.status.pod_uid and request.kind is not RestoreAs.CLONE:
        still = f"; pod {request.status.pod} still waits: delete it, unless it is to continue"
    return waits(request, reason, message, now, RestoreReason.DEADLINE_EXCEEDED, still)
