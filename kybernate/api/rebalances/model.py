"""RebalanceRequest as the API server has it: what its CustomResourceDefinition is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kybernate.api.asked import NAME, Conditions, RequestedBy, TimeToLive, deadline
from kybernate.api.schema import CAMEL, TIME, checked, items, one_of, rule
from kybernate.api.schema import number as numbers
from kybernate.api.schema import text as texts
from kybernate.api.schema import whole as wholes
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.rebalance import Stage
from kybernate.dataclass import dataclass

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
    node: Annotated[
        str, texts(253, "Name of a node; absent: the pod's own node.", pattern=NAME)
    ] = ""
    group: Annotated[
        str, texts(63, "Name of one of the node's groups; absent: any group in which the pod fits.")
    ] = ""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """One pod or all pods of a model, and where they are to go."""

    __pydantic_config__ = checked(
        rule("has(self.pod) != has(self.model)", "name either a pod or a model"),
        rule(
            "!has(self.model) || has(self.to.node)",
            "pods of a model may be on several nodes; name a node in to",
        ),
    )
    to: Annotated[PlaceRow, Field(description="Target of the move. No other pod is moved for it.")]
    pod: Annotated[str | None, texts(253, "The pod, of this namespace.", least=1, pattern=NAME)] = (
        None
    )
    model: Annotated[
        str | None,
        texts(
            1024,
            "The model (kyb.ai/model) whose pods of this namespace move, all that aren't there "
            "yet, one after another. One that can't move keeps all of them.",
            least=1,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class DefragmentRow:
    """Pods that wait for seats."""

    __pydantic_config__ = CAMEL
    pod: Annotated[
        str, texts(253, "Name of the pod, in this namespace; absent: all pods that wait.")
    ] = ""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """What a plan may cost."""

    __pydantic_config__ = CAMEL
    moves: Annotated[
        int, wholes(32, "Most pods that the plan may move.", least=1, most=_MOST_MOVES, default=10)
    ] = 10
    seconds: Annotated[
        int, wholes(32, "Most seconds that all moves may take together; absent: no limit.", least=0)
    ] = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """What is asked for, and which plan is approved."""

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
    move: Annotated[MoveRow | None, Field(description="Plan to move a pod, or a model.")] = None
    empty_node: Annotated[
        str | None, texts(253, "Plan to move all pods off this node.", least=1, pattern=NAME)
    ] = None
    defragment: Annotated[
        DefragmentRow | None, Field(description="Plan to make room for pods that wait.")
    ] = None
    budget: Annotated[BudgetRow | None, Field(description="Most that the plan may cost.")] = None
    approved_plan: Annotated[
        str,
        texts(
            64,
            "The value of status.plan.hash. Whoever has the verb `approve` for RebalanceRequests "
            "writes it, and so has that plan carried out. Leave it out when you create a request. "
            "It may be written again for a plan that has changed, until status.startTime is there.",
        ),
    ] = ""
    deadline_seconds: Annotated[
        int,
        deadline(
            "Seconds from the request's creation in which a plan must be approved, and from the "
            "approval in which steps may begin. With emptyNode a plan that is expected to take "
            "longer is none, and what is put away then is cancelled: its pod stays where it is.",
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
        str, one_of(Kind, "move: the pod continues elsewhere. place: the pod waits, and is bound.")
    ]
    namespace: Annotated[str, texts(63, "Namespace of the pod.")]
    pod: Annotated[str, texts(253, "Name of the pod.")]
    uid: Annotated[str, texts(128, "UID of the pod.")]
    source: Annotated[SpotRow | None, Field(alias="from", description="Where the pod is.")] = None
    target: Annotated[SpotRow | None, Field(alias="to", description="Where the pod is to be.")] = (
        None
    )
    bytes: Annotated[int, wholes(told="Bytes that the step moves.")] = 0
    seconds: Annotated[float, numbers(description="Expected duration (s).")] = 0.0
    stage: Annotated[str, one_of(Stage, "How far the step is.")] = Stage.WAITING.value
    successor: Annotated[str, texts(128, "UID of the pod that continues.")] = ""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The plan."""

    __pydantic_config__ = CAMEL
    hash: Annotated[str, texts(64, "Hash of the steps, which an approval names.")]
    moves: Annotated[int, wholes(told="Number of pods that the plan moves.")] = 0
    seconds: Annotated[float, numbers(description="Expected duration (s).")] = 0.0
    bytes: Annotated[int, wholes(told="Bytes that the plan moves.")] = 0
    message: Annotated[str, texts(1024, "The plan in a sentence.")] = ""
    steps: Annotated[
        tuple[StepRow, ...],
        items(2 * _MOST_MOVES, "atomic", "Steps in the order of their execution."),
    ] = ()


@dataclass(frozen=True, slots=True)
class RebalanceStatus:
    """How far the request is."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, wholes()] = 1
    plan: Annotated[PlanRow | None, Field(description="The plan and its cost.")] = None
    plan_time: Annotated[
        str | None,
        TIME,
        Field(
            description="When the plan was made. It is made again once it is approved, and "
            "once pods are not where it has them."
        ),
    ] = None
    moves_done: Annotated[
        int | None, wholes(told="Number of pods that continue where they are to be.")
    ] = None
    bytes_done: Annotated[int | None, wholes(told="Bytes that were moved.")] = None
    start_time: Annotated[str | None, TIME, Field(description="When the first step began.")] = None
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
