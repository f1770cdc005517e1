"""What a SnapshotTemplate needs next. Pure.

    no artifact that fits    have a pod of the template made, with a name of its own
    the pod is ready         note what it runs on; have its state kept by a CheckpointRequest
    the state is kept        it is the template's artifact; the pod goes, and later the one before

Each step is in the object's status before the next one is made, and each name is used once: whoever
continues after a crash repeats at most what changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned
from kybernate.core.requests.reasons import Reason
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.core.requests.checkpoint import Request

KEPT_S = 3600.0
"""Seconds for which an artifact that has been replaced is kept: pods may wait for their turn to
start from it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
_LEAST_DEADLINE_S = 60.0
_MOST_OF_NAME = 40
_DIGEST = 6
_WAITS_S = 5.0
"""Seconds until the next look while something is under way that no watch need tell of."""


class TemplateReason(Reasoned):
    """Reasons of the condition Ready of a SnapshotTemplate."""

    READY = "Ready", DONE, "pods start from its artifact"
    STARTING = "Starting", OPEN, "a pod of it starts, and is warmed up"
    SAVING = "Saving", OPEN, "the state of that pod is being kept"
    NO_GPUS = "NoGPUs", OPEN, "no GPUNode has GPUs of the product that it wants"
    POD_REFUSED = "PodRefused", OPEN, "the API server lets no pod of it in; the message says why"
    POD_FAILED = "PodFailed", OPEN, "its pod has failed, or did not answer its warm-up"
    NOT_SAVED = "NotSaved", OPEN, "the state of its pod could not be kept"
    DEADLINE_EXCEEDED = "DeadlineExceeded", OPEN, "it was not done within spec.deadlineSeconds"
    INVALID = "Invalid", OVER, "it says what can't be; the message names the field"


FAILED = frozenset(
    {
        TemplateReason.POD_REFUSED,
        TemplateReason.POD_FAILED,
        TemplateReason.NOT_SAVED,
        TemplateReason.DEADLINE_EXCEEDED,
    }
)
"""With these a build came to nothing, and another one is begun later."""


class Basis(NamedTuple):
    """What an artifact fits: the hash of the pod template, the image's digest, and the GPUs'
    product and driver. What is empty isn't known."""

    spec: str = ""
    image: str = ""
    product: str = ""
    driver: str = ""


_UNKNOWN = Basis()


@dataclass(frozen=True, slots=True)
class Artifact:
    """The artifact that pods start from. `request` has had it kept, on `node`. `made_on`: what its
    pod ran on; `made_for`: what was wanted then."""

    name: str
    request: str
    node: str
    size: int
    at: float
    made_on: Basis
    made_for: Basis

    def fits(self, wanted: Basis) -> bool:
        """Whether another one would be no better: what its pod could not get, such as the image of
        another node, is not tried for again."""
        those = zip(wanted, self.made_on, self.made_for, strict=True)
        return all(one in {"", on, meant} for one, on, meant in those)


@dataclass(frozen=True, slots=True)
class Build:
    """An artifact in the making, the `number`th. `uid` and what follows are known once its pod is
    ready. `failures`: how many before it came to nothing; it isn't begun before `not_before`."""

    number: int
    wanted: Basis
    failures: int = 0
    not_before: float = 0.0
    uid: str = ""
    node: str = ""
    made_on: Basis = _UNKNOWN


@dataclass(frozen=True, slots=True)
class TemplateStatus:
    """How far a template is, as its object says."""

    reason: TemplateReason | None = None
    message: str = ""
    artifact: Artifact | None = None
    build: Build | None = None
    builds: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """A SnapshotTemplate. `spec`: the hash of what its pods are; `products`: the GPUs that they
    accept, empty for all; `deadline_s`: for one build."""

    uid: str
    namespace: str
    name: str
    spec: str
    image: str
    products: tuple[str, ...]
    deadline_s: float
    status: TemplateStatus

    def pod(self, number: int) -> str:
        """The name of a build's pod, and of its request."""
        digest = hashlib.sha256(self.uid.encode()).hexdigest()[:_DIGEST]
        return f"{self.name[:_MOST_OF_NAME].rstrip('-.')}-{digest}-{number}"


