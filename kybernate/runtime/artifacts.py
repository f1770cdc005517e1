"""What objects of the cluster have of artifacts: from which SnapshotTemplates have pods start, and
which TierPlacements keep. An agent drops nothing before all of the latter were listed: what it
doesn't know of may be pinned."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kybernate import keys
from kybernate.api.placements.status import read_placed
from kybernate.api.restores import ready_artifact
from kybernate.core.artifacts.placed import Placed
from kybernate.errors import NotFoundError, RetryableError
from kybernate.runtime.listed import IfServed, Listed
from kybernate.types import ArtifactId

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.k8s import Source


class Named(NamedTuple):
    """A template, and its artifact, empty until it has one."""

    namespace: str
    name: str
    artifact: str


class SnapshotTemplates(Listed[Named]):
    """Fed by its watch's thread; any thread may ask."""

    def __init__(self) -> None:
        super().__init__(keys.SNAPSHOT_TEMPLATES_PATH, "SnapshotTemplates", _named)

    def artifact(self, namespace: str, name: str) -> ArtifactId:
        """What pods of this template start from now. Raises RetryableError while it isn't known
        which templates there are, NotFoundError if there is none, or none has been made yet."""
        if self.unlisted is not None:
            raise RetryableError(f"SnapshotTemplates aren't known yet: {self.unlisted}")
        found = next((one for one in self.of(namespace) if one.name == name), None)
        if found is None:
            raise NotFoundError(f"there is no SnapshotTemplate {namespace}/{name}")
        if not found.artifact:
            raise NotFoundError(f"SnapshotTemplate {namespace}/{name} has no artifact yet")
        return ArtifactId(found.artifact)


class Placements(Listed[Placed]):
    """Fed by its watch's thread; any thread may ask. `wall` gives seconds since 1970."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        super().__init__(keys.TIER_PLACEMENTS_PATH, "TierPlacements", read_placed)
        self._wall = wall

    def start(self, api: Source) -> None:
        """Start listing and watching."""
        # An agent that is newer than config/ may not list them, and would drop nothing for good.
        super().start(IfServed(api))

    def pinned(self, artifact: str) -> bool:
        """Whether a TierPlacement pins it, or may: not all are known yet."""
        now = self._wall()
        mine = self.of(artifact.partition("/")[0])
        return self.unlisted is not None or any(one.counts(artifact, now) for one in mine)

    def named(self, artifact: str) -> bool:
        """Whether a TierPlacement that is known names it."""
        now = self._wall()
        return any(one.counts(artifact, now) for one in self.of(artifact.partition("/")[0]))

    def wants(self, artifact: str, node: str) -> bool:
        """Whether the node's NVMe is to have a copy of it, by one that is known."""
        now = self._wall()
        return any(one.wants(artifact, node, now) for one in self.of(artifact.partition("/")[0]))


def _named(item: dict[str, Any]) -> Named:
    return Named(*ready_artifact(item))
