"""From which artifacts the cluster's SnapshotTemplates have pods start."""

from __future__ import annotations

from typing import Any, NamedTuple

from kybernate import keys
from kybernate.api.restores import ready_artifact
from kybernate.errors import NotFoundError, RetryableError
from kybernate.runtime.listed import Listed
from kybernate.types import ArtifactId


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


def _named(item: dict[str, Any]) -> Named:
    return Named(*ready_artifact(item))