@dataclass(frozen=True, slots=True)
class BuildPod:
    """A pod that the controller has made of the template. `failed`: why it will never be ready, in
    a sentence; `image`: the digest that it runs."""

    name: str
    uid: str
    node: str
    ready: bool
    failed: str
    image: str
    created_at: float
    leaving: bool


@dataclass(frozen=True, slots=True)
class SeenTemplate:
    """A template and what was seen for it. `requests` are its own. `gpus`: product and driver, and
    on how many nodes; by node, `at`. `image`: what the newest pod runs that asks for the template,
    empty if none does. `refused`: why the pod that was to be made was not let in."""

    template: Template
    pods: Sequence[BuildPod]
    requests: Sequence[Request]
    at: Mapping[str, tuple[str, str]]
    image: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """What to do, in this order, before the status is written. `pod` and `request` are to be
    created, `ended` pods and `removed` requests deleted, after `dropped` ones' artifacts. `again`:
    seconds until the next look."""

    status: TemplateStatus
    pod: str = ""
    request: str = ""
    ended: tuple[BuildPod, ...] = ()
    dropped: tuple[Request, ...] = ()
    removed: tuple[Request, ...] = ()
    again: float = math.inf


def decide(seen: SeenTemplate, now: float) -> TemplatePlan:
    """What becomes of the template now, in seconds since 1970."""
    found = _progress(seen, now)
    ended, dropped, removed, again = _leftovers(seen, now)
    return replace(
        found, ended=ended, dropped=dropped, removed=removed, again=min(found.again, again)
    )


def wanted(seen: SeenTemplate) -> Basis | None:
    """What an artifact should fit now; None where no node has such GPUs. Of several kinds of GPUs
    and drivers those count that most nodes have, so that an upgrade has one made half-way."""
    template, counts = seen.template, dict[tuple[str, str], int]()
    for pair in seen.at.values():
        if not template.products or pair[0] in template.products:
            counts[pair] = counts.get(pair, 0) + 1
    if not counts:
        return None
    last = template.status.artifact
    present = (last.made_on.product, last.made_on.driver) if last else ("", "")
    product, driver = max(counts, key=lambda pair: (counts[pair], pair == present, pair))
    return Basis(template.spec, seen.image, product, driver)


def _progress(seen: SeenTemplate, now: float) -> TemplatePlan:
    status, basis = seen.template.status, wanted(seen)
    if basis is None:
        if status.artifact is not None and status.artifact.made_on.spec == seen.template.spec:
            return TemplatePlan(_ready(status))
        return TemplatePlan(_told(status, TemplateReason.NO_GPUS, _none_such(seen.template)))
    if status.artifact is not None and status.artifact.fits(basis):
        return TemplatePlan(_ready(status))
    build = status.build
    if build is None or not _same(build.wanted, basis):
        build = Build(status.builds + 1, basis)
        return _begun(replace(status, build=build, builds=build.number))
    return _build(seen, build, now)


def _same(begun: Basis, basis: Basis) -> bool:
    """Whether the build is of any use. Which image its pod gets shows once it runs."""
    return begun._replace(image="") == basis._replace(image="")


def _build(seen: SeenTemplate, build: Build, now: float) -> TemplatePlan:
    name = seen.template.pod(build.number)
    request = next((one for one in seen.requests if one.name == name), None)
    if request is not None and request.ended:
        return _saved(seen, build, request, now)
    pod = next((one for one in seen.pods if one.name == name and not one.leaving), None)
    if pod is None:
        return _absent(seen, build, name, now)
    left = pod.created_at + seen.template.deadline_s - now
    if why := pod.failed:
        return _failed(seen, build, TemplateReason.POD_FAILED, f"pod {name}: {why}", now)
    if left <= 0:
        why = f"pod {name} was not ready and kept within {seen.template.deadline_s:g} s"
        return _failed(seen, build, TemplateReason.DEADLINE_EXCEEDED, why, now)
    return _with_pod(seen, build, pod, request, left)


def _absent(seen: SeenTemplate, build: Build, name: str, now: float) -> TemplatePlan:
    if build.uid:
        return _failed(seen, build, TemplateReason.POD_FAILED, f"pod {name} has gone", now)
    if seen.refused:
        return _failed(seen, build, TemplateReason.POD_REFUSED, seen.refused, now)
    if now < build.not_before:
        return TemplatePlan(seen.template.status, again=build.not_before - now)
    return replace(_begun(seen.template.status, f"pod {name} is being made"), pod=name)


