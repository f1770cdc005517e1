"""200 pods of all profiles in waves on two nodes, while kubelets, plugins and agents restart.

A part is restarted after every tenth pod, and the next pods are created while it is away. No pod is
between bind and admission at that moment: a kubelet whose plugin dies just then fails that pod for
good, whatever any plugin does, and its owner must replace it. So the pods before are admitted
first, and the next ones follow once the extender can know (HEARD).

Every container prints which GPUs the driver lets it open. They must be exactly those of the
group that the extender wrote into its Binding, whatever device ID the kubelet chose.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from bench.report import emit, say
from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.spec import TIB
from tests.kit.pods import Pods, SeatPod, admitted, group_of, opened, ready

if TYPE_CHECKING:
    from collections.abc import Callable

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
"""Seconds in which all pods of a wave must have been Ready once."""


@dataclass(slots=True)
class Tally:
    """What the storm has seen."""

    pods: int = 0
    mismatches: int = 0
    lost: int = 0
    agreed: int = 0
    tokens: int = 0
    restarts: int = 0


@click.command()
@click.option("--pods", "count", default=200, show_default=True, help="Pods in all.")
@click.option("--seed", default=1, show_default=True, help="Order of sizes and restarts.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(count: int, seed: int, as_json: bool) -> None:
    """Create and delete pods in waves while parts restart; count wrong GPUs and lost pods."""
    tally, started = Tally(), time.monotonic()
    with running(ClusterSpec(images=("toy",), seats=SEATS, host_memory=8 * TIB), say) as cluster:
        Storm(cluster, tally, random.Random(seed)).run(count)
    metrics = {
        "mismatches": (float(tally.mismatches), "pods"),
        "lost": (float(tally.lost), "pods"),
        "pods": (float(tally.pods), "pods"),
        "kubelet_agreed_percent": (100 * tally.agreed / max(1, tally.tokens), "%"),
        "restarts": (float(tally.restarts), "restarts"),
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
        names = [f"s{number:03}" for number in range(first, first + size)]
        for number, name in enumerate(names):
            self._pods.create(SeatPod(name, gpus=SIZES[number % len(SIZES)], bytes_="1GiB"))
            if number % 10 == 9:
                self._pods.wait(names[: number + 1], admitted, ADMISSION_LIMIT, "admitted")
                self._restart_something()
        try:
            found = self._pods.wait(names, ready, WAVE_LIMIT, "Ready")
        except KybernateError as error:
            say(str(error))
            found = {n: p for n, p in self._pods.all().items() if n in names and ready(p)}
        self._tally.pods += size
        self._tally.lost += size - len(found)
        for name, pod in found.items():
            self._check(name, pod)
        self._agreement()
        say(f"{first + size} pods: {self._tally.mismatches} mismatches, {self._tally.lost} lost")
        self._pods.delete(names)
        self._pods.gone(names, 120)

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

    def _check(self, name: str, pod: dict[str, Any]) -> None:
        group = group_of(pod)
        found = opened(self._pods.log(name))
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
