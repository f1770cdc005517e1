"""The real controller beside a real API server with thousands of objects, of which some change all
the time: how long a change waits for an answer, and what the controller takes.

Most objects only lie there. Of the changes most are CheckpointRequests, each of which is pinned,
begun on an agent's stand-in, followed and ended; others are GPUNodes, as agents write them, and
policies.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from bench.operator.plane import GPU, NODE, Plane, plane, until
from bench.processes import cpu_seconds, memory_mib
from bench.report import Metrics, emit, percentile, say
from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.errors import ConflictError, KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.kit.servers.controllerserver import Controller

    Json = dict[str, Any]

GROUP = f"/apis/{keys.API_VERSION}"
NAMESPACES = 10
PODS = 20
"""Pods with seats in a namespace; requests name them in turn."""
LIMIT_S = 240.0
_AT_ONCE = 16
_KEPT_S = 60
"""Seconds for which an ended request stays; so many as are made in that time are there."""
_OURS = "apiserver_request_total"
_VERBS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "LIST"))
_RESOURCES = frozenset(
    (
        *("checkpointrequests", "checkpointpolicies", "rebalancerequests", "restorerequests"),
        *("snapshottemplates", "artifacts", "gpunodes", "pods", "events", "deployments", "nodes"),
    )
)


class Load:
    """What is made and changed here, and after how many seconds the controller had first answered a
    request, and ended it. `calls`: the changes, by verb and resource."""

    def __init__(self, up: Plane, nodes: int) -> None:
        self._up, self._nodes = up, nodes
        self._made: dict[str, float] = {}
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.answered: list[float] = []
        self.ended: list[float] = []
        self._waits: dict[str, str] = {}

    def stand(self, objects: int) -> None:
        """Make what only lies there: pods with seats, and objects of each kind that have ended."""
        spaces = [f"team-{number}" for number in range(NAMESPACES)]
        _each(self._up.namespace, spaces)
        places = list(itertools.product(spaces, range(PODS)))
        _each(lambda place: self._pod(*place), places)
        _each(self._node, range(self._nodes))
        _each(lambda number: self._still(spaces[number % NAMESPACES], number), range(objects))
        self._policies(spaces)

    def on_event(self, kind: str, item: Json) -> None:
        """A request has changed: its first reason is the answer."""
        name, status = str(item["metadata"]["name"]), item.get("status") or {}
        at = time.monotonic()
        with self._lock:
            began = self._made.get(name)
            if kind == "DELETED" or began is None:
                return
            if status.get("conditions") and self._waits.get(name) == "first":
                self.answered.append(at - began)
                self._waits[name] = "end"
            if status.get("completionTime") and self._waits.get(name) == "end":
                self.ended.append(at - began)
                del self._waits[name], self._made[name]

    def waiting(self) -> int:
        """Requests that have not ended."""
        return len(self._waits)

    def run(self, rate: float, seconds: float) -> None:
        """So many changes a second: of ten, six requests, three GPUNodes, one policy."""
        began = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number in range(int(rate * seconds)):
                late = began + number / rate - time.monotonic()
                if late > 0:
                    time.sleep(late)
                pool.submit(self._change, number)

    def _change(self, number: int) -> None:
        # Of each namespace all kinds of changes.
        place, space = number % 10, f"team-{number // 10 % NAMESPACES}"
        with contextlib.suppress(KybernateError):
            if place < 6:
                self._request(space, number)
            elif place < 9:
                self._tell(number % self._nodes, number)
            else:
                self._weigh(space, number)

    def _request(self, space: str, number: int) -> None:
        name = f"once-{number}"
        spec = {"pod": f"pod-{number // 10 % PODS}", "mode": "Snapshot"}
        with self._lock:
            self._made[name], self._waits[name] = time.monotonic(), "first"
        body = _object(keys.CHECKPOINT_REQUEST_KIND, name, spec)
        body["spec"]["ttlSecondsAfterFinished"] = _KEPT_S
        self._up.api.post(_path("checkpointrequests", space), body)
        self._count("POST checkpointrequests")

    def _tell(self, node: int, number: int) -> None:
        budget = {"parkBytes": 1 << 40, "parkedBytes": number, "availableBytes": 1 << 40}
        path = f"{keys.GPU_NODES_PATH}/{_node(node)}/status"
        self._up.cluster.api("agent").patch(path, {"status": {"budget": budget}})
        self._count("PATCH gpunodes")

    def _weigh(self, space: str, number: int) -> None:
        path = f"{_path('checkpointpolicies', space)}/all"
        self._up.api.patch(path, {"spec": {"turn": {"weight": number % 100 + 1}}})
        self._count("PATCH checkpointpolicies")

    def _count(self, call: str) -> None:
        with self._lock:
            self.calls[call] += 1

    def _node(self, number: int) -> None:
        told = {"gpus": [GPU], "driver": {"version": "580.1"}}
        # Its agent is away: that of one node alone is asked for its operations.
        self._up.gpu_node(_node(number), told)

    def _pod(self, space: str, number: int) -> None:
        limits = {keys.seat_resource(1): "1", "memory": "1Gi"}
        container = {"name": "c", "image": "x", "args": ["serve"], "resources": {"limits": limits}}
        meta = {"name": f"pod-{number}", "labels": {keys.MANAGED_LABEL: "true"}}
        meta["annotations"] = {keys.VRAM: "1Gi"}
        pods = f"/api/v1/namespaces/{space}/pods"
        made = self._up.api.post(pods, {"metadata": meta, "spec": {"containers": [container]}})
        notes = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        bound = {"metadata": {"name": meta["name"], "annotations": notes}}
        bound["target"] = {"kind": "Node", "name": NODE}
        self._up.cluster.api("extender").post(f"{pods}/{meta['name']}/binding", bound)
        self._up.door.seats.add(made["metadata"]["uid"])

    def _still(self, space: str, number: int) -> None:
        """One that has come to its end, or is nobody's turn."""
        name = f"still-{number}"
        kind, plural, spec = _STILL[_OF_EIGHT[number % 8]]
        self._up.api.post(_path(plural, space), _object(kind, name, dict(spec)))

    def _policies(self, spaces: Iterable[str]) -> None:
        spec = {"selector": {}, "turn": {"weight": 1}}
        for space in spaces:
            body = _object(keys.CHECKPOINT_POLICY_KIND, "all", dict(spec))
            self._up.api.post(_path("checkpointpolicies", space), body)