def _with_pod(
    seen: SeenTemplate, build: Build, pod: BuildPod, request: Request | None, left: float
) -> TemplatePlan:
    status = seen.template.status
    if build.uid:
        told = _told(status, TemplateReason.SAVING, _of_request(pod.name, request))
        return TemplatePlan(told, request="" if request else pod.name, again=min(_WAITS_S, left))
    if not pod.ready or pod.node not in seen.at:
        return replace(_begun(status, f"pod {pod.name} starts"), again=left)
    made_on = Basis(seen.template.spec, pod.image, *seen.at[pod.node])
    pinned = replace(build, uid=pod.uid, node=pod.node, made_on=made_on)
    why = f"pod {pod.name} is ready; its state is kept next"
    return TemplatePlan(_told(replace(status, build=pinned), TemplateReason.SAVING, why), again=0.0)


def _saved(seen: SeenTemplate, build: Build, request: Request, now: float) -> TemplatePlan:
    status, done = seen.template.status, request.status
    if done.reason is not Reason.SEALED or done.outcome is None or done.pod_uid != build.uid:
        why = f"CheckpointRequest {request.name}: {done.message or done.reason}"
        return _failed(seen, build, TemplateReason.NOT_SAVED, why, now)
    artifact = Artifact(
        done.outcome.artifact,
        request.name,
        done.node,
        done.outcome.size,
        done.ended_at,
        build.made_on,
        build.wanted,
    )
    return TemplatePlan(_ready(replace(status, artifact=artifact)), again=0.0)


def _failed(
    seen: SeenTemplate, build: Build, reason: TemplateReason, why: str, now: float
) -> TemplatePlan:
    """Another build is begun, later each time."""
    status = seen.template.status
    failures = build.failures + 1
    pause = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
    after = Build(status.builds + 1, build.wanted, failures, now + pause)
    told = _told(status, reason, f"{why}; it is tried again in {pause:g} s")
    return TemplatePlan(replace(told, build=after, builds=after.number), again=pause)


def _leftovers(
    seen: SeenTemplate, now: float
) -> tuple[tuple[BuildPod, ...], tuple[Request, ...], tuple[Request, ...], float]:
    """What the status has no use for: pods to end, requests whose artifacts are to be dropped and
    others to be removed; and seconds until there is more."""
    status = seen.template.status
    name = seen.template.pod(status.build.number) if status.build else ""
    ended = tuple(one for one in seen.pods if one.name != name and not one.leaving)
    needed = {name, status.artifact.request if status.artifact else ""}
    others = [one for one in seen.requests if one.name not in needed]
    sealed = [one for one in others if one.status.reason is Reason.SEALED]
    until = max(status.artifact.at, 0.0) + KEPT_S if status.artifact else 0.0
    again = until - now if sealed and until > now else math.inf
    dropped = () if again < math.inf else tuple(sealed)
    return ended, dropped, tuple(one for one in others if one not in sealed), again


def _ready(status: TemplateStatus) -> TemplateStatus:
    artifact = status.artifact
    assert artifact is not None  # noqa: S101 - a bug, if ever
    why = f"pods start from {artifact.name}"
    return _told(replace(status, build=None), TemplateReason.READY, why)


def _begun(status: TemplateStatus, why: str = "a pod of it is made next") -> TemplatePlan:
    return TemplatePlan(_told(status, TemplateReason.STARTING, why), again=_WAITS_S)


def _told(status: TemplateStatus, reason: TemplateReason, why: str) -> TemplateStatus:
    return replace(status, reason=reason, message=why)


def _none_such(template: Template) -> str:
    named = " or ".join(template.products)
    return f"no GPUNode has GPUs{f' of product {named}' if named else ''}; see kubectl get gpunodes"


def _of_request(name: str, request: Request | None) -> str:
    if request is None or not request.status.message:
        return f"CheckpointRequest {name} keeps the state of its pod"
    return f"CheckpointRequest {name}: {request.status.message}"


def left_s(pod: BuildPod, template: Template, now: float) -> int:
    """Whole seconds that the request for this pod has."""
    return int(max(pod.created_at + template.deadline_s - now, _LEAST_DEADLINE_S))
