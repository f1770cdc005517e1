"""Real saved states in real places, told to a registry as agents do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.registry.describe import describe
from kybernate.adapters.registry.wire import Spot, as_json
from kybernate.checkpoint.catalogue import manifests
from kybernate.checkpoint.packs import pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.raw import seal
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.manifest import facts_of
from kybernate.lib.deadline import Deadline
from kybernate.types import Tier
from tests.unit.registry.replica import STORE

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest
    from tests.unit.registry.replica import Replica

KEYS = artifactkeys.generated()
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NODES = ("n1", "n2")
FACTS: dict[str, Any] = {
    "container": "main",
    "image_digest": "sha256:abc",
    "spec_hash": "9f2c",
    "kernel": "6.18.5",
    "criu": "4.2.1",
    "architecture": "x86_64",
    "highest_pid": 312,
    "privileges": {"uids": [0], "gids": [0]},
    "driver": "580.95",
    "gpu_product": "NVIDIA H100 80GB HBM3",
    "gpu_count": 1,
}


class World:
    """Two nodes with an NVMe place each, and an object store, all of them folders here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places = {self.spot(node): open_place(str(folder / node)) for node in (*NODES, "")}

    @staticmethod
    def spot(node: str) -> Spot:
        """A node's place, or the object store."""
        if node:
            return Spot(place=Tier.NVME, node=node)
        return Spot(place=Tier.OBJECT, store=STORE)

    def catalogue(self, spot: Spot) -> Any:
        return partial(manifests, self.places[spot], KEYS, "")

    def save(self, node: str, number: int, pod: str = "llama-0") -> Manifest:
        """Seal a dump on the node; one second apart each."""
        place, now = self.places[self.spot(node)], NOW + timedelta(seconds=number)
        facts = facts_of(
            {**FACTS, "namespace": "ns", "pod": pod, "pod_uid": f"uid-{pod}", "model": f"m-{pod}"}
        )
        images = self.folder / f"dump-{number}"
        images.mkdir(mode=0o700, parents=True)
        (images / "core-1.img").write_bytes(bytes([number]) * 5000)
        made = layout.make_id("ns", pod, now, number)
        return seal.seal(place, images, seal.draft(made, facts, now), KEYS, Deadline(60))

    def copy(self, manifest: Manifest, node: str, to: str) -> Manifest:
        """Pack what the node has into another place."""
        source: Place = self.places[self.spot(node)]
        sources = raw_sources(seal.images_of(source, manifest), seal.pieces_of(source, manifest))
        return pack.pack(sources, manifest, self.places[self.spot(to)], KEYS, Deadline(60))

    def tell(self, replica: Replica, node: str, manifest: Manifest, token: int) -> None:
        """Record it, as the node's agent."""
        held = {**as_json(self.spot(node)), "state": "verified", "size": manifest.stored}
        body = {"artifact": as_json(describe(manifest)), "held": held, "token": token}
        assert replica.agent(node, "PUT", f"/v1/artifacts/{manifest.id}", body).status == 201

    def tell_copy(self, replica: Replica, by: str, manifest: Manifest, node: str) -> None:
        """Report a verified copy."""
        held = {**as_json(self.spot(node)), "state": "verified", "size": manifest.stored}
        body = {"digest": describe(manifest).digest, "held": held}
        path = f"/v1/artifacts/{manifest.id}/copies"
        assert replica.agent(by, "PUT", path, body).status == 200
