"""The artifact that a pod wants to continue from. Pure."""

from __future__ import annotations

from enum import StrEnum

from kybernate.core.artifacts import layout
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError
from kybernate.types import ArtifactId, PodUid

OF_POD = "pod/"
"""Begins a source that names a pod, by its UID, rather than an artifact."""

OF_TEMPLATE = "template/"
"""Begins a source that names a SnapshotTemplate of the pod's namespace."""

_NO_ARTIFACT, _NO_POD = ArtifactId(""), PodUid("")


class RestoreAs(StrEnum):
    """What the pod is to the one whose state it takes."""

    SUCCESSOR = "successor"
    """It continues in that one's place: at most one does, and only once that one has stopped."""
    TEMPLATE = "template"
    """It starts as a copy; as many do as like."""
    CLONE = "clone"
    """A copy to be looked at, cut off from the network."""


@dataclass(frozen=True, slots=True)
class RestoreWish:
    """`artifact`, or the newest state of the pod `uid`, or what the SnapshotTemplate `template` has
    then: the others are empty. `waits`: rather than
    started again it is kept waiting, as a clone always is. `stopped`: a clone does not execute one
    instruction."""

    artifact: ArtifactId = _NO_ARTIFACT
    uid: PodUid = _NO_POD
    kind: RestoreAs = RestoreAs.SUCCESSOR
    waits: bool = False
    stopped: bool = False
    template: str = ""

    @property
    def source(self) -> str:
        """As the annotation has it."""
        if self.template:
            return f"{OF_TEMPLATE}{self.template}"
        return self.artifact or f"{OF_POD}{self.uid}"

    @property
    def succeeds(self) -> bool:
        """Whether it takes the place of a pod that it names, rather than a state or a template."""
        return self.kind is RestoreAs.SUCCESSOR and bool(self.uid)

    def namespace(self, own: str) -> str:
        """Whose state it is; `own` is the pod's namespace."""
        return layout.parse_id(self.artifact).namespace if self.artifact else own


def no_templates(namespace: str, name: str) -> ArtifactId:
    """The artifact of a SnapshotTemplate where there are none. Raises NotFoundError."""
    raise NotFoundError(f"there is no SnapshotTemplate {namespace}/{name}")
