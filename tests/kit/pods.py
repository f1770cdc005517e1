"""Pods that hold a seat, and what the API server says of them."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.errors import DeadlineError, KybernateError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
IMAGE = "localhost/toy:1"
PORT = 8000


def take_away(api: Api, path: str, but: str = "") -> None:
    """Delete, at once, all objects of a kind that others left on this API server, in all
    namespaces, or in all but one. `path` is that of the kind, as /api/v1/pods."""
    head, plural = path.rsplit("/", 1)
    for one in api.get(path)["items"]:
        name, namespace = one["metadata"]["name"], one["metadata"].get("namespace")
        if namespace != but:
            within = f"/namespaces/{namespace}" if namespace else ""
            with contextlib.suppress(NotFoundError):
                api.delete(f"{head}{within}/{plural}/{name}", {"gracePeriodSeconds": 0})


@dataclass(frozen=True, slots=True)
class SeatPod:
    """A toy model on a seat. `vram` is what it declares per GPU, `bytes_` what it allocates.

    `fill` is how much of it is filled and checked with every answer: at most what really stands
    behind the simulated driver's paper size. `more` are further fields of its container.
    """

    name: str
    gpus: int = 1
    vram: str = "72Gi"
    bytes_: str = "8GiB"
    fill: str = "1MiB"
    node: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)

    def manifest(self) -> Json:
        """The pod as a user would write it."""
        container = {
            "name": "server",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "args": [
                "-m",
                "tests.workloads.toy_server",
                f"--model={self.name}",
                f"--port={PORT}",
                f"--bytes={self.bytes_}",
                f"--fill={self.fill}",
                *self.arguments,
            ],
            "env": [{"name": name, "value": value} for name, value in self.env.items()],
            "ports": [{"containerPort": PORT}],
            "resources": {
                "requests": {"cpu": "10m", "memory": "256Mi"},
                "limits": {"memory": "256Mi", keys.seat_resource(self.gpus): "1"},
            },
            **self.more,
        }
        spec: Json = {
            "containers": [container],
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False,
        }
        if self.node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": self.node}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "labels": {keys.MANAGED_LABEL: "true"},
                "annotations": {
                    keys.MODEL: self.name,
                    keys.VRAM: self.vram,
                    **self.annotations,
                },
            },
            "spec": spec,
        }


class Pods:
    """The pods of the default namespace of one cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(self, pod: SeatPod) -> Json:
        """Create it. Raises RefusedError with the webhook's sentence."""
        return self._api.post(PODS, pod.manifest())

    def get(self, name: str) -> Json:
        """Read one. Raises NotFoundError."""
        return self._api.get(f"{PODS}/{name}")

    def all(self) -> dict[str, Json]:
        """Every pod by name."""
        return {p["metadata"]["name"]: p for p in self._api.get(PODS)["items"]}

    def log(self, name: str, *, timestamps: bool = False) -> str:
        """What the container has printed; with `timestamps` each line begins with its time."""
        return self._api.text(f"{PODS}/{name}/log", {"timestamps": timestamps})

    def delete(self, names: Iterable[str], grace: int | None = None) -> None:
        """Ask for their deletion; one that is gone is fine."""
        for name in names:
            body = {} if grace is None else {"gracePeriodSeconds": grace}
            try:
                self._api.delete(f"{PODS}/{name}", body)
            except NotFoundError:
                continue

    def wait(
        self, names: Iterable[str], test: Callable[[Json], bool], limit: float, what: str
    ) -> dict[str, Json]:
        """The pods once each passes the test. Raises DeadlineError with the story of one late."""
        wanted = set(names)
        done: dict[str, Json] = {}
        deadline = time.monotonic() + limit
        while True:
            found = self.all()
            for name in wanted - set(done):
                if name in found and test(found[name]):
                    done[name] = found[name]
            if wanted <= set(done):
                return done
            if time.monotonic() > deadline:
                late = sorted(wanted - set(done))
                raise DeadlineError(
                    f"after {limit:g} s not {what}: {', '.join(late)}\n{self.story(late[0])}"
                )
            time.sleep(0.1)

    def gone(self, names: Iterable[str], limit: float) -> float:
        """Wait till none of them exists; seconds that it took."""
        wanted, started = set(names), time.monotonic()
        while left := wanted & set(self.all()):
            if time.monotonic() - started > limit:
                raise DeadlineError(f"after {limit:g} s still there: {', '.join(sorted(left))}")
            time.sleep(0.05)
        return time.monotonic() - started

    def story(self, name: str) -> str:
        """Status and events of a pod, for a failure's message."""
        try:
            pod = self.get(name)
            events = self._api.get(
                "/api/v1/namespaces/default/events",
                {"fieldSelector": f"involvedObject.name={name}"},
            )["items"]
        except KybernateError as error:
            return str(error)
        lines = [f"{name}: {pod['status']}", f"annotations: {pod['metadata'].get('annotations')}"]
        lines += [f"  {event['reason']}: {event['message']}" for event in events]
        return "\n".join(lines)


def condition(pod: Json, kind: str) -> bool:
    """Whether a condition of the pod is True."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def ready(pod: Json) -> bool:
    """Whether it is Ready: it has started once, and can answer."""
    return condition(pod, "Ready")


def admitted(pod: Json) -> bool:
    """Whether its kubelet has taken it: its seat is allocated, and its status names its start."""
    return "startTime" in pod.get("status", {})


def opened(log: str) -> set[str]:
    """The GPUs that the driver lets a container open, as the model printed at its last start."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return set(lines[-1]["given"]) if lines else set()


def group_of(pod: Json) -> str | None:
    """The group that the extender wrote at bind."""
    annotations = pod["metadata"].get("annotations") or {}
    group = annotations.get(keys.ASSIGNED_GROUP)
    return None if group is None else str(group)
