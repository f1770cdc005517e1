"""Pods, read from their JSON: what Kybernate's services need of one, with one answer for all.

Reading is lenient where the pod exists whatever we think of it: a part of another shape counts as
absent. What a person wrote and can't be had raises ConfigError, when it is asked for. Pure.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from kybernate import keys
from kybernate.api.lenient import mapping, mappings, text, texts, whole
from kybernate.core.quantity import parse_quantity
from kybernate.errors import ConfigError
from kybernate.types import GroupName, NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Json = dict[str, Any]

PATH = "/api/v1/pods"
"""All pods."""

GRACE_S = 30.0
"""Kubernetes' own default of terminationGracePeriodSeconds."""

_FINISHED = ("Succeeded", "Failed")
_INDEX = "batch.kubernetes.io/job-completion-index"
_HAD_ITS_TIME = "DeadlineExceeded"
_MIRROR = "kubernetes.io/config.mirror"
_OFF = "node.kubernetes.io/out-of-service"
_PLUGIN_ENDED = "rpc error"
_NOT_ADMITTED = "UnexpectedAdmissionError"
_SPEC = ("image", "command", "args", "env", "envFrom", "workingDir", "ports", "securityContext")
_OF_ONE_POD = "kube-api-access-"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_EXAMPLE = keys.seat_resource(2)


