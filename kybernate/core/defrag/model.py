"""What the planner is asked and what it answers."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from kybernate.core.plans.steps import plan_id
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.core.placement import Demand
    from kybernate.core.plans.steps import Step
    from kybernate.types import GroupName, NodeName, PodRef, PodUid


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod that wants a seat; or another one than it has (`home`), for so many `seconds`, as it is
    to leave: then it has to be among those seated, and `why` says what for."""

    pod: PodRef
    demand: Demand
    home: tuple[NodeName, GroupName | None] | None = None
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Seated:
    """A pod that has a seat: what it would ask for elsewhere, and the seconds that a move takes.

    `seconds` None: it must stay, and `why` says why. A move takes longer than 0.
    """

    claim: Claim
    demand: Demand
    seconds: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes with their claims, and what is known of the pods that hold them.

    A claim of a pod that is not in `seated` stays where it is.
    """

    views: Mapping[NodeName, NodeView]
    seated: Mapping[PodUid, Seated]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: `seconds` and number of `moves`; and `effort`, the number of states that
    the search looks at before it answers with the best that it has."""

    seconds: float = inf
    moves: int = 20
    effort: int = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps that make room for all pending pods, for `seconds` and `moves` in all.

    With `proven` no other moves cost less; otherwise none costs less than `at_least`.
    """

    steps: tuple[Step, ...]
    seconds: float
    moves: int
    proven: bool
    at_least: float

    @property
    def id(self) -> str:
        """See `steps.plan_id`."""
        return plan_id(self.steps)


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No moves were found that make room within the budget.

    With `proven` there are none, and `why` says so in a sentence; moves that would do cost
    `at_least` that many seconds (infinite: no moves would do). `looked_at` states were searched.
    """

    why: str
    proven: bool
    at_least: float
    looked_at: int
