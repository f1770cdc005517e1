"""A node's agent as the registry knows it: it records artifacts, and drops them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.adapters.registry import wire
from kybernate.types import Tier

if TYPE_CHECKING:
    from tests.kit.servers.registryserver import Server

STORE = "s3://states"


class Recorder:
    """That of n1; what it records is of pods of `namespace` unless another one is named."""

    def __init__(self, server: Server, namespace: str = "requests") -> None:
        self.registry = server.client("agent-n1")
        self._namespace = namespace

    def record(
        self, number: int, pod: str = "a", namespace: str = "", uid: str = "", node: str = ""
    ) -> str:
        """Give the ID of an artifact that is now in the object store or, if a node is named, on
        its NVMe. `uid`: of the pod."""
        namespace = namespace or self._namespace
        artifact, uid = f"{namespace}/{pod}@20260131T120000Z-{number:08x}", uid or f"u-{pod}"
        lease = self.registry.lease((namespace, uid), wire.LeaseWish(seconds=60))
        said = wire.Described(
            digest=f"{number:064x}",
            pod=pod,
            pod_uid=uid,
            size=7,
            created_ms=1_769_860_800_000 + number,
        )
        held = wire.Copy(
            size=7,
            place=Tier.NVME if node else Tier.OBJECT,
            node=node,
            store="" if node else STORE,
            state=wire.CopyState.VERIFIED,
        )
        self.registry.record(artifact, wire.Recording(artifact=said, held=held, token=lease.token))
        return artifact

    def drop(self, artifact: str) -> None:
        spot = wire.Spot(place=Tier.OBJECT, store=STORE)
        self.registry.drop(artifact, spot, forget="a test has no more need of it")

    def stopped(self, uid: str) -> None:
        told = wire.Stop(proof=wire.Proof.AGENT, why="its pod was deleted")
        self.registry.stopped(self._namespace, uid, told)
