"""What TierPlacements want of artifacts: which are kept, and on which nodes they lie. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Placed(NamedTuple):
    """What one TierPlacement of a namespace asks for now. `artifacts` are pinned; `copies`: an
    artifact and the node on whose NVMe it is to lie. It counts before `until`, in seconds since
    1970, 0.0 for always."""

    namespace: str
    artifacts: frozenset[str]
    copies: frozenset[tuple[str, str]]
    until: float = 0.0

    def counts(self, artifact: str, now: float) -> bool:
        """Whether it says anything of this artifact now: never of another namespace's."""
        own = artifact.partition("/")[0] == self.namespace
        return own and artifact in self.artifacts and (not self.until or now < self.until)

    def wants(self, artifact: str, node: str, now: float) -> bool:
        """Whether this node's NVMe is to have the artifact."""
        return (artifact, node) in self.copies and self.counts(artifact, now)


def unpinned(artifact: str) -> bool:
    """Whether the artifact is pinned, where there are no TierPlacements."""
    return False
