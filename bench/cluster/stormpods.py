"""The storm's pods: some bare, some owned by a ReplicaSet or a Job, and what has become of each.

A unit is one pod that somebody wants. Who owns one makes another pod for each that failed; a bare
one that failed stays failed, and its name is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.pods import read_pod
from tests.kit.pods import SeatPod, admitted, ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Json = dict[str, Any]

LABEL = "storm"
"""Of a unit's pods: the unit's name."""

BACKOFF = 6
"""Pods of a Job that may fail before it gives up: what Kubernetes has by default."""


class Owner(Enum):
    """Who makes a unit's pods: the plural of its kind, and the path of its group's version."""

    NOBODY = ("pods", "/api/v1")
    REPLICA_SET = ("replicasets", "/apis/apps/v1")
    JOB = ("jobs", "/apis/batch/v1")


class Fate(Enum):
    """What has become of a unit. A kubelet's refusal is final for a bare pod only."""

    PENDING = "not Ready"
    READY = "Ready"
    FAILED_BY_KUBELET = "failed by the kubelet"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Unit:
    """One pod that somebody wants, with so many GPUs."""

    name: str
    owner: Owner
    gpus: int

    @property
    def path(self) -> str:
        """Where it is created, at the API server."""
        plural, version = self.owner.value
        return f"{version}/namespaces/default/{plural}"

    def manifest(self) -> Json:
        """What is created: the pod, or its owner."""
        pod = SeatPod(self.name, gpus=self.gpus, bytes_="1GiB").manifest()
        pod["metadata"]["labels"][LABEL] = self.name
        if self.owner is Owner.NOBODY:
            return pod
        template = {
            "metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")},
            "spec": pod["spec"],
        }
        if self.owner is Owner.REPLICA_SET:
            selector = {"matchLabels": {LABEL: self.name}}
            spec = {"replicas": 1, "selector": selector, "template": template}
            return self._owner("apps/v1", "ReplicaSet", spec)
        template["spec"]["restartPolicy"] = "Never"
        # A pod that is being deleted holds its seat until it is gone: no other one before.
        spec = {"backoffLimit": BACKOFF, "podReplacementPolicy": "Failed", "template": template}
        return self._owner("batch/v1", "Job", spec)

    def _owner(self, version: str, kind: str, spec: Json) -> Json:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": self.name}, "spec": spec}

    def fate(self, pods: Iterable[Json]) -> Fate:
        """What has become of it, by all pods that were made for it and are still there."""
        known = list(pods)
        if any(ready(pod) and not _failed(pod) for pod in known):
            return Fate.READY
        if self.owner is Owner.NOBODY and known and all(read_pod(pod).over for pod in known):
            kubelet = all(map(failed_by_kubelet, known))
            return Fate.FAILED_BY_KUBELET if kubelet else Fate.FAILED
        return Fate.PENDING

    def is_admitted(self, pods: Iterable[Json]) -> bool:
        """Whether a kubelet has taken a pod of it, or nothing more will come of it."""
        known = list(pods)
        if self.fate(known) not in {Fate.PENDING, Fate.READY}:
            return True
        return any(admitted(pod) and not _failed(pod) for pod in known)


def failed_by_kubelet(pod: Mapping[str, Any]) -> bool:
    """Whether its kubelet failed it for good, since it had no seat to give at that moment.

    A container that ran meanwhile, and ends well as the kubelet ends it, has the pod's status say
    Succeeded and no reason in the end: what was told of it before counts.
    """
    found = read_pod(pod)
    told = found.condition(keys.REPLACE_CONDITION) or {}
    return found.refused_seat is not None or told.get("reason") == "SeatsNotThere"


def _failed(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Failed")


def units(numbers: Iterable[int], sizes: Sequence[int]) -> list[Unit]:
    """The units of these numbers: a third each is bare, of a ReplicaSet and of a Job."""
    owners = tuple(Owner)
    return [
        Unit(f"s{number:03}", owners[number % len(owners)], sizes[number % len(sizes)])
        for number in numbers
    ]


def by_unit(pods: Iterable[Json]) -> dict[str, list[Json]]:
    """The storm's pods by the names of their units."""
    found: dict[str, list[Json]] = {}
    for pod in pods:
        name = (pod["metadata"].get("labels") or {}).get(LABEL)
        if name is not None:
            found.setdefault(name, []).append(pod)
    return found