_STILL: tuple[tuple[str, str, Json], ...] = (
    (keys.CHECKPOINT_REQUEST_KIND, "checkpointrequests", {"pod": "nobody", "mode": "Park"}),
    (
        keys.REBALANCE_REQUEST_KIND,
        "rebalancerequests",
        {"move": {"pod": "nobody", "to": {"group": "G1"}}},
    ),
    (keys.RESTORE_REQUEST_KIND, "restorerequests", {"source": {"pod": "nobody"}, "as": "clone"}),
    (
        keys.CHECKPOINT_POLICY_KIND,
        "checkpointpolicies",
        {"selector": {"matchLabels": {"app": "none"}}, "turn": {"mode": "auto"}},
    ),
)
_OF_EIGHT = (0, 3, 0, 1, 0, 3, 0, 2)
"""Of eight objects that lie there, which is of which kind."""


def _object(kind: str, name: str, spec: Json) -> Json:
    version = {"apiVersion": keys.API_VERSION, "kind": kind}
    return {**version, "metadata": {"name": name}, "spec": spec}


def _path(plural: str, space: str) -> str:
    return f"{GROUP}/namespaces/{space}/{plural}"


def _node(number: int) -> str:
    return f"node-{number:04}"


def _each(act: Callable[[Any], object], items: Iterable[Any]) -> None:
    def kept(item: Any) -> None:
        with contextlib.suppress(ConflictError):
            act(item)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(kept, items))


