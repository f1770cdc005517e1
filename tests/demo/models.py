"""The six models, and the Deployments that serve them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kybernate import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

PART_OF = "kyb-demo"
IMAGE = "localhost/toy:1"
PORT = 8000
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Model:
    """A model on `gpus` GPUs, `vram` bytes on each."""

    name: str
    gpus: int
    vram: int


MODELS = (
    Model("birch-8b", 1, 48 * GIB),
    Model("ember-70b", 2, 72 * GIB),
    Model("cedar-14b", 1, 56 * GIB),
    Model("aspen-3b", 1, 44 * GIB),
    Model("fjord-90b", 2, 76 * GIB),
    Model("delta-32b", 1, 64 * GIB),
)
"""In order of popularity. No two fit on one GPU together."""


def deployment(model: Model) -> dict[str, Any]:
    """A Deployment of one replica. Its annotations are all that Kybernate needs to know."""
    labels = {"app": model.name, "app.kubernetes.io/part-of": PART_OF}
    seat = keys.seat_resource(model.gpus)
    container = {
        "name": "server",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": arguments(model),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {
            "requests": {"cpu": "50m", "memory": "256Mi"},
            "limits": {"memory": "256Mi", seat: 1},
        },
    }
    template = {
        "metadata": {
            "labels": {**labels, keys.MANAGED_LABEL: "true"},
            "annotations": {keys.MODEL: model.name, keys.VRAM: f"{model.vram // GIB}Gi"},
        },
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 5},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": model.name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": model.name}},
            "template": template,
        },
    }


def arguments(model: Model) -> list[str]:
    """The command line of the toy model server, after the image's entrypoint.

    All its memory is parked and woken, but only a part is filled and checked with every answer.
    """
    return [
        "-m",
        "tests.workloads.toy_server",
        f"--model={model.name}",
        f"--port={PORT}",
        f"--bytes={model.vram - GIB}",
        "--fill=4MiB",
        f"--seed={zlib.crc32(model.name.encode())}",
        "--token-delay=0.002",
    ]


def manifests(models: Sequence[Model] = MODELS) -> dict[str, Any]:
    """All Deployments as one list, as kubectl takes it."""
    return {"apiVersion": "v1", "kind": "List", "items": [deployment(model) for model in models]}
