"""The fields of a TierPlacement."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from kybernate import keys
from kybernate.api.asked import to_create
from kybernate.api.gpunodes import Condition  # noqa: TC001 - pydantic reads it
from kybernate.api.policies import Expression  # noqa: TC001 - as above
from kybernate.api.schema import CAMEL, TIME, items, labels, one_of
from kybernate.api.schema import text as words
from kybernate.api.schema import whole as integer
from kybernate.core.requests.placement import MOST_ARTIFACTS, MOST_COPIES, CopyState
from kybernate.dataclass import dataclass
from kybernate.types import Tier

Json = dict[str, Any]

_MOST_LABELS = 16
_DEEP = (Tier.NVME, Tier.OBJECT)


@dataclass(frozen=True, slots=True)
class ArtifactSelector:
    """Labels of Artifacts. Empty, it selects all of the namespace."""

    __pydantic_config__ = CAMEL
    match_labels: Annotated[
        dict[str, str] | None,
        labels(_MOST_LABELS, "Labels that an Artifact must have, with these values."),
    ] = None
    match_expressions: Annotated[
        tuple[Expression, ...],
        items(_MOST_LABELS, "atomic", "What else is wanted of its labels; all must be so."),
    ] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Labels of nodes. Empty, it selects all that have an agent."""

    __pydantic_config__ = CAMEL
    match_labels: Annotated[
        dict[str, str] | None,
        labels(_MOST_LABELS, "Labels that a node must have, with these values."),
    ] = None
    match_expressions: Annotated[
        tuple[Expression, ...],
        items(_MOST_LABELS, "atomic", "What else is wanted of its labels; all must be so."),
    ] = ()


@dataclass(frozen=True, slots=True)
class OnNvme:
    """On the NVMe of nodes. They take it from the object store, still encrypted, where the states
    of their own seats leave room."""

    __pydantic_config__ = CAMEL
    nodes: NodeSelector
    number: Annotated[
        int | None,
        integer(32, "On so many of them; absent: on each.", least=1, most=MOST_COPIES),
    ] = None


@dataclass(frozen=True, slots=True)
class Copies:
    """Where copies are to lie, beside those that seats need."""

    __pydantic_config__ = CAMEL
    object: Annotated[
        int,
        integer(
            32,
            "1: in the object store. 0: not for this; a node's NVMe takes only what is there "
            "anyway.",
            most=1,
            default=1,
        ),
    ] = 1
    nvme: OnNvme | None = None


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """Which artifacts are kept, where, and until when."""

    __pydantic_config__ = CAMEL
    selector: ArtifactSelector
    copies: Copies
    newest: Annotated[
        int,
        integer(
            32,
            "Of the artifacts that match, so many, the newest. An older one is let go as soon as "
            "a newer one comes.",
            least=1,
            most=MOST_ARTIFACTS,
            default=10,
        ),
    ] = 10
    pinned_until: Annotated[
        str | None,
        Field(
            description="Until then nothing drops them, whatever becomes of their pods; absent: "
            "for as long as the TierPlacement is there."
        ),
        TIME,
    ] = None


def selecting(label: str, value: str) -> Json:
    """The selector of artifacts whose label has this value."""
    return {"matchLabels": {label: value}}


def to_pin(name: str, label: str, value: str, newest: int, until: str | None) -> Json:
    """A TierPlacement of this name that keeps the newest artifacts whose label has this value, with
    a copy in the object store; `until`: RFC 3339, None for as long as it is there."""
    spec: Json = {"selector": selecting(label, value), "copies": {"object": 1}}
    spec |= {"newest": newest} | ({"pinnedUntil": until} if until else {})
    return to_create(keys.TIER_PLACEMENT_KIND, {"name": name}, spec)


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy that is wanted."""

    __pydantic_config__ = CAMEL
    artifact: Annotated[str, words(400, "Its name everywhere else.", least=1)]
    tier: Annotated[str, one_of(_DEEP)]
    state: Annotated[
        str,
        one_of(CopyState, "There: verified by the node that made it."),
    ]
    node: Annotated[str, words(253, "Whose NVMe, or whose agent puts it into the store.")] = ""
    operation: Annotated[str, words(63, "Its name on that node's agent.")] = ""
    tries: Annotated[int, integer(32, "How many came to nothing.")] = 0
    not_before: Annotated[str | None, TIME] = None
    began_at: Annotated[str | None, TIME] = None
    bytes_done: Annotated[int, integer()] = 0
    bytes_total: Annotated[int, integer()] = 0
    message: Annotated[str, words(1024)] = ""


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """What comes of it, as the controller sees it. Agents and the registry go by `artifacts` and
    `copies`."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, integer()] = 1
    matched: Annotated[int, integer(32, "Artifacts that have these labels.")] = 0
    pinned: Annotated[int, integer(32, "Those that are kept.")] = 0
    placed: Annotated[int, integer(32, "Those of which every copy is there.")] = 0
    copies_wanted: Annotated[int, integer(32, "Copies of all of them.")] = 0
    copies_there: Annotated[int, integer(32, "Those that are there.")] = 0
    bytes_done: Annotated[int | None, integer(told="Of copies that are being made.")] = None
    bytes_total: Annotated[int | None, integer(told="Of copies that are being made.")] = None
    estimated_completion_time: Annotated[str | None, TIME] = None
    artifacts: Annotated[
        tuple[Annotated[str, words(400, least=1)], ...],
        items(MOST_ARTIFACTS, "set", "Which are kept, by their names everywhere else."),
    ] = ()
    copies: Annotated[
        tuple[CopyRow, ...], items(MOST_COPIES, "atomic", "Copies that are wanted.")
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        items(8, "type", "Ready: whether every copy is there; the reason says why not."),
    ] = ()


@dataclass(frozen=True, slots=True)
class TierPlacement:
    """The object as a whole."""

    __pydantic_config__ = CAMEL
    spec: PlacementSpec
    status: PlacementStatus | None = None
