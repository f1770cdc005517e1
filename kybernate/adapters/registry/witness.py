"""Whether a node is believed of what it signed: by what the registry recorded at the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.adapters.registry.describe import digest
from kybernate.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.registry.client import Registry
    from kybernate.core.artifacts.manifest import Manifest

_DEADLINE_S = 8.0


class Witness:
    """Asks the registry. `open_registry` is called for each use."""

    def __init__(self, open_registry: Callable[[], Registry]) -> None:
        self._open = open_registry

    def see_believed(self, manifest: Manifest) -> None:
        """Raise RefusedError unless the node that signed it wrote that very state, for a pod whose
        lease or claim it had then; DeadlineError if nobody answers."""
        signed = f"{manifest.id} was signed by node {manifest.node}, and"
        try:
            found = self._open().signers(manifest.id, _DEADLINE_S)
        except NotFoundError as error:
            raise RefusedError(f"{signed} the registry knows of no such state.") from error
        if found.digest != digest(manifest):
            raise RefusedError(f"{signed} the registry has another one recorded under that name.")
        if manifest.node not in found.nodes:
            wrote = " and ".join(found.nodes) or "nobody who is believed"
            raise RefusedError(
                f"{signed} by the registry's record it was written by {wrote}: that node had no "
                f"lease on pod {manifest.facts.pod_uid} then."
            )
