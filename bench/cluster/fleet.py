"""A made-up fleet of GPU nodes and pods, as the API server would send them.

Each node has eight GPUs in groups of one, two and four. Objects are as large as real ones: pods as
the webhook leaves them, with their status and managed fields; the same numbers give the same fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.core.ledger.ledger import NodeSeats
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    Json = dict[str, Any]

GIB = 1 << 30
GPUS = 8
SEATS = {1: 4, 2: 3, 4: 2}
"""Seats per group, by the group's size."""

SIZES = (1, 1, 2, 1, 4, 1, 2, 1, 2, 1)
"""How many GPUs the pods of a node ask for, one after the other."""

VRAM = {1: ("16Gi", "24Gi", "40Gi", None), 2: ("40Gi", "60Gi"), 4: ("70Gi", "72Gi")}
"""What pods of a size declare per GPU, in turn."""

PRODUCTS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
_STAMP = "2026-01-02T03:04:05Z"


def node_name(number: int) -> str:
    """A name as a cloud would give it."""
    return f"gpu-pool-{number // 100:03}-node-{number:05}"


def groups(
    sizes: Collection[int] = SEATS.keys(), gpus: int = GPUS
) -> Iterator[tuple[str, int, range]]:
    """Name, size and indices of a node's groups of these sizes."""
    for size in sizes:
        for first in range(0, gpus, size):
            members = range(first, first + size)
            yield "G" + "".join(map(str, members)), size, members


def node_seats(
    name: str,
    seats: int,
    product: str = PRODUCTS[0],
    sizes: Collection[int] = (1,),
    gpus: int = GPUS,
) -> NodeSeats:
    """A node as the ledger has it: `seats` in each of its groups, and room to park 1,500 GiB."""
    mine = tuple(Gpu(GpuUuid(f"{name}-{at}"), at, product, 80 * GIB) for at in range(gpus))
    found = tuple(
        Group(
            GroupName(group),
            keys.seat_resource(size),
            tuple(mine[at].uuid for at in members),
            seats,
        )
        for group, size, members in groups(sizes, gpus)
    )
    return NodeSeats(NodeName(name), mine, {}, found, park_budget=1500 * GIB)


def gpu_node(number: int) -> Json:
    """The GPUNode of a node."""
    name = node_name(number)
    uuids = [f"GPU-{number:08x}-5a3c-4f1e-9d2b-{index:012x}" for index in range(GPUS)]
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.GPU_NODE_KIND,
        "metadata": {
            "name": name,
            "uid": f"{number:08x}-0000-4000-8000-00000000000a",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": _STAMP,
            "managedFields": [_managed("kyb-agent", "status")],
        },
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Ready",
                    "message": "takes seats",
                    "lastTransitionTime": _STAMP,
                }
            ],
            "agent": {"address": "10.0.0.1:9443", "version": "0.1.0"},
            "driver": {"version": "580.65.06", "cuda": "13.0"},
            "deviceStrategy": "cdi",
            "gpus": [
                {
                    "index": index,
                    "uuid": uuid,
                    "product": PRODUCTS[number % 4 == 3],
                    "memoryBytes": 80 * GIB,
                    "numa": index // 4,
                    "healthy": True,
                }
                for index, uuid in enumerate(uuids)
            ],
            "links": [
                {"a": uuids[a], "b": uuids[b], "kind": "nvlink" if a // 4 == b // 4 else "system"}
                for a in range(GPUS)
                for b in range(a + 1, GPUS)
            ],
            "groups": [
                {
                    "name": name,
                    "resource": keys.seat_resource(size),
                    "gpus": [uuids[at] for at in members],
                    "seats": SEATS[size],
                    "activeSlots": 1,
                }
                for name, size, members in groups()
            ],
            "budget": {"parkBytes": 2048 * GIB, "parkedBytes": 0, "availableBytes": 1900 * GIB},
            "seats": [],
        },
    }


