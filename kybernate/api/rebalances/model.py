"""RebalanceRequest as the API server has it: what its CustomResourceDefinition is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kybernate.api.asked import NAME, Conditions, RequestedBy, TimeToLive, deadline
from kybernate.api.schema import CAMEL, TIME, checked, items, one_of, rule
from kybernate.api.schema import number as numbers
from kybernate.api.schema import text as texts
from kybernate.api.schema import whole as wholes
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.rebalance import Stage

DEADLINE_S = 3600
_MOST_MOVES = 100
_FIXED = (
    *("move", "emptyNode", "defragment", "budget"),
    *("deadlineSeconds", "ttlSecondsAfterFinished", "requestedBy"),
)


def _same(field: str) -> str:
    now, before = f"self.{field}", f"oldSelf.{field}"
    return f"has({now}) == has({before}) && (!has({now}) || {now} == {before})"


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """A node, and a group of its GPUs."""

    __pydantic_config__ = checked(
        rule("has(self.node) || has(self.group)", "name a node, a group, or both")
    )
    node: Annotated[str, texts(253, "A node; absent: the pod's own.", pattern=NAME)] = ""
    group: Annotated[str, texts(63, "A group of the node; absent: any where it fits.")] = ""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """One pod, and where it is to go."""

    __pydantic_config__ = CAMEL
    pod: Annotated[str, texts(253, "The pod, of this namespace.", least=1, pattern=NAME)]
    to: Annotated[PlaceRow, Field(description="Where it is to go. No other pod is moved for it.")]


@dataclass(frozen=True, slots=True)
class DefragmentRow:
    """Pods that wait for seats."""

    __pydantic_config__ = CAMEL
    pod: Annotated[
        str, texts(253, "The pod, of this namespace, that is to get room; absent: all that wait.")
    ] = ""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """What a plan may cost."""

    __pydantic_config__ = CAMEL
    moves: Annotated[
        int, wholes(32, "How many pods may be moved.", least=1, most=_MOST_MOVES, default=10)
    ] = 10
    seconds: Annotated[
        int, wholes(32, "How long all moves together may take; absent: any time.", least=0)
    ] = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """What is asked for, and which plan may be carried out."""

    __pydantic_config__ = checked(
        rule(
            "[has(self.move), has(self.emptyNode), has(self.defragment)].filter(x, x).size() == 1",
            "ask for one thing: move, emptyNode or defragment",
        ),
        *(
            rule(
                _same(field),
                f"{field} stays as it was written, and a plan with it; delete the request and "
                "create another",
            )
            for field in _FIXED
        ),
    )
    move: Annotated[MoveRow | None, Field(description="A pod is to go elsewhere.")] = None
    empty_node: Annotated[
        str | None, texts(253, "All pods are to leave this node.", least=1, pattern=NAME)
    ] = None
    defragment: Annotated[
        DefragmentRow | None, Field(description="Pods that wait are to get room.")
    ] = None
    budget: Annotated[BudgetRow | None, Field(description="What the plan may cost.")] = None
    approved_plan: Annotated[
        str,
        texts(
            64,
            "status.plan.hash, written by somebody with the verb `approve` for RebalanceRequests: "
            "has that plan carried out. Leave it out when you create one. It may be written again "
            "for a plan that has changed, until status.startTime is there.",
        ),
    ] = ""
    deadline_seconds: Annotated[
        int,
        deadline(
            "Seconds from its creation in which a plan has to be approved, and from then on in "
            "which steps begin.",
            DEADLINE_S,
        ),
    ] = DEADLINE_S
    ttl_seconds_after_finished: TimeToLive = None
    requested_by: RequestedBy = ""


@dataclass(frozen=True, slots=True)
class SpotRow:
    """A group of a node."""

    __pydantic_config__ = CAMEL
    node: Annotated[str, texts(253)] = ""
    group: Annotated[str, texts(63)] = ""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step."""

    __pydantic_config__ = CAMEL
    kind: Annotated[
        str, one_of(Kind, "move: it continues elsewhere. place: it waits, and is bound.")
    ]
    namespace: Annotated[str, texts(63, "The pod's namespace.")]
    pod: Annotated[str, texts(253, "The pod.")]
    uid: Annotated[str, texts(128, "Its UID.")]
    source: Annotated[SpotRow | None, Field(alias="from", description="What it leaves.")] = None
    target: Annotated[SpotRow | None, Field(alias="to", description="Where it goes.")] = None
    bytes: Annotated[int, wholes(told="What is moved.")] = 0
    seconds: Annotated[float, numbers(description="What that is expected to take.")] = 0.0
    stage: Annotated[str, one_of(Stage, "How far it is.")] = Stage.WAITING.value
    successor: Annotated[str, texts(128, "The UID of the pod that continues.")] = ""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The plan."""

    __pydantic_config__ = CAMEL
    hash: Annotated[str, texts(64, "The same for the same steps: what is approved.")]
    moves: Annotated[int, wholes(told="How many pods are moved.")] = 0
    seconds: Annotated[float, numbers(description="What that is expected to take.")] = 0.0
    bytes: Annotated[int, wholes(told="How much is moved.")] = 0
    message: Annotated[str, texts(1024, "The plan in a sentence.")] = ""
    steps: Annotated[
        tuple[StepRow, ...], items(2 * _MOST_MOVES, "atomic", "In the order of their execution.")
    ] = ()


@dataclass(frozen=True, slots=True)
class RebalanceStatus:
    """How far it is."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, wholes()] = 1
    plan: Annotated[PlanRow | None, Field(description="What is to be done, and its cost.")] = None
    plan_time: Annotated[
        str | None,
        TIME,
        Field(
            description="When the plan was made. It is made again once it is approved, and "
            "once pods are not where it has them."
        ),
    ] = None
    moves_done: Annotated[int | None, wholes(told="Pods that continue where they are to.")] = None
    bytes_done: Annotated[int | None, wholes(told="What was moved.")] = None
    start_time: Annotated[str | None, TIME, Field(description="When its first step began.")] = None
    completion_time: Annotated[str | None, TIME] = None
    estimated_completion_time: Annotated[
        str | None, TIME, Field(description="When the rest is expected to be done.")
    ] = None
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: Spec
    status: RebalanceStatus | None = None