def calls(text: str) -> dict[str, float]:
    """What the API server has answered that the controller may have asked, by verb and resource."""
    found: dict[str, float] = {}
    for labels, value in _samples(text, _OURS):
        verb, resource = labels.get("verb", ""), labels.get("resource", "")
        if verb in _VERBS and resource in _RESOURCES:
            found[f"{verb} {resource}"] = found.get(f"{verb} {resource}", 0.0) + value
    return found


def quantile(text: str, before: str, name: str, share: float) -> float:
    """The bound below which that share of a histogram's samples lies that came since `before`."""
    old = {labels["le"]: value for labels, value in _samples(before, f"{name}_bucket")}
    new = {labels["le"]: value for labels, value in _samples(text, f"{name}_bucket")}
    counts = {bound: value - old.get(bound, 0.0) for bound, value in new.items()}
    total = counts.get("+Inf", 0.0)
    bounds = (bound for bound, count in counts.items() if count >= share * total)
    return min((float(bound) for bound in bounds), default=0.0)


def _samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name:
            yield dict(re.findall(r'(\w+)="([^"]*)"', head)), float(value)


def measured(
    up: Plane, load: Load, replica: Controller, rate: float, seconds: float
) -> tuple[Metrics, dict[str, float]]:
    """Run the changes, and wait for the last answer: the figures, and the calls for each change."""
    told, asked = replica.metrics(), calls(up.api.text("/metrics", timeout=LIMIT_S))
    used, began = cpu_seconds(replica.pid), time.monotonic()
    load.run(rate, seconds)
    took = time.monotonic() - began
    until(lambda: not load.waiting(), LIMIT_S, f"{load.waiting()} requests do not end")
    now, after = replica.metrics(), calls(up.api.text("/metrics", timeout=LIMIT_S))
    changes = load.calls.total()
    theirs = {
        call: (number - asked.get(call, 0.0) - load.calls[call]) / changes
        for call, number in after.items()
    }
    reconcile = "kyb_controller_reconcile_seconds"
    metrics: Metrics = {
        "answer_p50_s": (percentile(load.answered, 50), "s"),
        "answer_p99_s": (percentile(load.answered, 99), "s"),
        "ended_p99_s": (percentile(load.ended, 99), "s"),
        "look_p99_s": (quantile(now, told, reconcile, 0.99), "s"),
        "rss_mib": (memory_mib(replica.pid, "VmHWM"), "MiB"),
        "cpu": ((cpu_seconds(replica.pid) - used) / took, "cores"),
        "calls_per_change": (sum(theirs.values()), "calls"),
        "changes": (float(changes), "changes"),
        "changes_per_s": (changes / took, "1/s"),
    }
    return metrics, {call: round(number, 3) for call, number in theirs.items() if number >= 0.001}


@click.command()
@click.option("--objects", default=2000, show_default=True, help="That lie there.")
@click.option("--nodes", default=500, show_default=True, help="GPUNodes.")
@click.option("--rate", default=50.0, show_default=True, help="Changes a second.")
@click.option("--seconds", default=600.0, show_default=True, help="For so long.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(objects: int, nodes: int, rate: float, seconds: float, as_json: bool) -> None:
    """Measure how soon the controller answers changes, and what it takes."""
    with plane() as up:
        load = Load(up, nodes)
        load.stand(objects)
        say(f"{objects} objects, {nodes} GPUNodes, {NAMESPACES * PODS} pods")
        replica = up.replica(api_timeout_s="4", agent_timeout_s="4", lease_s="15", sweep_s="60")
        replica.start(wait=False)
        until(replica.leads, LIMIT_S, "it does not lead")
        watch = Watcher(
            up.cluster.api("controller"),
            keys.CHECKPOINT_REQUESTS_PATH,
            {},
            load.on_event,
            "requests",
        )
        watch.start()
        until(replica.idle, LIMIT_S, "it does not come to rest")
        say("at rest")
        metrics, asked = measured(up, load, replica, rate, seconds)
        watch.stop()
    held = {"name": "what it is to reach", "p99_s": 1.0, "rss_mib": 300.0, "calls": asked}
    emit("operator.reconcile", metrics, held, as_json=as_json)


if __name__ == "__main__":
    main()
