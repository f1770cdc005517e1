"""A node without a kubelet: it is Ready, and so are pods of a namespace; rollouts end."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kybernate.errors import ConflictError, KybernateError, NotFoundError

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

_ROUND_S = 0.2
_ENDING_S = 1.5
"""Processes take so long to end that who doesn't wait for that is noticed."""
_BEAT_S = 10.0
"""Kubernetes takes a node for lost that is silent for 50 s, and its pods for not ready then."""


class Rollouts:
    """What scheduler and kubelet would do with the namespace's pods, all on one node that exists,
    and the kubelet with the node, while in a `with`."""

    def __init__(self, api: Api, namespace: str, node: str) -> None:
        self._api, self._node = api, node
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._ending: dict[str, float] = {}
        self._beat_at = 0.0

    def __enter__(self) -> None:
        self._beat()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_ROUND_S):
            with contextlib.suppress(KybernateError):
                if time.monotonic() >= self._beat_at + _BEAT_S:
                    self._beat()
                for pod in self._api.get(self._path)["items"]:
                    with contextlib.suppress(ConflictError, NotFoundError):
                        self._take_on(pod)

    def _beat(self) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
        told = {"status": {"conditions": [{**ready, "reason": "KubeletReady"}]}}
        self._api.patch(f"/api/v1/nodes/{self._node}/status", told)
        self._beat_at = time.monotonic()

    def _take_on(self, pod: Json) -> None:
        path = f"{self._path}/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            asked = self._ending.setdefault(pod["metadata"]["uid"], time.monotonic())
            if time.monotonic() >= asked + _ENDING_S:
                self._api.delete(path, {"gracePeriodSeconds": 0})
        elif "nodeName" not in pod["spec"]:
            target = {"kind": "Node", "name": self._node}
            meta = {"name": pod["metadata"]["name"]}
            self._api.post(f"{path}/binding", {"metadata": meta, "target": target})
        elif pod["status"].get("phase") != "Running":
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
            status = {"phase": "Running", "startTime": now, "conditions": [ready]}
            self._api.patch(f"{path}/status", {"status": status})
