"""What the extender does to the cluster: read a pod, and bind one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kybernate.api import pods

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.adapters.k8s import Api
    from kybernate.types import NodeName, PodRef


class Cluster(Protocol):
    """The calls that binding takes. Errors are those of `kybernate.adapters.k8s.Api`."""

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod."""
        ...

    def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Assign the pod to the node and give it the annotations, all or nothing.

        Raises ConflictError if it is assigned already or another pod has its name now.
        """
        ...


class ApiCluster:
    """The cluster behind an API server."""

    def __init__(self, api: Api, timeout: float) -> None:
        """Each call takes at most `timeout` seconds."""
        self._api = api
        self._timeout = timeout

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod."""
        return self._api.get(pods.path(namespace, name), timeout=self._timeout)

    def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """POST a Binding. The API server merges its annotations into the pod in the same update."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = pods.path(pod.namespace, pod.name)
        self._api.post(f"{path}/binding", body, timeout=self._timeout)
