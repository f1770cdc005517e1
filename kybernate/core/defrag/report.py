"""A plan as plain values, for programs; null stands for what has no bound."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from kybernate.core.defrag.explain import sentences
from kybernate.core.defrag.model import NoPlan
from kybernate.core.plans.steps import document as step_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.core.defrag.model import Pending, Plan


def document(
    found: Plan | NoPlan, wanted: Sequence[Pending], fixed: Mapping[str, int]
) -> dict[str, Any]:
    """The plan for the pods wanted. `fixed` counts pods that must stay, by why."""
    none = isinstance(found, NoPlan)
    return {
        "room": not none,
        "id": None if isinstance(found, NoPlan) else found.id,
        "pods": [str(one.pod) for one in wanted],
        "sentences": list(sentences(found)),
        "proven": found.proven,
        "atLeastSeconds": None if found.at_least == inf else found.at_least,
        "seconds": None if isinstance(found, NoPlan) else found.seconds,
        "moves": None if isinstance(found, NoPlan) else found.moves,
        "steps": [] if isinstance(found, NoPlan) else list(map(step_document, found.steps)),
        "fixed": dict(fixed),
    }
