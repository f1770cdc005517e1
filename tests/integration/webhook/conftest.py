"""The webhook as a process beside a real API server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

NAMESPACE = "admission"


@pytest.fixture(scope="session")
def namespace(control_plane: Cluster) -> str:
    """A namespace with the account that pods get; no controller is there to make it."""
    api = control_plane.api()
    for path, name in (("", NAMESPACE), (f"/{NAMESPACE}/serviceaccounts", "default")):
        with contextlib.suppress(ConflictError):
            api.post(f"/api/v1/namespaces{path}", {"metadata": {"name": name}})
    return NAMESPACE


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
