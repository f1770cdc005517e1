"""Whether a node is believed of what it signed: by what the registry recorded at the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.adapters.registry.describe import digest
from kybernate.adapters.registry.wire import CONTENT
from kybernate.errors import NotFoundError, RefusedError
from kybernate.lib.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.registry.client import Registry
    from kybernate.core.artifacts.manifest import Manifest

_WITHIN = 8.0


class Witness:
    """Asks the registry. `open_registry` is called at each use."""

    def __init__(self, open_registry: Callable[[], Registry]) -> None:
        self._open = open_registry

    def see_believed(self, manifest: Manifest) -> str:
        """Raise RefusedError unless the node that signed it wrote that very state, for a pod whose
        lease or claim it had then; DeadlineError if nobody answers.

        Gives the hash of what its files held when it was saved; empty where nobody recorded it.
        """
        signed, until = f"{manifest.id} was signed by node {manifest.node}, and", Deadline(_WITHIN)
        try:
            found = self._open().signers(manifest.id, until.left)
            facts = self._open().get(manifest.id, until.left).facts
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
        return str(facts.get(CONTENT) or "")
