"""Whether a saved state may be restored into a container. Pure.

CRIU recreates what images say with the host's rights, so nothing is restored that isn't held
against the container first: whose state it is, what it needs of the machine, what its processes
may do. A pod's own state needs no more than its name: it was saved from that very container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kybernate.core.artifacts.grants import no_grants, why_not
from kybernate.core.artifacts.match import mismatches
from kybernate.core.artifacts.privileges import beyond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.core.artifacts.grants import Grant
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.core.artifacts.match import Target
    from kybernate.core.artifacts.privileges import Privileges
    from kybernate.types import PodUid


@dataclass(frozen=True, slots=True)
class Container:
    """What a container is and may do. `grants` says which other namespaces' states which pods may
    have, or raises RetryableError while that isn't known."""

    target: Target
    privileges: Privileges
    grants: Callable[[], Iterable[Grant]] = no_grants


@dataclass(frozen=True, slots=True)
class Into:
    """The pod into whose container a state goes; without `container` only its own may."""

    namespace: str
    uid: PodUid
    container: Container | None = None


def why_refused(manifest: Manifest, into: Into, now: float) -> tuple[str, ...]:
    """Why the state may not be restored there, as sentences; empty if it may. `now`: seconds since
    1970. The manifest's signature is somebody else's to check.

    Raises RetryableError if it is another namespace's, and nobody knows yet what is granted.
    """
    facts = manifest.facts
    if (facts.namespace, facts.pod_uid) == (into.namespace, into.uid):
        return ()
    if into.container is None:
        return (f"{manifest.id} is the state of pod {facts.pod_uid}, and not of {into.uid}.",)
    there = into.container
    foreign = why_not(manifest.id, into.namespace, there.grants, now)
    return (
        *((foreign,) if foreign else ()),
        *mismatches(facts, there.target),
        *beyond(facts.privileges, there.privileges),
    )
