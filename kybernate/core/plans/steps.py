"""The steps of a plan, as who carries it out takes them: one form for preemption and moves. Pure.

A plan follows from the ledger alone and not from the time, so that asked twice it is the same, and
after any step it is what is left. Nothing has to be kept but the step that is under way: its `id`
is the same in each plan that has it, and the ledger shows whether it has happened.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.types import GroupName, NodeName, PodRef

    Spot = tuple[NodeName, GroupName]

_GIB = 1 << 30

WAITS = "it waits for a seat"
"""Why a pod is placed."""


class Kind(StrEnum):
    """What a step does."""

    MOVE = "move"
    """The pod continues elsewhere."""
    SUSPEND = "suspend"
    """Its state is saved, and it gives up its seat."""
    DELETE = "delete"
    """It gives up its seat, and nothing is saved: so its owner wants it."""
    RESUME = "resume"
    """It continues from its artifact."""
    PLACE = "place"
    """It waits, and is bound."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step; after each of them the cluster is in a valid state.

    `source` is where the pod leaves, `target` where it goes; who is suspended or deleted has no
    target, and what is resumed or placed leaves nothing. `seconds` are a move's, counted where the
    pod leaves. `size` in bytes is what is saved or comes. `why` says for what.
    """

    kind: Kind
    pod: PodRef
    source: Spot | None
    target: Spot | None
    seconds: float = 0.0
    size: int = 0
    why: str = ""

    @property
    def id(self) -> str:
        """The same for the same step of any plan: no plan does the same to a pod twice."""
        return f"{self.kind}/{self.pod.uid}"


def plan_id(steps: Iterable[Step]) -> str:
    """The same for the same steps to the same places, in this order."""
    told = "\n".join(f"{step.id} {step.source} {step.target}" for step in steps)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def document(step: Step) -> dict[str, Any]:
    """The step as plain values, for programs."""
    return {
        "id": step.id,
        "kind": step.kind.value,
        "pod": str(step.pod),
        "uid": step.pod.uid,
        "from": _spot(step.source),
        "to": _spot(step.target),
        "seconds": step.seconds,
        "bytes": step.size,
        "why": step.why,
    }


def sentence(step: Step) -> str:
    """The step in a sentence for people."""
    size = f"{step.size / _GIB:.1f} GiB"
    source, target = _place(step.source), _place(step.target)
    match step.kind:
        case Kind.MOVE:
            return f"Move {step.pod} ({size}, {time(step.seconds)}) from {source} to {target}."
        case Kind.SUSPEND:
            lasts = f", {time(step.seconds)} with its return" if step.seconds else ""
            return f"Suspend {step.pod} ({size}{lasts}): {step.why}, and it gives up {source}."
        case Kind.DELETE:
            return f"Delete {step.pod}: {step.why}, and it gives up {source}."
        case Kind.RESUME:
            return f"Resume {step.pod} ({size}) at {target}."
        case Kind.PLACE:
            return f"Now {step.pod} ({size}) fits {target}."


def time(seconds: float) -> str:
    """A time for people."""
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.0f} min"


def _place(spot: Spot | None) -> str:
    return f"group {spot[1]} of {spot[0]}" if spot else "nowhere"


def _spot(spot: Spot | None) -> dict[str, str] | None:
    return None if spot is None else {"node": spot[0], "group": spot[1]}
