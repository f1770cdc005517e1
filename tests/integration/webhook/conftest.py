"""The webhook as a process beside a real API server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from kybernate import keys
from kybernate.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

NAMESPACE = "admission"
START_LIMIT = 20.0


class Webhook:
    """One webhook process; with `cert_dir` it keeps its certificates there, else in the Secret."""

    def __init__(self, cluster: Cluster, folder: Path, cert_dir: Path | None = None) -> None:
        self._cluster = cluster
        self._log = folder / "webhook.log"
        self._cert_dir = cert_dir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ports = self._cluster.ports
        environment = {
            **os.environ,
            "KYB_WEBHOOK_LISTEN": f"127.0.0.1:{ports.webhook}",
            "KYB_WEBHOOK_PROBE_LISTEN": f"127.0.0.1:{ports.webhook_probe}",
            "KYB_WEBHOOK_KUBECONFIG": str(self._cluster.layout.kubeconfig("webhook")),
            "KYB_WEBHOOK_CHECK_S": "0.2",
            "KYB_WEBHOOK_SETTLE_S": "0.5",
            "KYB_WEBHOOK_REQUEST_S": "3",
        }
        if self._cert_dir:
            environment["KYB_WEBHOOK_CERT_DIR"] = str(self._cert_dir)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "webhook"], env=environment, stderr=log
            )
        until(self._ready, f"the webhook is not ready; see {self._log}")

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def kill_worker(self) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        (worker,) = children.read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        until(lambda: worker not in children.read_text().split(), "the worker is not reaped")
        until(self._ready, f"no new worker got ready; see {self._log}")

    def log(self) -> str:
        """All that it has logged."""
        return self._log.read_text()

    def metrics(self) -> str:
        return requests.get(self._url("/metrics"), timeout=5).text

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self._url("/readyz"), timeout=5).status_code == 200
        return False

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._cluster.ports.webhook_probe}{path}"


def until(true: Any, otherwise: str, limit: float = START_LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


@pytest.fixture(scope="session")
def namespace(control_plane: Cluster) -> str:
    """A namespace with the account that pods get; no controller is there to make it."""
    api = control_plane.api()
    for path, name in (("", NAMESPACE), (f"/{NAMESPACE}/serviceaccounts", "default")):
        with contextlib.suppress(ConflictError):
            api.post(f"/api/v1/namespaces{path}", {"metadata": {"name": name}})
    return NAMESPACE


@pytest.fixture(scope="session")
def webhook(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """A webhook that keeps its certificates in the Secret."""
    found = Webhook(control_plane, tmp_path_factory.mktemp("webhook"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def gpu_node(control_plane: Cluster) -> Iterator[str]:
    """A GPUNode with one group of each size on two 80 GiB GPUs."""
    api = control_plane.api("agent")
    name = "hooknode"
    api.post(keys.GPU_NODES_PATH, {**GPU_NODE, "metadata": {"name": name}})
    api.patch(f"{keys.GPU_NODES_PATH}/{name}/status", {"status": STATUS})
    yield name
    control_plane.api().delete(f"{keys.GPU_NODES_PATH}/{name}")


GPU_NODE = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "agent": {"address": "10.88.1.1:9443", "version": "0.1.0"},
    "driver": {"version": "580.1", "cuda": "13.0"},
    "gpus": [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "product": "NVIDIA H100 80GB HBM3",
            "memoryBytes": 80 * 2**30,
            "numa": 0,
            "healthy": True,
        }
        for index in range(2)
    ],
    "links": [{"a": "GPU-0", "b": "GPU-1", "kind": "nvlink"}],
    "groups": [
        {
            "name": name,
            "resource": f"kyb.ai/gpu-{len(gpus)}x-seat",
            "gpus": gpus,
            "seats": 3,
            "activeSlots": 1,
        }
        for name, gpus in (("G0", ["GPU-0"]), ("G1", ["GPU-1"]), ("G01", ["GPU-0", "GPU-1"]))
    ],
}


def pods_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


def seat_pod(name: str, **more: Any) -> dict[str, Any]:
    """A labelled pod that asks for two of the vendor's GPUs; `more` goes into its metadata."""
    container = {
        "name": "c",
        "image": "localhost/x",
        "args": ["serve"],
        "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}},
    }
    metadata = {"name": name, "labels": {keys.MANAGED_LABEL: "true"}, **more}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def create(api: Api, namespace: str, pod: dict[str, Any], **params: Any) -> dict[str, Any]:
    return api.post(pods_path(namespace), pod, params)
