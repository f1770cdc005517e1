"""An upstream kube-scheduler as a process, on nodes that are only objects."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import yaml

from kybernate import keys
from kybernate.errors import RefusedError
from tests.cluster.fetched.binaries import ensure
from tests.cluster.layout import REPOSITORY
from tests.cluster.parts import pki
from tests.cluster.parts.accounts import token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.cluster.cluster import Cluster
    from tests.kit.servers.extenderserver import Extender, World

SHIPPED = REPOSITORY / "config" / "scheduler" / "kube-scheduler-config.yaml"


class Scheduler:
    """The kube-scheduler with the configuration of config/, fitted to one extender."""

    def __init__(self, cluster: Cluster, extender: Extender, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        config = yaml.safe_load(SHIPPED.read_text())
        kubeconfig = folder / "kubeconfig"
        access = pki.kubeconfig(
            cluster.server,
            cluster.layout.pki / "ca.crt",
            {"token": token(cluster.api(), "scheduler")},
        )
        kubeconfig.write_text(access)
        config["clientConnection"] = {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000}
        config["profiles"].append({"schedulerName": "default-scheduler"})
        (one,) = config["extenders"]
        one["urlPrefix"] = f"https://127.0.0.1:{extender.port}/v1"
        for name in ("ca", "cert", "key"):
            given = one["tlsConfig"][f"{name}File"]
            one["tlsConfig"][f"{name}File"] = str(extender.tls / given.rpartition("/")[2])
        self.config = config
        self._flags = [
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            f"--cert-dir={folder}",
        ]

    def alone(self, name: str) -> str:
        """It schedules only the pods that name it so, and nobody else's scheduler does."""
        self.config["profiles"] = [{**self.config["profiles"][0], "schedulerName": name}]
        return name

    def start(self) -> None:
        """Start it; with the shipped configuration it stands for its lease first."""
        binary = ensure(("kube-scheduler",), print).path("kube-scheduler")
        path = self._folder / "config.json"
        path.write_text(json.dumps(self.config))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(binary), f"--config={path}", "-v=3", *self._flags],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """All that it said."""
        return (self._folder / "log").read_text()

    def stop(self, *, kill: bool = False) -> None:
        """End it."""
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(20)
            self._process = None


def offer(
    world: World,
    node: str,
    *,
    cpu: str = "4",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    **seats: str,
) -> str:
    """A Node object for a GPUNode that was made: the kubelet's word on its capacity."""
    path, meta = "/api/v1/nodes", {"name": node, "labels": dict(labels or {})}
    world.make(path, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
    room = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    room |= {keys.seat_resource(int(size.removeprefix("x"))): n for size, n in seats.items()}
    status = {"capacity": room, "allocatable": room}
    world.api.patch(f"{path}/{node}/status", {"status": status})
    # The API server adds a taint that a controller takes away once a kubelet reports.
    world.api.patch(f"{path}/{node}", {"spec": {"taints": list(taints) or None}})
    return node


def condition(world: World, pod: dict[str, Any]) -> str:
    """What the scheduler says of the pod."""
    found = world.read(pod).get("status", {}).get("conditions", ())
    return next((one.get("message", "") for one in found if one["type"] == "PodScheduled"), "")


def node_of(world: World, pod: dict[str, Any]) -> str | None:
    """Where the pod is bound."""
    found: str | None = world.read(pod)["spec"].get("nodeName")
    return found


def priority_class(world: World, value: int) -> str:
    """A PriorityClass of this value."""
    name = f"p{value}-{uuid.uuid4().hex[:6]}"
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    world.make(path, {"metadata": {"name": name}, "value": value})
    deadline = time.monotonic() + 20
    while not _admits(world, name):
        assert time.monotonic() < deadline, f"the API server does not get to know {name}"
        time.sleep(0.05)
    return name


def _admits(world: World, name: str) -> bool:
    """Whether pods of the class are let in: admission hears of it a little later."""
    container = {"name": "c", "image": "none"}
    spec = {"priorityClassName": name, "containers": [container]}
    body = {"metadata": {"generateName": "try-"}, "spec": spec}
    try:
        world.api.post("/api/v1/namespaces/kube-system/pods", body, {"dryRun": "All"})
    except RefusedError as error:
        return "PriorityClass" not in str(error)
    return True


def stays(condition: Any, seconds: float) -> None:
    """The condition holds for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition()
        with suppress(InterruptedError):
            time.sleep(0.05)