def path(namespace: str, name: str) -> str:
    """Where the API server has a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


class Ask(NamedTuple):
    """A seat that a container's limits ask for. `amount` is never zero, and None if what is written
    is no amount."""

    resource: str
    amount: int | None
    container: Json

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.container.get("name"))

    @property
    def image(self) -> str:
        """The container's image."""
        return text(self.container.get("image"))

    @property
    def port(self) -> int | None:
        """The first port that the container names, None if it names none."""
        ports = mappings(self.container.get("ports"))
        return whole(ports[0].get("containerPort")) or None if ports else None

    @property
    def has_args(self) -> bool:
        """Whether arguments are given rather than the image's."""
        return bool(self.container.get("args"))

    @property
    def most_memory(self) -> int:
        """Bytes of memory that the container may have, 0 if it has no limit that can be read."""
        limits = mapping(mapping(self.container.get("resources")).get("limits"))
        try:
            return parse_quantity(text(limits.get("memory")) or "0")
        except ConfigError:
            return 0

    def template_hash(self) -> str:
        """Of what the container is: alike for all replicas of one template."""
        what = {
            **{name: self.container.get(name) for name in _SPEC},
            "volumeMounts": [
                mount
                for mount in mappings(self.container.get("volumeMounts"))
                if not text(mount.get("name")).startswith(_OF_ONE_POD)
            ],
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


class Pod(NamedTuple):
    """A pod, whole or without what nobody reads. `notes` are its annotations, `asks` the seats that
    its containers ask for, `init_asks` those that its init containers do."""

    meta: Json
    spec: Json
    status: Json
    notes: Mapping[str, str]
    asks: tuple[Ask, ...]
    init_asks: tuple[Ask, ...]

    # --- who it is ----------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return intern(str(self.meta.get("namespace", "")))

    @property
    def ref(self) -> PodRef:
        """Its namespace, name and UID."""
        return PodRef(
            self.namespace,
            str(self.meta.get("name", "")),
            PodUid(str(self.meta.get("uid", ""))),
        )

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return texts(self.meta.get("labels"))

    @property
    def created(self) -> str:
        """When it was made, as RFC 3339; empty if that isn't known."""
        return text(self.meta.get("creationTimestamp"))

    @property
    def owner(self) -> Json | None:
        """The controller that makes another one in its place, if there is one."""
        owners = mappings(self.meta.get("ownerReferences"))
        return next((one for one in owners if one.get("controller")), None)

    @property
    def succession(self) -> str:
        """Alike for a pod and the one that its controller makes in its place; empty for a pod that
        nobody replaces. Pods of a StatefulSet and of an indexed Job differ, others don't."""
        owner = self.owner or {}
        uid = text(owner.get("uid"))
        if owner.get("kind") == "StatefulSet":
            return f"{uid}/{self.ref.name}"
        index = self.labels.get(_INDEX) if self.of_job else None
        return f"{uid}/{index}" if index is not None else uid

    @property
    def of_job(self) -> bool:
        """Whether a Job has made it."""
        return (self.owner or {}).get("kind") == "Job"

    # --- what it asks for ---------------------------------------------------------------------

    @property
    def ask(self) -> Ask | None:
        """The seat that it asks for; of several the first, which `check` tells of."""
        return self.asks[0] if self.asks else None

    def check(self) -> None:
        """Raises ConfigError if what it asks for is not one seat of one container."""
        alone = not self.asks or (len(self.asks) == 1 and self.asks[0].amount == 1)
        if self.init_asks or not alone:
            _refuse(self.asks, self.init_asks)

    @property
    def model(self) -> str:
        """The model that it serves, empty if it doesn't say."""
        return self.notes.get(keys.MODEL, "")

    @property
    def gang(self) -> str:
        """The gang that it belongs to, empty if to none."""
        return self.notes.get(keys.GANG, "")

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of the gates that hold it back from being scheduled."""
        return tuple(str(one.get("name")) for one in mappings(self.spec.get("schedulingGates")))

    @property
    def scheduler(self) -> str:
        """The scheduler, or the scheduler's profile, that is to place it."""
        return text(self.spec.get("schedulerName"))

    @property
    def priority(self) -> int:
        """As its priority class says."""
        return whole(self.spec.get("priority"))

    @property
    def preempts(self) -> bool:
        """Whether it may take the place of less important ones."""
        return self.spec.get("preemptionPolicy") != "Never"

    @property
    def has_wishes(self) -> bool:
        """Whether it says which nodes it would rather have, in ways that the scheduler weighs."""
        kinds = (mapping(one) for one in mapping(self.spec.get("affinity")).values())
        spread = mappings(self.spec.get("topologySpreadConstraints"))
        return any(one.get(_PREFERRED) for one in kinds) or any(
            one.get("whenUnsatisfiable") == "ScheduleAnyway" for one in spread
        )

    @property
    def grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return float(whole(self.spec.get("terminationGracePeriodSeconds"))) or GRACE_S

    # --- what it was given --------------------------------------------------------------------

    @property
    def node(self) -> NodeName | None:
        """The node that it is bound to."""
        name = text(self.spec.get("nodeName"))
        return NodeName(intern(name)) if name else None

    @property
    def group(self) -> GroupName | None:
        """The group that the extender wrote; None if the pod never passed the extender."""
        group = self.notes.get(keys.ASSIGNED_GROUP)
        return GroupName(intern(group)) if group else None

    @property
    def placed(self) -> bool:
        """Whether the extender bound it. A kubelet makes pods of its own node (mirror pods) itself,
        in any namespace; what the extender writes with a binding, it can't."""
        stamped = self.notes.get(keys.ASSIGNED_GROUP) and self.notes.get(keys.ASSIGNED_AT)
        owners = mappings(self.meta.get("ownerReferences"))
        of_node = _MIRROR in self.notes or any(one.get("kind") == "Node" for one in owners)
        return bool(stamped) and not of_node

    @property
    def seat(self) -> str | None:
        """The seat that its node's agent has written."""
        return self.notes.get(keys.SEAT)

    def assigned_at(self) -> float:
        """When it was bound, in seconds since 1970. Raises ConfigError."""
        stamp = self.notes.get(keys.ASSIGNED_AT)
        if not stamp:
            return self.created_at()
        found = seconds(stamp)
        if found is None:
            raise ConfigError(keys.ASSIGNED_AT, f"{stamp[:40]!r} is no time")
        return found

    def created_at(self) -> float:
        """When it was made, in seconds since 1970; 0 if that isn't known."""
        return seconds(self.created) or 0.0

    # --- how it is ----------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.meta.get("deletionTimestamp"))

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.status.get("phase") in _FINISHED

    @property
    def failed_by_kubelet(self) -> bool:
        """Whether its kubelet has ended it, such as after a reboot, and not its workload: then the
        pod itself has a reason. One that had its time is not meant."""
        failed = self.status.get("phase") == "Failed"
        return failed and self.reason not in ("", _HAD_ITS_TIME)

    def failed_at(self) -> float | None:
        """When its status was last written, which of a failed pod is when it failed, in seconds
        since 1970; None if that isn't known. No condition says it of a pod that its kubelet did not
        admit after a reboot."""
        fields = mappings(self.meta.get("managedFields"))
        times = (text(one.get("time")) for one in fields if one.get("subresource") == "status")
        return max(filter(None, map(seconds, times)), default=None)

    def left_at(self) -> float | None:
        """When it was deleted, in seconds since 1970; None if it isn't being deleted. The API
        server writes when its time will be over."""
        until = seconds(text(self.meta.get("deletionTimestamp")))
        return until and until - whole(self.meta.get("deletionGracePeriodSeconds"))

    @property
    def ip(self) -> str:
        """Its address, empty until it has one."""
        return text(self.status.get("podIP"))

    @property
    def reason(self) -> str:
        """Why it is as it is, in a word of its kubelet's; empty if it doesn't say."""
        return text(self.status.get("reason"))

    @property
    def ready(self) -> bool:
        """Whether it may get requests."""
        return is_true(self.condition("Ready"))

    def runs_since(self) -> float | None:
        """When its kubelet took it up, in seconds since 1970; None if it isn't running, or that
        isn't known."""
        running = self.status.get("phase") == "Running"
        return seconds(text(self.status.get("startTime"))) if running else None

    def unschedulable_since(self) -> float | None:
        """Since when its scheduler has found no node for it, in seconds since 1970; None if it has,
        or hasn't looked."""
        told = self.condition("PodScheduled") or {}
        if (told.get("status"), told.get("reason")) != ("False", "Unschedulable"):
            return None
        return seconds(text(told.get("lastTransitionTime")))

    @property
    def burstable(self) -> bool:
        """Whether its requests are lower than its limits."""
        return self.status.get("qosClass") == "Burstable"

    def allocated(self, container: str) -> Mapping[str, str]:
        """What its kubelet has reserved for the container, as quantities by resource."""
        known = mappings(self.status.get("containerStatuses"))
        found = next((one for one in known if one.get("name") == container), {})
        return texts(found.get("allocatedResources"))

    def condition(self, kind: str) -> Json | None:
        """The condition of this type, if its status has it."""
        found = mappings(self.status.get("conditions"))
        return next((one for one in found if one.get("type") == kind), None)

    @property
    def refused_seat(self) -> str | None:
        """The seat resource for want of which the kubelet failed it for good."""
        if self.status.get("phase") != "Failed" or self.reason != _NOT_ADMITTED:
            return None
        message = text(self.status.get("message"))
        named = (ask.resource for ask in self.asks if ask.resource in message)
        # Of a plugin that ends while it is asked the kubelet says no name: it can only be ours if
        # no container asks for anybody else's device.
        ended = _PLUGIN_ENDED in message and not self._other_devices()
        return next(named, self.asks[0].resource if ended and self.asks else None)

    def _other_devices(self) -> bool:
        found = (
            mapping(mapping(one.get("resources")).get("limits"))
            for name in ("containers", "initContainers")
            for one in mappings(self.spec.get(name))
        )
        return any(
            "/" in name and not keys.seat_resource_size(name) for one in found for name in one
        )


def is_true(condition: Json | None) -> bool:
    """Whether there is this condition, and it holds."""
    return condition is not None and condition.get("status") == "True"


def is_alone(succession: str) -> bool:
    """Whether one pod at a time has it: of a StatefulSet or of an indexed Job."""
    return "/" in succession


def read_pod(pod: Mapping[str, Any]) -> Pod:
    """The pod of this JSON."""
    meta, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    status, notes = mapping(pod.get("status")), texts(meta.get("annotations"))
    init = spec.get("initContainers")
    return Pod(
        meta, spec, status, notes, _asks(spec.get("containers")), _asks(init) if init else ()
    )


def _asks(containers: object) -> tuple[Ask, ...]:
    """The seats that containers ask for. One of which the limit is zero asks for none."""
    found = []
    for container in mappings(containers):
        limits = mapping(mapping(container.get("resources")).get("limits"))
        for name in sorted(limits):
            if keys.seat_resource_size(name):
                amount = _amount(limits[name])
                if amount != 0:
                    found.append(Ask(name, amount, container))
    return tuple(found)


def _amount(written: object) -> int | None:
    if written == "1":
        return 1
    try:
        return parse_quantity(str(written))
    except ConfigError:
        return None


def _refuse(asks: tuple[Ask, ...], init_asks: tuple[Ask, ...]) -> None:
    if init_asks:
        init = init_asks[0]
        raise ConfigError(
            f"initContainers[{init.name}].resources.limits",
            f"{init.resource} can't be held by an init container; ask for it in a container",
        )
    if len(asks) > 1:
        raise ConfigError(
            "resources.limits", f"a pod holds one seat, not several ({_listed(asks)})"
        )
    raise ConfigError(
        f"resources.limits[{asks[0].resource}]",
        f'must be "1": a seat of several GPUs is another resource, such as {_EXAMPLE}',
    )


def _listed(asks: Iterable[Ask]) -> str:
    return ", ".join(f"{ask.resource} in {ask.name}" for ask in asks)


def seconds(stamp: str) -> float | None:
    """A time of Kubernetes since 1970; None if it is none, or none that UTC can write."""
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def why_off(node: Mapping[str, Any]) -> str:
    """How it is known that no pod runs on this Node any more, in a sentence; empty if some may."""
    meta, spec = mapping(node.get("metadata")), mapping(node.get("spec"))
    tainted = any(one.get("key") == _OFF for one in mappings(spec.get("taints")))
    return f"node {meta.get('name')} has the taint {_OFF}" if tainted else ""


def why_away(node: Mapping[str, Any]) -> str:
    """Why pods of this Node may be lost, in a sentence: it is off, or its kubelet has not been
    heard of; empty if it is well."""
    found = mappings(mapping(node.get("status")).get("conditions"))
    ready = next((one for one in found if one.get("type") == "Ready"), {})
    if is_true(ready):
        return why_off(node)
    return f"node {mapping(node.get('metadata')).get('name')} is not ready"
