"""The keys of artifacts put together from the settings: who signs, who is believed, and how
namespaces' keys are had."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.adapters.keys.artifactkeys import WrapKeys, read_folder
from kybernate.adapters.keys.nodesignatures import NodeSignatures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.adapters.registry.nodekeys import Asker
    from kybernate.runtime.identity import Identity
    from kybernate.settings.agent import AgentSettings
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)


def make_keys(
    settings: AgentSettings, identity: Identity, seats: Callable[[], Iterable[Seat]]
) -> ArtifactKeys:
    """The folder's, and the node's own; those of namespaces are the registry's to give, where there
    is one, to the pods of `seats`, which any thread may ask for. Raises ConfigError."""
    found = read_folder(settings.artifact_keys, NodeSignatures(identity))
    files = found.kms if isinstance(found.kms, WrapKeys) and found.kms.newest else None
    if found.signer is not None:
        log.warning(
            "%s has sign.key, which every node has: whoever has one node signs for all. Once all "
            "agents are of this release and there is a registry, take it out of the Secret",
            settings.artifact_keys,
        )
    if files is not None:
        log.warning(
            "%s has wrap-N.key, which opens the artifacts of every namespace: once all agents and "
            "the registry are of this release, take these out of the Secret "
            "(docs/reference/registry.md)",
            settings.artifact_keys,
        )
    if not settings.registry_url:
        return found
    from kybernate.adapters.registry.node import OwnClient  # noqa: PLC0415 - where it is used
    from kybernate.adapters.registry.nodekeys import NodeKeys  # noqa: PLC0415 - as above
    from kybernate.adapters.registry.witness import Witness  # noqa: PLC0415 - as above

    client = OwnClient(settings.registry_url, identity)
    given = NodeKeys(client, lambda ns: askers(seats(), ns), lambda key: WrapKeys((key,)), files)
    return replace(found, kms=given, witness=Witness(client).see_believed)


def askers(seats: Iterable[Seat], namespace: str) -> list[Asker]:
    """The pods for which a namespace's key may be asked for: its own, and those that want a state
    of it."""
    from kybernate.adapters.registry.nodekeys import Asker  # noqa: PLC0415 - see above

    pods = [(seat.identity.pod, seat.wishes.restore) for seat in seats]
    own = [Asker(namespace, pod.uid) for pod, _ in pods if pod.namespace == namespace]
    others = [
        Asker(pod.namespace, pod.uid, wish.artifact)
        for pod, wish in pods
        if wish is not None and pod.namespace != namespace == wish.namespace(pod.namespace)
    ]
    return own + others
