"""The demo itself: deploy, play, watch, judge. Everything happens on the given cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp

from kybernate import keys
from kybernate.errors import DeadlineError
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import ClusterSpec, GpuSpec

from . import trace
from .models import MODELS, PART_OF, manifests
from .observe import Memory, Snapshot, WakeBook, seat_rows
from .player import Player
from .verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.cluster.cluster import Cluster

    from .models import Model
    from .observe import SeatRow
    from .screen import Screen

    Progress = Callable[[str], None]

READY_LIMIT = 120.0
"""Seconds in which all models must have started once."""

LOOK_EVERY = 0.25
"""Seconds between two looks at the cluster: shorter than a seat's minimum residency."""

PICTURE_AT = 0.6
"""When to take the picture, as a share of the traffic's time."""


def spec() -> ClusterSpec:
    """Two nodes of two 80 GiB GPUs. Groups are chosen so that load is spread."""
    return ClusterSpec(
        gpus=GpuSpec(count=2),
        images=("toy",),
        service_env={"extender": {"KYB_EXTENDER_POLICY": "spread"}},
    )


class Show:
    """One demo on one cluster, of these models."""

    def __init__(
        self, cluster: Cluster, progress: Progress, models: Sequence[Model] = MODELS
    ) -> None:
        self._cluster = cluster
        self._shown = models
        self._api = cluster.api()
        self._progress = progress
        self._wakes = WakeBook({model.name: model.gpus for model in models})
        self._memory = [self._node_memory(node.name, node.simgpu_root) for node in cluster.nodes]
        self._models: dict[str, str] = {}

    def deploy(self) -> None:
        """Create the Deployments and wait till each has started once.

        Raises DeadlineError naming the pods that didn't.
        """
        self._cluster.kubectl("apply", "-f", "-", text=json.dumps(manifests(self._shown)))
        deadline = time.monotonic() + READY_LIMIT
        told = -1
        while True:
            pods = self._pods()
            ready = [pod for pod in pods if _condition(pod, "Ready")]
            if len(ready) != told:
                told = len(ready)
                self._progress(f"{told} of {len(self._shown)} models have started")
            if len(ready) == len(self._shown):
                break
            if time.monotonic() > deadline:
                raise DeadlineError(_not_ready(pods, len(self._shown)))
            time.sleep(0.25)
        self._models = {
            pod["metadata"]["uid"]: pod["metadata"]["annotations"][keys.MODEL] for pod in pods
        }

    def play(self, seconds: float, seed: int, screen: Screen, picture: Path | None) -> Outcome:
        """Play the traffic and show it. `seconds` is how long requests go on being sent."""
        names = [model.name for model in self._shown]
        player = Player(self._cluster.proxy_url, trace.plan(trace.read(), names, seconds, seed))
        with screen:
            asyncio.run(self._watch(player, screen, (picture, seconds * PICTURE_AT)))
        overlaps: list[str] = []
        witnessed = 0
        for memory in self._memory:
            found, lines = memory.overlaps(self._models)
            overlaps += found
            witnessed += lines
        return Outcome(len(player.plan), player.answers, self._wakes.wakes, overlaps, witnessed)

    async def _watch(
        self, player: Player, screen: Screen, picture: tuple[Path | None, float]
    ) -> None:
        path, picture_at = picture
        async with aiohttp.ClientSession(self._cluster.proxy_url) as session:
            rows = await _seats(session)
            started = time.monotonic()
            traffic = asyncio.create_task(player.play())
            for look in itertools.count(1):
                # A proxy that restarts is missed for a moment; its clients' answers tell of it.
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    rows = await _seats(session)
                self._wakes.look(rows)
                snapshot = self._snapshot(player, rows, time.monotonic() - started)
                screen.show(snapshot)
                if path is not None and snapshot.elapsed >= picture_at:
                    screen.picture(snapshot, path)
                    path = None
                if traffic.done():
                    break
                wait = started + look * LOOK_EVERY - time.monotonic()
                await asyncio.wait([traffic], timeout=max(0.01, wait))
            await traffic

    def _snapshot(self, player: Player, rows: Sequence[SeatRow], elapsed: float) -> Snapshot:
        return Snapshot(
            elapsed=elapsed,
            planned=len(player.plan),
            statuses=Counter(answer.status for answer in player.answers),
            swaps=len(self._wakes.wakes),
            seats=rows,
            gpus=[gpu for memory in self._memory for gpu in memory.rows(self._models)],
        )

    def _pods(self) -> list[dict[str, Any]]:
        selector = {"labelSelector": f"app.kubernetes.io/part-of={PART_OF}"}
        items = self._api.get("/api/v1/namespaces/default/pods", selector)["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def _node_memory(self, node: str, root: Path) -> Memory:
        path, count = f"{keys.GPU_NODES_PATH}/{node}", self._cluster.spec.gpus.count
        gpus = gpus_of(lambda: self._api.get(path).get("status") or {}, count)
        return Memory(node, root, gpus)


def gpus_of(status: Callable[[], Mapping[str, Any]], count: int) -> list[tuple[str, int]]:
    """UUID and bytes of a node's `count` GPUs, by index, as its GPUNode's status says.

    An agent that has just started tells of no GPU until the device plugin has told it of all.
    Raises DeadlineError if it never does.
    """
    found: list[Mapping[str, Any]] = []

    def all_told() -> bool:
        found[:] = status().get("gpus") or []
        return len(found) == count

    wait_until(all_told, READY_LIMIT, lambda: f"{len(found)} of {count} GPUs are told of")
    found.sort(key=lambda gpu: int(gpu["index"]))
    return [(gpu["uuid"], int(gpu["memoryBytes"])) for gpu in found]


async def _seats(session: aiohttp.ClientSession) -> list[SeatRow]:
    async with session.get("/v1/models", timeout=aiohttp.ClientTimeout(total=10)) as response:
        return seat_rows(await response.json())


def _condition(pod: dict[str, Any], kind: str) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _not_ready(pods: Sequence[dict[str, Any]], wanted: int) -> str:
    late = [pod for pod in pods if not _condition(pod, "Ready")]
    names = ", ".join(f"{pod['metadata']['name']} ({_why(pod)})" for pod in late)
    missing = wanted - len(pods)
    return (
        f"after {READY_LIMIT:.0f} s not all models have started: {names or 'no pod is late'}"
        + (f"; {missing} have no pod" if missing else "")
        + ". Run it with KEEP=1, then `kubectl describe pod` says more."
    )


def _why(pod: dict[str, Any]) -> str:
    status = pod.get("status", {})
    waiting = [
        one["state"]["waiting"].get("message") or one["state"]["waiting"].get("reason", "")
        for one in status.get("containerStatuses", [])
        if "waiting" in one.get("state", {})
    ]
    unscheduled = [
        one.get("message", "")
        for one in status.get("conditions", [])
        if one["type"] == "PodScheduled" and one["status"] != "True"
    ]
    known = (why for why in [*waiting, *unscheduled] if why)
    return str(next(known, status.get("phase", "unknown")))
