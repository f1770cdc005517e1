"""Whether an artifact may be restored into a container. Pure.

CRIU recreates what images say with the host's rights, so nothing is restored that isn't held
against the container first: whose state it is, what it needs of the machine, what its processes
may do. A pod's own state was saved from that very container: of it the machine alone may have
changed since. A seat that is parked on a state outlasts that: it continues once all is as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.artifacts.grants import no_grants, why_not
from kybernate.core.artifacts.match import machine_mismatches, mismatches
from kybernate.core.artifacts.misfits import Against, Misfit
from kybernate.core.artifacts.privileges import beyond
from kybernate.dataclass import dataclass
from kybernate.errors import UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.core.artifacts.grants import Grant
    from kybernate.core.artifacts.manifest import Facts, Manifest
    from kybernate.core.artifacts.match import Target
    from kybernate.core.artifacts.privileges import Privileges
    from kybernate.types import PodUid

_LOOK_AGAIN = 30.0


@dataclass(frozen=True, slots=True)
class Container:
    """What a container is and may do. `grants` says which other namespaces' states which pods may
    have, or raises RetryableError while that isn't known."""

    target: Target
    privileges: Privileges
    grants: Callable[[], Iterable[Grant]] = no_grants


@dataclass(frozen=True, slots=True)
class Into:
    """The pod into whose container a state goes; without `container` only its own may. `parked`:
    the seat has nothing but that state any more. `namespace_uid`: see `Facts`."""

    namespace: str
    uid: PodUid
    container: Container | None = None
    parked: bool = False
    namespace_uid: str = ""


def why_refused(manifest: Manifest, into: Into, now: float) -> tuple[Against, ...]:
    """Why the state may not be restored there; empty if it may. `now`: seconds since
    1970. The manifest's signature is somebody else's to check.

    Raises RetryableError if it is another namespace's, and nobody knows yet what is granted;
    UnfitError if the seat is parked on it, and its machine isn't what it was.
    """
    facts, there = manifest.facts, into.container
    own = (facts.namespace, facts.pod_uid) == (into.namespace, into.uid)
    if there is None:
        other = f"{manifest.id} is the state of pod {facts.pod_uid}, and not of {into.uid}."
        return () if own else (Against(Misfit.POD, other),)
    if into.parked:
        see_fit(manifest.id, manifest.facts, there.target)
    if own:
        return ()
    if _is_former(facts, into):
        sentence = (
            f"{manifest.id} was saved in a namespace {facts.namespace} that was deleted (UID "
            f"{facts.namespace_uid}), and not in the present one of that name."
        )
        return (Against(Misfit.NAMESPACE, sentence),)
    foreign = why_not(manifest.id, into.namespace, there.grants, now)
    return (
        *((Against(Misfit.GRANT, foreign),) if foreign else ()),
        *mismatches(facts, there.target),
        *(Against(Misfit.RIGHTS, one) for one in beyond(facts.privileges, there.privileges)),
    )


def _is_former(facts: Facts, into: Into) -> bool:
    """Whether the state is of an earlier namespace of the pod's namespace's name."""
    uids = {facts.namespace_uid, into.namespace_uid}
    return facts.namespace == into.namespace and len(uids - {""}) == 2


def see_fit(artifact: str, saved: Facts | Target, target: Target) -> None:
    """Raises UnfitError if the machine isn't what it was when the state was saved."""
    against = machine_mismatches(saved, target)
    if against:
        found = " ".join(one.found for one in against)
        raise UnfitError(
            f"{found} {artifact} is kept: make this node as it was and it continues, or delete the "
            "pod to give it up",
            _LOOK_AGAIN,
        )
