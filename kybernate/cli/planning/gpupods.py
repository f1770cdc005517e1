"""Pods that have GPUs or wait for some, and the workloads that they are of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.lenient import mapping, mappings, text
from kybernate.api.pods import read_pod
from kybernate.core.simulate.history import GpuPod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kybernate.api.pods import Pod

    Json = dict[str, Any]

BETWEEN = ("/apis/apps/v1/replicasets", "/apis/batch/v1/jobs")
"""What stands between a pod and who has made it: of a Deployment, and of a CronJob."""


def gpu_pods(pods: Iterable[Mapping[str, Any]], between: Iterable[Json]) -> list[GpuPod]:
    """Of these pods those that ask for whole GPUs, by the vendor's resource or by ours, and haven't
    ended. `between`: objects of the kinds of `BETWEEN`; their metadata will do."""
    owners = {text(mapping(one.get("metadata")).get("uid")): _owner(one) for one in between}
    found = []
    for item in pods:
        pod = read_pod(item)
        gpus = gpus_of(pod)
        if not gpus or pod.over:
            continue
        own = pod.owner
        for _ in BETWEEN:  # no more, whatever points to what
            own = owners.get(text(own.get("uid"))) or own if own else None
        kind, name = (text(own.get("kind")), text(own.get("name"))) if own else ("Pod", "")
        found.append(GpuPod(pod.namespace, pod.ref.name, kind, name or pod.ref.name, gpus))
    return found


def gpus_of(pod: Pod) -> int:
    """Whole GPUs that its containers use at once; parts of GPUs (MIG, time slices) don't count."""
    now = sum(map(_gpus, mappings(pod.spec.get("containers"))))
    before = map(_gpus, mappings(pod.spec.get("initContainers")))
    return max(now, *before, 0)


def _gpus(container: Json) -> int:
    resources = mapping(container.get("resources"))
    # What is asked of an extended resource and its limit are the same.
    asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    count = 0
    for name, amount in asked.items():
        each = 1 if name == keys.VENDOR_RESOURCE else keys.seat_resource_size(name) or 0
        digits = str(amount)
        count += each * int(digits) if digits.isascii() and digits.isdigit() else 0
    return count


def _owner(item: Json) -> Json | None:
    owners = mappings(mapping(item.get("metadata")).get("ownerReferences"))
    return next((one for one in owners if one.get("controller")), None)
