"""Signed manifests of made-up artifacts, as nodes and an object store would hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson

from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.registry.wire import Spot
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import File, Manifest, facts_of
from kybernate.types import Tier

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACES = 20
PODS = 2000
NODES = 16
STORED_EVERY = 5
"""Every so many artifacts one is in the object store, too."""

STORE = "s3://kyb/states"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = artifactkeys.generated()
_FACTS = facts_of(
    {
        "namespace": "team",
        "pod": "model",
        "pod_uid": "uid",
        "container": "main",
        "image_digest": "sha256:" + "ab" * 32,
        "spec_hash": "cd" * 32,
        "kernel": "6.18.5",
        "criu": "4.2.1",
        "architecture": "x86_64",
        "highest_pid": 312,
        "privileges": {"uids": [0], "gids": [0]},
        "driver": "580.95.05",
        "cuda": "13.0",
        "gpu_product": "NVIDIA H100 80GB HBM3",
        "gpu_count": 1,
    }
)


@dataclass(frozen=True)
class Source:
    """A place and the folder that it is here."""

    spot: Spot
    folder: Path


def pod_of(number: int) -> tuple[str, str, str]:
    """Namespace, pod and model of the artifact."""
    pod = number % PODS
    return f"team-{pod % NAMESPACES:02}", f"model-{pod:04}-0", f"org/model-{pod % 100:03}"


def node_of(number: int) -> str:
    """Which node has it."""
    return f"gpu-{number * 7919 % NODES:02}"


def make(number: int) -> Manifest:
    """The artifact of this number, half a minute after the one before."""
    namespace, pod, model = pod_of(number)
    now = BEGAN + timedelta(seconds=30 * number)
    facts = replace(_FACTS, namespace=namespace, pod=pod, pod_uid=f"uid-{pod}", model=model)
    made = layout.make_id(namespace, pod, now, number)
    size = 10**9 + number
    file = File("pages-1.img", size, "ef" * 32)
    created = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Manifest(1, made, created, manifests.RAW, facts, (file,), size, size)


def write(folder: Path, count: int) -> list[Source]:
    """Write the manifests of so many artifacts, without syncing them."""
    stored = Source(Spot(place=Tier.OBJECT, store=STORE), folder / "store")
    sources = {
        f"gpu-{number:02}": Source(
            Spot(place=Tier.NVME, node=f"gpu-{number:02}"), folder / f"gpu-{number:02}"
        )
        for number in range(NODES)
    }
    for number in range(count):
        manifest = make(number)
        _put(sources[node_of(number)].folder, manifest)
        if number % STORED_EVERY == 0:
            _put(stored.folder, replace(manifest, stored=manifest.total // 3))
    return [*sources.values(), stored]


def copies(count: int) -> int:
    """How many manifests `write` writes."""
    return count + -(-count // STORED_EVERY)


def _put(folder: Path, manifest: Manifest) -> None:
    path = folder / layout.manifest_key(manifest.id)
    path.parent.mkdir(parents=True)
    # Reads as what manifests.encode gives, which copies everything first.
    path.write_bytes(KEYS.sign(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)))
