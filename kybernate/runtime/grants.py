"""The cluster's ArtifactGrants. Nothing is granted before all were listed; one that can't be read
grants nothing."""

from __future__ import annotations

from kybernate import keys
from kybernate.api.restoring.grants import read_grant
from kybernate.core.artifacts.grants import Grant
from kybernate.errors import RetryableError
from kybernate.runtime.listed import Listed


class ArtifactGrants(Listed[Grant]):
    """Fed by its watch's thread; any thread may ask."""

    def __init__(self) -> None:
        super().__init__(keys.ARTIFACT_GRANTS_PATH, "ArtifactGrants", read_grant)

    def all(self) -> tuple[Grant, ...]:
        """What is granted. Raises RetryableError until all were listed."""
        if why := self.unlisted:
            raise RetryableError(
                "another namespace's artifact needs an ArtifactGrant, and these are not listed "
                f"yet ({why})"
            )
        return super().all()

    def not_ready(self) -> str | None:
        """Why nothing is granted yet, while that takes a moment only, in a sentence: who restores
        nobody else's state waits for no API server that doesn't list them."""
        if self._watch is None or self.settled():
            return None
        return "ArtifactGrants are not listed yet"
