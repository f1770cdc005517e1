"""A plan as plain values, for programs; null stands for what has no bound."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from kybernate.core.defrag.explain import sentences
from kybernate.core.defrag.model import NoPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.core.defrag.model import Pending, Plan, Step
    from kybernate.types import GroupName, NodeName


def document(
    found: Plan | NoPlan, wanted: Sequence[Pending], fixed: Mapping[str, int]
) -> dict[str, Any]:
    """The plan for the pods wanted. `fixed` counts pods that must stay, by why."""
    none = isinstance(found, NoPlan)
    return {
        "room": not none,
        "pods": [str(one.pod) for one in wanted],
        "sentences": list(sentences(found)),
        "proven": found.proven,
        "atLeastSeconds": None if found.at_least == inf else found.at_least,
        "seconds": None if isinstance(found, NoPlan) else found.seconds,
        "moves": None if isinstance(found, NoPlan) else found.moves,
        "steps": [] if isinstance(found, NoPlan) else [_step(step) for step in found.steps],
        "fixed": dict(fixed),
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind.value,
        "pod": str(step.pod),
        "uid": step.pod.uid,
        "from": _place(step.source),
        "to": _place(step.target),
        "seconds": step.seconds,
        "bytes": step.size,
    }


def _place(place: tuple[NodeName, GroupName] | None) -> dict[str, str] | None:
    return None if place is None else {"node": place[0], "group": place[1]}
