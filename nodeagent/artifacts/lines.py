"""Who continues with whose state where there is no registry: as far as this node's journal tells.

So only pods that ran on this node, since it booted, can be succeeded.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kybernate.core.artifacts import succession
from kybernate.core.artifacts.succession import Asked, PodRecord
from kybernate.errors import NotFoundError
from kybernate.ports import Line
from kybernate.types import of_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import ArtifactId, PodUid, Tier
    from nodeagent.seat.node import World

LINE = "line/"
"""Journal keys of pods of this node that have stopped, and of their successors."""


class OwnSuccession:
    """Implements `ports.Registry` by the journal of the agent of `node`."""

    def __init__(self, world: World, node: str) -> None:
        self._journal = world.journal
        self._wall = world.wall
        self._node = node
        self._pods: dict[tuple[str, str], PodRecord] = {}

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """After a restart, before anybody asks."""
        found = (
            of_record(PodRecord, record) for key, record in records.items() if key.startswith(LINE)
        )
        self._pods = {(one.namespace, one.uid): one for one in found}

    async def lease(self, namespace: str, uid: PodUid, seconds: float, deadline: float) -> int:
        """Nobody else writes here."""
        return 0

    async def record(
        self,
        manifest: Manifest,
        tier: Tier,
        token: int,
        deadline: float,
        *,
        person_hold: bool = False,
    ) -> None:
        """The places say it."""

    async def report(
        self, manifest: Manifest, tier: Tier, deadline: float, *, verified: bool = True
    ) -> None:
        """The places say it."""

    async def drop(
        self, artifact: ArtifactId, tier: Tier, deadline: float, *, forget: str = ""
    ) -> None:
        """The vault sees to it."""

    async def stop(self, namespace: str, uid: PodUid, why: str, deadline: float) -> None:
        """See `ports.Registry.stop`. Raises OSError if the disk refuses."""
        known = self._get(namespace, uid)
        here = known if known.node else PodRecord(namespace, uid, node=self._node)
        await self._put(succession.stop(here, succession.BY_AGENT, self._node, why))

    async def claim(
        self,
        namespace: str,
        uid: PodUid,
        artifact: ArtifactId,
        successor: PodUid,
        deadline: float,
        *,
        again: bool = False,
    ) -> None:
        """See `ports.Registry.claim`. Raises OSError if the disk refuses."""
        pod, after = self._get(namespace, uid), self._get(namespace, successor)
        asked = Asked(artifact, successor, self._node, again=again)
        taken, there = succession.claim(pod, after, asked, int(self._wall() * 1000))
        if there is not after:
            await self._put(there)
        if taken is not pod:
            await self._put(taken)

    async def hand_back(
        self, namespace: str, uid: PodUid, successor: PodUid, deadline: float
    ) -> None:
        """See `ports.Registry.hand_back`. Raises OSError if the disk refuses."""
        pod, after = self._get(namespace, uid), self._get(namespace, successor)
        free, ended = succession.release(pod, after, self._node)
        if ended is not after:
            await self._put(ended)
        if free is not pod:
            await self._put(free)

    async def line(self, namespace: str, uid: PodUid, deadline: float) -> Line:
        """See `ports.Registry.line`."""
        one = self._get(namespace, uid)
        return Line(one.node, one.stopped, one.successor, one.artifact, one.ended, one.settled)

    async def newest(self, namespace: str, uid: PodUid, deadline: float) -> ArtifactId:
        """The places must be asked. Raises NotFoundError always."""
        raise NotFoundError("this node has no registry to ask for the newest state of a pod")

    def forget(self, namespace: str, uid: PodUid) -> None:
        """Nothing that the pod saved is left: nobody can continue from it."""
        if self._pods.pop((namespace, uid), None) is not None:
            self._journal.delete(f"{LINE}{namespace}/{uid}")

    def _get(self, namespace: str, uid: str) -> PodRecord:
        return self._pods.get((namespace, uid)) or PodRecord(namespace, uid)

    async def _put(self, pod: PodRecord) -> None:
        await self._journal.put(f"{LINE}{pod.namespace}/{pod.uid}", asdict(pod), synced=True)
        self._pods[pod.namespace, pod.uid] = pod
