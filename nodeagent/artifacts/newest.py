"""Which artifact of a pod is its newest, wherever that is: nobody continues from an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import NotFoundError, RetryableError
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, Tier

if TYPE_CHECKING:
    from kybernate.ports import Registry
    from kybernate.types import PodUid
    from nodeagent.artifacts.holds import Custody
    from nodeagent.seat.node import Node
    from nodeagent.seat.offloading import Offloading


class Newest:
    """Of any pod, as the registry knows it, or, where there is none, the places of this node."""

    def __init__(self, node: Node, registry: Registry, custody: Custody) -> None:
        self._node = node
        self._registry = registry
        self._custody = custody

    async def find(self, offloading: Offloading, namespace: str, uid: PodUid) -> ArtifactId:
        """An older one that lies nearer would lose what came since. Raises NotFoundError,
        DeadlineError, RetryableError, OSError."""
        if self._node.world.registry is not None:
            return await self._registry.newest(namespace, uid, CALL_S)
        places = [tier for tier in (Tier.NVME, Tier.OBJECT) if tier in offloading.limits]
        listed = [one for tier in places for one in await offloading.vault.ls(tier)]
        found = [one.id for one in listed if one.uid == uid and one.verified]
        mine = [
            one
            for one in found
            if one.partition("/")[0] == namespace and not self._custody.is_dropping(one)
        ]
        newest = max(mine, key=_moment, default=None)
        read = {one.id for one in listed if not one.unread}
        # All states of a pod have its name.
        alike = f"{newest.partition('@')[0]}@" if newest else f"{namespace}/"
        for one in {each.id for each in listed} - read:
            if one.startswith(alike) and (newest is None or _moment(one) > _moment(newest)):
                raise RetryableError(
                    f"{one} can't be read now, and may be the newest state of pod {namespace}/{uid}"
                )
        if newest is None:
            raise NotFoundError(f"nothing of pod {namespace}/{uid} is saved where this node reads")
        return newest

    def see_kept(self, artifact: ArtifactId) -> None:
        """Raise NotFoundError if this node is about to drop it."""
        if self._custody.is_dropping(artifact):
            raise NotFoundError(f"{artifact} is being dropped: its pod has continued without it")

    async def see_last(
        self, offloading: Offloading, namespace: str, uid: PodUid, artifact: str
    ) -> None:
        """The pod has stopped, and what it said before is known: raise RetryableError if it saved
        another state since this one was found; NotFoundError, DeadlineError, OSError."""
        newest = await self.find(offloading, namespace, uid)
        if newest != artifact:
            raise RetryableError(f"pod {namespace}/{uid} has saved {newest} since {artifact}")


def _moment(artifact: str) -> str:
    return artifact.rpartition("@")[2]
