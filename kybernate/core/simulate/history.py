"""Workloads as their GPUs' history tells of them. Pure.

A GPU's exporter knows no requests. So each minute in which one of a pod's GPUs worked counts as a
request that was worked on for as long as the GPU was busy in it: more requests in a minute are one,
and a longer one is several.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.simulate.workloads import GB, HOURS, Workload
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MINUTE = 60.0
_HOUR = 3600.0
_GIB = 1024.0  # of MiB


@dataclass(frozen=True, slots=True)
class History:
    """What was seen of a pod that is there now: its GPUs, the most memory that it had on one of
    them (MiB), and how busy the busiest of them was in each minute, by its end (s since 1970), from
    0 to 1. `owner`: see `Workload`."""

    name: str
    namespace: str
    gpus: int
    mib: float
    busy: Mapping[float, float]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod that asks for GPUs, and the topmost object that made it; of a bare pod itself."""

    namespace: str
    name: str
    kind: str
    owner: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Unseen:
    """So many pods of a workload, with so many GPUs in all, have no history."""

    namespace: str
    owner: str
    pods: int
    gpus: int


def by_owner(day: Iterable[History], pods: Iterable[GpuPod]) -> tuple[list[History], list[Unseen]]:
    """The history of each pod under its workload's name, numbered where that has several pods; and
    the pods without any. What no pod of these has keeps the name that it has."""
    seen = {(one.namespace, one.name): one for one in day}
    groups: dict[tuple[str, str, str], list[GpuPod]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.owner, pod.kind, pod.name)):
        groups.setdefault((pod.namespace, pod.owner, pod.kind), []).append(pod)
    alike = Counter((namespace, name) for namespace, name, _ in groups)
    found, unseen = [], []
    for (namespace, name, kind), those in groups.items():
        called = f"{kind} {name}" if alike[namespace, name] > 1 else name
        without = []
        for number, pod in enumerate(those, 1):
            own = seen.pop((namespace, pod.name), None)
            if own is None:
                without.append(pod.gpus)
                continue
            told = f"{called} ({number} of {len(those)})" if len(those) > 1 else called
            found.append(replace(own, name=told, owner=f"{kind}/{name}"))
        if without:
            unseen.append(Unseen(namespace, f"{kind}/{name}", len(without), sum(without)))
    return [*found, *seen.values()], unseen


def workload_of(seen: History, p99: float, where: str) -> Workload:
    """The workload that a plan takes the pod for. `p99`: see `Workload`."""
    minutes, worked = [0] * HOURS, [0] * HOURS
    for at, busy in seen.busy.items():
        # What ends with the hour was in it.
        hour = int((at - _MINUTE / 2) // _HOUR) % HOURS
        minutes[hour] += 1
        worked[hour] += busy > 0
    seconds = sum(seen.busy.values()) * _MINUTE / (sum(worked) or 1)
    return Workload(
        name=seen.name,
        namespace=seen.namespace,
        gpus=seen.gpus,
        gb=seen.mib / _GIB * GB,
        by_hour=tuple(
            _HOUR / _MINUTE * some / every if every else 0.0
            for some, every in zip(worked, minutes, strict=True)
        ),
        p99=p99,
        seconds=max(seconds, 0.001),
        where=where,
        owner=seen.owner,
    )
