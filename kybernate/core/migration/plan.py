"""What a move of a seat to another pod needs and does, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.seats import AT_GATE, OCCUPYING, WITHOUT_TREE
from kybernate.errors import RefusedError
from kybernate.types import Tier

if TYPE_CHECKING:
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.core.seat.operations import SeatFacts
    from kybernate.types import PodRef, PodUid


def why_unmovable(seat: SeatFacts, successor: str) -> str:
    """Why it can't be moved, whatever happens; empty if it may."""
    if not successor:
        return "successor: name the pod that is to continue, of the same namespace"
    if Tier.NVME not in seat.tiers:
        return "this agent has no CRIU to move states with; give it one (criu)"
    if seat.state in AT_GATE:
        return "it has not been started: there is nothing to move; start it over there"
    return ""


def plan_move(seat: SeatFacts, uid: PodUid, successor: str) -> tuple[str, ...]:
    """What a move would do, in order."""
    there = (
        f"Pod {successor} is looked for: it must hold a seat, on another node or on this one, and "
        f"wait for this state (kyb.ai/restore-from: pod/{uid})."
    )
    steps = [there]
    if seat.state not in WITHOUT_TREE:
        steps.append(
            "To another node the memory of a state of before, if NVMe has one, goes in advance."
        )
    if seat.state in OCCUPYING:
        steps.append(f"{seat.name} is {seat.state}: its requests in flight end, and it is parked.")
    if seat.state not in WITHOUT_TREE:
        steps.append(
            "Its frozen processes are written down, and sent while they are; within the node they "
            "stay where they are written."
        )
        if seat.undumpable:
            steps.append(f"The last try was refused: {seat.undumpable}.")
    return (
        *steps,
        "Another node verifies all of it against the signed manifest; it is the successor's then.",
        "The processes here are ended, the registry is told, and the successor continues.",
        f"What is left of {seat.name} is an empty container: delete the pod.",
    )


def see_own(manifest: Manifest, pod: PodRef) -> None:
    """Raise RefusedError unless the state is the pod's own.

    A seat that has continued from another pod's state and not run since still has that one's, which
    names that one. It is nobody's to hand on: a pod's state goes to one successor, and that is this
    seat's pod itself, so that no third one could claim it.
    """
    facts = manifest.facts
    if (facts.namespace, facts.pod_uid) != (pod.namespace, pod.uid):
        raise RefusedError(
            f"{manifest.id} is a state of pod {facts.namespace}/{facts.pod_uid}, not of {pod}; "
            "wake that one once, so that what it has is its own, then move it"
        )
