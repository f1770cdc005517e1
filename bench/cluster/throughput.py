"""Pods per second through the real kube-scheduler, with the extender and without, in turn.

Nodes are objects only: no kubelet runs. All pods exist before a scheduler starts; a round ends when
all of them are bound. Both kinds of round have the shipped scheduler configuration and the same
pods; "without" has no `extenders:`. Rates are from the first binding to the last, as a watch sees
them, so that a scheduler's start doesn't count.
"""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from bench.cluster import fleet
from bench.processes import cpu_seconds, worker
from bench.report import emit, median, say
from kybernate import keys
from kybernate.errors import ConflictError
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.fetched.binaries import ensure
from tests.cluster.layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api

NAMESPACE = "kube-system"
"""Where the admission webhook is not asked: none runs here."""

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SHIPPED = REPOSITORY / "config" / "scheduler" / "kube-scheduler-config.yaml"
QPS = 2000
LABELS = {"bench": "throughput", keys.MANAGED_LABEL: "true"}
"""The second one the webhook would give: at each Binding the API server looks at all pods without
it, which costs it some 0.8 ms for each (see config/policy/extender-account.yaml)."""
LIMIT = 120.0
"""Seconds that a round may take."""

KINDS = ("without", "with")


@dataclass
class Rounds:
    """What was seen of one kind of round."""

    rates: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of CPU per pod, by process."""


@click.command()
@click.option("--nodes", default=500, show_default=True, help="Nodes with eight GPUs each.")
@click.option("--pods", default=1000, show_default=True, help="Pods per round.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of each kind.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(nodes: int, pods: int, rounds: int, as_json: bool) -> None:
    """Measure the scheduler's throughput with and without the extender."""
    spec = ClusterSpec(
        control_plane_only=True, controller_manager=False, services=frozenset({"extender"})
    )
    seen = {kind: Rounds() for kind in KINDS}
    with running(spec, say) as cluster:
        bench = Bench(cluster, pods)
        bench.fill(nodes)
        for number in range(2 * rounds):
            # without, with, with, without: what drifts with time falls on both.
            kind = KINDS[(number + 1) // 2 % 2]
            bench.round(kind, seen[kind])
            say(f"{kind} the extender: {seen[kind].rates[-1]:.0f} pods/s")
    with_, without = median(seen["with"].rates), median(seen["without"].rates)
    metrics = {"throughput_ratio": (with_ / without, "x"), "pods_per_s": (with_, "1/s")}
    for name, values in seen["with"].cpu.items():
        metrics[f"{name}_cpu_ms"] = (median(values), "ms/pod")
    base = {f"{name}_cpu_ms": round(median(v), 3) for name, v in seen["without"].cpu.items()}
    baseline = {"name": "no extenders:", "pods_per_s": round(without, 1), **base}
    emit("throughput", metrics, baseline, as_json=as_json)


class Bench:
    """The cluster and its rounds."""

    def __init__(self, cluster: Cluster, pods: int) -> None:
        self._cluster = cluster
        self._api = cluster.api()
        self._pods = pods

    def fill(self, nodes: int) -> None:
        """Make the nodes, and what pods of the namespace need."""
        account = {"metadata": {"name": "default"}}
        with suppress(ConflictError):
            self._api.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
        _each(range(nodes), lambda number: make_node(self._api, number))
        say(f"{nodes} nodes made")

    def round(self, kind: str, seen: Rounds) -> None:
        """Create all pods, let a scheduler bind them, delete them."""
        _each(range(self._pods), lambda number: self._api.post(PODS, pod(number)))
        with ExitStack() as stack:
            bound = Bound(self._cluster.api("scheduler"), self._pods)
            scheduler = stack.enter_context(run_scheduler(self._cluster, kind == "with"))
            pids = self._pids() | {"scheduler": scheduler}
            bound.wait(1)
            before = {name: cpu_seconds(pid) for name, pid in pids.items()}
            began = bound.at
            bound.wait(self._pods)
            took = bound.at - began
            for name, pid in pids.items():
                used = 1000 * (cpu_seconds(pid) - before[name]) / self._pods
                seen.cpu.setdefault(name, []).append(used)
        seen.rates.append((self._pods - 1) / took)
        self._delete()

    def _pids(self) -> dict[str, int]:
        found = {name: self._cluster.process(name).pid for name in ("apiserver", "etcd")}
        return found | {"extender": worker(self._cluster.process("extender").pid)}

    def _delete(self) -> None:
        selector = {"labelSelector": "bench=throughput"}
        _each(
            [item["metadata"]["name"] for item in self._api.get(PODS, selector)["items"]],
            lambda name: self._api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0}),
        )