def pod(number: int, *, node: int | None = None) -> Json:
    """A pod: bound to a seat of the node, as the `number`-th one there, or pending without one."""
    place = number % len(SIZES)
    size = SIZES[place]
    vram = VRAM[size][number // len(SIZES) % len(VRAM[size])]
    notes = {keys.MODEL: f"model-{number % 97}", **({keys.VRAM: vram} if vram else {})}
    name = f"model-{number % 97}-{number:07}"
    if node is not None:
        names = [name for name, group_size, _ in groups() if group_size == size]
        turn = SIZES[:place].count(size)
        group = names[turn % len(names)]
        notes |= {
            keys.ASSIGNED_GROUP: group,
            keys.ASSIGNED_AT: _STAMP,
            keys.SEAT: f"{group}-seat-1",
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": f"model-{number % 97}-",
            "namespace": f"team-{number % 20}",
            "uid": f"{number:08x}-1111-4000-8000-00000000000b",
            "resourceVersion": str(100_000 + number),
            "creationTimestamp": _STAMP,
            "labels": {"app": f"model-{number % 97}", keys.MANAGED_LABEL: "true"},
            "annotations": notes,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"model-{number % 97}",
                    "uid": f"{number % 97:08x}-2222-4000-8000-00000000000c",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                _managed("kube-controller-manager", ""),
                _managed("kubelet", "status"),
            ],
        },
        "spec": _spec(size, None if node is None else node_name(node)),
        "status": _status(bound=node is not None),
    }


def pods(nodes: int, count: int) -> Iterator[Json]:
    """`count` bound pods, evenly over the nodes."""
    for number in range(count):
        yield pod(number, node=number // len(SIZES) % nodes)


def _spec(size: int, node: str | None) -> Json:
    limits = {"cpu": "8", "memory": "200Gi", keys.seat_resource(size): "1"}
    mounts = [
        {"name": "kyb", "mountPath": "/kyb/shared"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {
            "name": "token",
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        },
    ]
    probe = {
        "httpGet": {"path": "/healthz", "port": 15000, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    return {
        "volumes": [
            {"name": "kyb", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        "initContainers": [
            {
                "name": "kyb-sidecar",
                "image": "registry.example/kybernate/sidecar:0.1.0",
                "restartPolicy": "Always",
                "resources": {"limits": {"memory": "32Mi"}},
                "startupProbe": probe,
                "volumeMounts": mounts,
            }
        ],
        "containers": [
            {
                "name": "server",
                "image": "registry.example/models/server:2026.01",
                "command": ["/kyb/kyb-init", "run", "--"],
                "args": ["serve", "--port=8000", "--max-model-len=32768"],
                "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                "env": [
                    {"name": f"SETTING_{at}", "value": "a value of some length"} for at in range(12)
                ],
                "resources": {"limits": limits, "requests": limits},
                "volumeMounts": mounts,
                "livenessProbe": probe,
                "readinessProbe": probe,
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 120,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "schedulerName": keys.SCHEDULER_NAME,
        "tolerations": [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute"}
            for what in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        **({"nodeName": node} if node else {}),
    }


def _status(*, bound: bool) -> Json:
    if not bound:
        return {"phase": "Pending", "qosClass": "Guaranteed"}
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _STAMP}
            for kind in (
                "PodScheduled",
                "Initialized",
                "ContainersReady",
                "Ready",
                "kyb.ai/wakeable",
            )
        ],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": _STAMP,
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": _STAMP}},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example/models/server:2026.01",
                "imageID": "sha256:" + "0" * 64,
                "containerID": "containerd://" + "0" * 64,
                "started": True,
            }
            for name in ("server", "kyb-sidecar")
        ],
        "qosClass": "Guaranteed",
    }


def _managed(manager: str, subresource: str) -> Json:
    fields: Json = {f"f:field-{at}": {".": {}, "f:value": {}, "f:name": {}} for at in range(20)}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _STAMP,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": fields},
        **({"subresource": subresource} if subresource else {}),
    }
