"""What a Pod Security level admits before mutation it admits after it, and nothing else.

Without what no level makes right beside a seat: host namespaces and rights over the node.
"""

from __future__ import annotations

import contextlib
import copy
import random
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, RefusedError
from tests.integration.webhook.conftest import create

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("webhook")]

LEVELS = ("privileged", "baseline", "restricted")
COUNT = 60

POD_CONTEXTS: list[dict[str, Any]] = [
    *({}, {"runAsNonRoot": True}, {"runAsUser": 0}, {"runAsUser": 1000, "fsGroup": 1000}),
    *({"seccompProfile": {"type": "RuntimeDefault"}}, {"seccompProfile": {"type": "Unconfined"}}),
    {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    *({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, {"supplementalGroups": [1]}),
    *({"seLinuxOptions": {"type": "spc_t"}}, {"appArmorProfile": {"type": "Unconfined"}}),
]
STRICT = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTEXTS: list[dict[str, Any]] = [
    *({}, STRICT, {**STRICT, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
    *({**STRICT, "runAsUser": 0}, {**STRICT, "runAsNonRoot": False}),
    *({"capabilities": {"add": ["NET_ADMIN"]}}, {"runAsUser": 1}),
    {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
]
SPECS: list[dict[str, Any]] = [
    {},
    {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
    {"volumes": [{"name": "mine", "emptyDir": {}}]},
    {"volumes": [{"name": "nfs", "nfs": {"server": "s", "path": "/"}}]},
]
PORTS: list[dict[str, Any]] = [{"containerPort": 8000}, {"containerPort": 8000, "hostPort": 8000}]
PROBES: list[dict[str, Any]] = [
    *({}, {"livenessProbe": {"exec": {"command": ["true"]}}}),
    {"readinessProbe": {"httpGet": {"path": "/", "port": 8000}}},
    {"startupProbe": {"grpc": {"port": 8000}}, "livenessProbe": {"tcpSocket": {"port": 8000}}},
]


def draw(source: random.Random) -> dict[str, Any]:
    """A pod that asks for a GPU, with one thing or several that the levels look at."""

    def container(name: str) -> dict[str, Any]:
        # Most are strict, or hardly any pod would pass the strictest level.
        context = STRICT if source.random() < 0.7 else source.choice(CONTEXTS)
        return {"name": name, "image": "localhost/x", "securityContext": context}

    seat = {**container("c"), "ports": [source.choice(PORTS[:1] * 4 + PORTS)]}
    seat["resources"] = {"limits": {keys.VENDOR_RESOURCE: "1", "memory": "1Gi"}}
    spec = copy.deepcopy({} if source.random() < 0.7 else source.choice(SPECS))
    seat |= source.choice(PROBES)
    spec["containers"] = [container("first"), seat] if source.random() < 0.5 else [seat]
    spec["initContainers"] = [container("init")] if source.random() < 0.3 else []
    if source.random() < 0.5:
        spec["securityContext"] = source.choice(POD_CONTEXTS)
    return {"metadata": {"name": "p"}, "spec": copy.deepcopy(spec)}


@pytest.fixture(scope="module")
def namespaces(control_plane: Cluster) -> dict[str, str]:
    """A namespace for each level, with the account that pods get."""
    api, names = control_plane.api(), {level: f"level-{level}" for level in LEVELS}
    for level, name in names.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        for path, made in (
            ("", {"metadata": {"name": name, "labels": labels}}),
            (f"/{name}/serviceaccounts", {"metadata": {"name": "default"}}),
        ):
            with contextlib.suppress(ConflictError):
                api.post(f"/api/v1/namespaces{path}", made)
    return names


def admitted(api: Api, namespace: str, pod: dict[str, Any]) -> bool:
    """Whether Pod Security lets the pod in; any other refusal is an error of the test."""
    try:
        create(api, namespace, pod, dryRun="All")
    except RefusedError as error:
        if "PodSecurity" not in str(error):
            raise
        return False
    return True


def test_mutation_changes_no_verdict(control_plane: Cluster, namespaces: dict[str, str]) -> None:
    api, found = control_plane.api(), dict.fromkeys(LEVELS, 0)
    for seed in range(COUNT):
        plain = draw(random.Random(seed))
        managed = copy.deepcopy(plain)
        managed["metadata"] |= {
            "labels": {keys.MANAGED_LABEL: "true"},
            "annotations": {keys.VRAM: "24Gi", keys.COOPERATE: "vllm"},
        }
        for level, namespace in namespaces.items():
            before = admitted(api, namespace, plain)
            assert admitted(api, namespace, managed) == before, (seed, level, plain)
            found[level] += before
    assert found["privileged"] == COUNT
    # The pods are no good if a level admits all or none of them.
    assert COUNT / 10 < found["restricted"] < found["baseline"] < COUNT