class Bound:
    """Counts the pods that become bound. Nothing is decoded but lines."""

    def __init__(self, api: Api, pods: int) -> None:
        self.at = 0.0
        """When the last one was counted, in seconds."""
        self._count = 0
        self._api = api
        self._version = api.get(PODS, {"limit": 1})["metadata"]["resourceVersion"]
        self._events = self._read()

    def wait(self, count: int) -> None:
        """Until so many are bound."""
        while self._count < count:
            self._count += next(self._events)["type"] == "ADDED"
        self.at = time.perf_counter()

    def _read(self) -> Iterator[dict[str, Any]]:
        query = {"fieldSelector": "spec.nodeName!=", "labelSelector": "bench=throughput"}
        deadline = time.monotonic() + LIMIT
        # The API server ends a watch that begins before its cache is filled.
        while time.monotonic() < deadline:
            from_here = {**query, "resourceVersion": self._version}
            for event in self._api.watch(PODS, from_here, timeout=LIMIT):
                self._version = event["object"]["metadata"]["resourceVersion"]
                yield event
        raise SystemExit(f"only {self._count} pods were bound within {LIMIT:.0f} s")


@contextmanager
def run_scheduler(cluster: Cluster, extended: bool) -> Iterator[int]:
    """A kube-scheduler with the shipped configuration; yields its PID."""
    config = scheduler_config(cluster, extended=extended)
    path = cluster.layout.configs / "bench-scheduler.json"
    path.write_text(json.dumps(config))
    kubeconfig = cluster.layout.kubeconfig("scheduler")
    argv = [
        str(ensure(("kube-scheduler",), say).path("kube-scheduler")),
        f"--config={path}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
    ]
    with Path(cluster.layout.logs / "bench-scheduler.log").open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(20)


def scheduler_config(cluster: Cluster, *, extended: bool) -> dict[str, Any]:
    """The shipped configuration, fitted to this cluster, with its extender or without."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    access = str(cluster.layout.kubeconfig("scheduler"))
    config["leaderElection"] = {"leaderElect": False}
    config["clientConnection"] = {"kubeconfig": access, "qps": QPS, "burst": QPS}
    if not extended:
        del config["extenders"]
        return config
    (one,) = config["extenders"]
    one["urlPrefix"] = f"https://127.0.0.1:{cluster.ports.extender}/v1"
    for name in ("caFile", "certFile", "keyFile"):
        one["tlsConfig"][name] = str(cluster.layout.tls / Path(one["tlsConfig"][name]).name)
    return config


def make_node(api: Api, number: int) -> None:
    """A Node with its seats, and its GPUNode."""
    name = fleet.node_name(number)
    room = {"cpu": "128", "memory": "2048Gi", "pods": "110"}
    for size, seats in fleet.SEATS.items():
        room[keys.seat_resource(size)] = str(seats * fleet.GPUS // size)
    status = {"capacity": room, "allocatable": room}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    api.post("/api/v1/nodes", node)
    api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    # The API server adds a taint that a controller takes away once a kubelet reports.
    api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    gpu_node = fleet.gpu_node(number)
    meta = {"metadata": {"name": name}}
    api.post(keys.GPU_NODES_PATH, {**meta, "apiVersion": keys.API_VERSION, "kind": "GPUNode"})
    api.patch(f"{keys.GPU_NODES_PATH}/{name}/status", {"status": gpu_node["status"]})


def pod(number: int) -> dict[str, Any]:
    """A pod that wants a seat."""
    size = fleet.SIZES[number % len(fleet.SIZES)]
    vram = fleet.VRAM[size][number // len(fleet.SIZES) % len(fleet.VRAM[size])]
    seat = {keys.seat_resource(size): "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"bench-{number:05}",
            "labels": LABELS,
            "annotations": {keys.VRAM: vram} if vram else {},
        },
        "spec": {
            "schedulerName": keys.SCHEDULER_NAME,
            "automountServiceAccountToken": False,
            "containers": [{"name": "model", "image": "none", "resources": {"limits": seat}}],
        },
    }


def _each(items: Any, act: Callable[[Any], object]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(act, items))


if __name__ == "__main__":
    main()
