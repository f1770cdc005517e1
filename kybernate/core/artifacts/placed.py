"""Which copies of artifacts stay: what TierPlacements want, and the last verified one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def why_keep(place: str, copies: Mapping[str, bool], forget: str = "") -> str:
    """Why the copy in `place` must stay, as a sentence; empty if it may go.

    `copies`: every place that holds one, and whether it was verified there. `forget` says why
    nobody needs the artifact any more, if that is so.
    """
    if forget or place not in copies:
        return ""
    if any(verified for other, verified in copies.items() if other != place):
        return ""
    others = ", ".join(sorted(other for other in copies if other != place))
    elsewhere = f"what {others} has is not verified" if others else "there is no other"
    return (
        f"The copy in {place} is the last verified one ({elsewhere}); pack it into another place "
        "first, or say why it can be forgotten."
    )
