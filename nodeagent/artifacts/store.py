"""Sealing: what was written down of a seat becomes an artifact, which somebody must then hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kybernate.ports import Vault
    from kybernate.types import ArtifactId, PodUid
    from nodeagent.artifacts.holds import Custody


class Sealer:
    """Knows what this agent has sealed since it began: who had it sealed sees to it, and nobody
    else may take it for left over. Lives on the loop."""

    def __init__(self, custody: Custody) -> None:
        self.custody = custody
        self._sealing: dict[asyncio.Future[ArtifactId], PodUid] = {}
        self._sealed: set[str] = set()

    def begin(
        self, vault: Vault, uid: PodUid, images: Path, facts: Mapping[str, object], deadline: float
    ) -> asyncio.Future[ArtifactId]:
        """What was written down of this pod becomes an artifact, within seconds."""
        sealing = asyncio.ensure_future(vault.seal(images, facts, deadline))
        self._sealing[sealing] = uid
        sealing.add_done_callback(self._is_sealed)
        return sealing

    def _is_sealed(self, sealing: asyncio.Future[ArtifactId]) -> None:
        self._sealing.pop(sealing)
        if _came_of(sealing):
            self._sealed.add(sealing.result())

    async def seal(
        self, vault: Vault, uid: PodUid, images: Path, facts: Mapping[str, object], deadline: float
    ) -> ArtifactId:
        """Once begun it may come to its end also if nobody wants it any more."""
        sealing = self.begin(vault, uid, images, facts, deadline)
        try:
            return await asyncio.shield(sealing)
        except asyncio.CancelledError:
            sealing.add_done_callback(self._drop)
            raise

    def _drop(self, sealing: asyncio.Future[ArtifactId]) -> None:
        if _came_of(sealing):
            self.custody.void(sealing.result(), "its container ended while it was sealed")

    def is_sealing(self, uid: PodUid) -> bool:
        """Whether one of this pod is being made."""
        return uid in self._sealing.values()

    def has_sealed(self, artifact: str) -> bool:
        """Whether this agent made it."""
        return artifact in self._sealed


def _came_of(sealing: asyncio.Future[ArtifactId]) -> bool:
    return not sealing.cancelled() and sealing.exception() is None
