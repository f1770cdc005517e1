"""200 pods of all profiles in waves on two nodes, while kubelets, plugins and agents restart.

A part is restarted after every tenth pod, and the next pods are created while it is away. No pod is
between bind and admission at that moment: a kubelet whose plugin dies just then fails that pod for
good, whatever any plugin does. So the pods before are admitted first, and the next ones follow once
the extender can know (HEARD). A kubelet that restarts does the same to pods that have their device
and no running container yet. Such pods are counted apart, each with its story: a third of the pods
belong to a ReplicaSet, a third to a Job, and these must be Ready in the end without a hand. Lost is
what is not, and a bare pod that ended for any other reason.

Every container prints which GPUs the driver lets it open. They must be exactly those of the
group that the extender wrote into its Binding, whatever device ID the kubelet chose.
"""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bench.cluster.stormpods import Fate, Unit, by_unit, failed_by_kubelet, units
from bench.processes import hogs
from bench.report import emit, say
from kybernate import keys
from kybernate.errors import NotFoundError, RetryableError
from kybernate.lib.retry import retry_blocking
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.spec import TIB
from tests.kit.pods import Pods, group_of, opened, ready

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]

SEATS = {
    "profiles": [
        {"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1, "seatsPerGroup": 4},
        {"name": "2x", "resource": "kyb.ai/gpu-2x-seat", "groupSize": 2, "seatsPerGroup": 3},
        {"name": "4x", "resource": "kyb.ai/gpu-4x-seat", "groupSize": 4, "seatsPerGroup": 2},
    ]
}
SIZES = (1,) * 7 + (2,) * 2 + (4,)
"""How many GPUs pods ask for, one after the other."""

WAVE = 40
HEARD = 0.5
"""Seconds for a plugin's end to reach the extender: agent, API server, watch (about 0.05 s)."""

ADMISSION_LIMIT = 60.0
"""Seconds in which a pod must be bound and admitted by its kubelet."""

WAVE_LIMIT = 300.0
"""Seconds in which all pods of a wave, or those that replace them, must be Ready. A Job waits 10 s
before it replaces a pod that failed, and twice as long each further time."""

GONE_LIMIT = 120.0
"""Seconds in which a wave's pods must be gone."""

BACKGROUND = {"propagationPolicy": "Background"}

FINAL = frozenset(Fate) - {Fate.PENDING}


@dataclass(slots=True)
class Tally:
    """What the storm has seen."""

    pods: int = 0
    mismatches: int = 0
    lost: int = 0
    failed_by_kubelet: int = 0
    agreed: int = 0
    tokens: int = 0
    restarts: int = 0


@click.command()
@click.option("--pods", "count", default=200, show_default=True, help="Pods in all.")
@click.option("--seed", default=1, show_default=True, help="Order of sizes and restarts.")
@click.option("--hog", "hungry", default=0, show_default=True, help="CPU hogs beside it.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(count: int, seed: int, hungry: int, as_json: bool) -> None:
    """Create and delete pods in waves while parts restart; count wrong GPUs and lost pods."""
    tally, started = Tally(), time.monotonic()
    spec = ClusterSpec(images=("toy",), seats=SEATS, host_memory=8 * TIB)
    with hogs(hungry), running(spec, say) as cluster:
        Storm(cluster, tally, random.Random(seed)).run(count)
    metrics = {
        "mismatches": (float(tally.mismatches), "pods"),
        "lost": (float(tally.lost), "pods"),
        "failed_by_kubelet": (float(tally.failed_by_kubelet), "pods"),
        "pods": (float(tally.pods), "pods"),
        "kubelet_agreed_percent": (100 * tally.agreed / max(1, tally.tokens), "%"),
        "restarts": (float(tally.restarts), "restarts"),
        "hogs": (float(hungry), "processes"),
        "seconds": (time.monotonic() - started, "s"),
    }
    baseline = {"name": "correct", "mismatches": 0, "lost": 0}
    emit("storm", metrics, baseline, as_json=as_json)
    if tally.mismatches or tally.lost:
        raise SystemExit(1)


class Storm:
    """The waves."""

    def __init__(self, cluster: Cluster, tally: Tally, dice: random.Random) -> None:
        self._cluster = cluster
        self._tally = tally
        self._dice = dice
        self._pods = Pods(cluster.api())

    def run(self, count: int) -> None:
        """All waves."""
        made = 0
        while made < count:
            size = min(WAVE, count - made)
            self._wave(made, size)
            made += size

    def _wave(self, first: int, size: int) -> None:
        wave = units(range(first, first + size), SIZES)
        for number, unit in enumerate(wave):
            self._cluster.api().post(unit.path, unit.manifest())
            if number % 10 == 9:
                self._wait(wave[: number + 1], Unit.is_admitted, ADMISSION_LIMIT)
                self._restart_something()
        pods = self._wait(wave, lambda unit, pods: unit.fate(pods) in FINAL, WAVE_LIMIT)
        self._tally.pods += size
        for unit in wave:
            self._count(unit, pods.get(unit.name, []))
        self._agreement()
        told = self._tally
        say(
            f"{first + size} pods: {told.mismatches} mismatches, {told.lost} lost, "
            f"{told.failed_by_kubelet} failed by the kubelet"
        )
        self._clear(wave)

    def _wait(
        self, wave: list[Unit], test: Callable[[Unit, list[Json]], bool], limit: float
    ) -> dict[str, list[Json]]:
        """The pods by unit, once all units pass the test, or `limit` seconds have passed."""
        deadline = time.monotonic() + limit
        while True:
            pods = by_unit(self._pods.all().values())
            late = [unit for unit in wave if not test(unit, pods.get(unit.name, []))]
            if not late or time.monotonic() > deadline:
                return pods
            time.sleep(0.1)

    def _count(self, unit: Unit, pods: list[Json]) -> None:
        """What has become of it; the story of each of its pods that is not as it should be."""
        for pod in pods:
            if failed_by_kubelet(pod):
                self._tally.failed_by_kubelet += 1
                say(f"failed by the kubelet, of a {unit.owner.name}: {self._story(pod)}")
        fate = unit.fate(pods)
        if fate is Fate.READY:
            self._check(next(pod for pod in pods if ready(pod)))
        elif fate is not Fate.FAILED_BY_KUBELET:
            self._tally.lost += 1
            stories = [self._story(pod) for pod in pods] or ["it has no pod"]
            say(f"lost: {unit.name} of a {unit.owner.name} is {fate.value}\n" + "\n".join(stories))

    def _story(self, pod: Json) -> str:
        return self._pods.story(pod["metadata"]["name"])

    def _clear(self, wave: list[Unit]) -> None:
        """All of the wave is deleted, owners with their pods, and gone."""
        api, names = self._cluster.api(), {unit.name for unit in wave}
        deadline = time.monotonic() + GONE_LIMIT
        for unit in wave:
            with suppress(NotFoundError):  # an answer that was lost may have been to a deletion
                retry_blocking(
                    partial(api.delete, f"{unit.path}/{unit.name}", BACKGROUND),
                    lambda error: say(f"once more: {error}"),
                    on=RetryableError,
                    until=deadline,
                )
        while left := names & by_unit(self._pods.all().values()).keys():
            if time.monotonic() > deadline:
                raise SystemExit(f"after {GONE_LIMIT:g} s still there: {', '.join(sorted(left))}")
            time.sleep(0.1)

    def _restart_something(self) -> None:
        node = self._cluster.node(self._dice.choice(self._cluster.spec.node_names))
        acts: list[tuple[str, Callable[[], None]]] = [
            ("kubelet", node.kubelet.restart),
            ("agent", node.agent.kill9),
            ("plugin", node.plugin.kill9),
        ]
        name, act = self._dice.choice(acts)
        say(f"restarting {name} of {node.name}")
        act()
        time.sleep(HEARD)
        self._tally.restarts += 1

    def _check(self, pod: Json) -> None:
        name, group = pod["metadata"]["name"], group_of(pod)
        # The kubelet that has the log may be starting again; at first it knows none of its pods.
        log = retry_blocking(
            partial(self._pods.log, name),
            lambda error: say(f"once more: {error}"),
            on=(RetryableError, NotFoundError),
            until=time.monotonic() + ADMISSION_LIMIT,
        )
        found = opened(log)
        wanted = self._members(pod["spec"]["nodeName"], group)
        if found != wanted:
            self._tally.mismatches += 1
            say(f"{name} in {group} opens {found}, not {wanted}")

    def _members(self, node: str, group: str | None) -> set[str]:
        status = self._cluster.api().get(f"{keys.GPU_NODES_PATH}/{node}")["status"]
        return {gpu for one in status["groups"] if one["name"] == group for gpu in one["gpus"]}

    def _agreement(self) -> None:
        """How many device IDs that the kubelet chose are of the group that the pod was given."""
        for node in self._cluster.nodes:
            folder = self._cluster.layout.node(node.name).root / "cdi"
            for path in folder.glob("kyb-*.json"):
                (device,) = json.loads(path.read_text())["devices"]
                env = device["containerEdits"]["env"]
                group = next(e.split("=", 1)[1] for e in env if e.startswith(keys.ENV_GROUP))
                self._tally.tokens += 1
                self._tally.agreed += device["name"].rsplit("-seat-", 1)[0] == group


if __name__ == "__main__":
    main()
