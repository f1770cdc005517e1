"""GPUNode: the GPUs of one node as its agent sees them, and tells of them.

The agent writes these models; the CustomResourceDefinition is made of them (`crds`), and
`nodeseats` reads of an object what placing needs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from kybernate.api.lenient import mapping
from kybernate.api.lenient import text as text_of
from kybernate.api.schema import (
    CAMEL,
    TIME,
    checked,
    flag,
    items,
    number,
    one_of,
    rule,
    text,
    whole,
)
from kybernate.core.seat.seats import shown
from kybernate.core.swap.activity import HOURS
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    Json = dict[str, Any]

MOST_SAVED = 256
"""Artifacts that are told of; of more the newest. A GPUNode must stay a small object."""

MOST_USES = 1024
"""Namespaces whose use a node tells, the first by name."""

LONGEST_MESSAGE = 4096
"""Characters. With one message too long, the API server would refuse all of the status."""

_POD_UID = "UID of the pod."
_STATES = tuple(dict.fromkeys(shown(state) for state in SeatState))


@dataclass(frozen=True, slots=True)
class Condition:
    """As Kubernetes' own conditions are."""

    __pydantic_config__ = CAMEL
    type: Annotated[str, text(316, least=1)]
    status: Annotated[str, one_of(["True", "False", "Unknown"])]
    reason: Annotated[str, text(1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    message: Annotated[str, text(32768)]
    last_transition_time: Annotated[str, TIME]
    observed_generation: Annotated[int | None, whole()] = None


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """How to reach the agent."""

    __pydantic_config__ = CAMEL
    address: Annotated[
        str,
        text(
            300,
            "Host and port, e.g. 10.88.1.1:9443.",
            **{
                "x-kubernetes-validations": [
                    rule("self == '' || self.matches('^.+:[0-9]{1,5}$')", "must be host:port")
                ]
            },
        ),
    ] = ""
    version: Annotated[str, text(128)] = ""


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions."""

    __pydantic_config__ = CAMEL
    version: Annotated[str, text(128)] = ""
    cuda: Annotated[str, text(128)] = ""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU."""

    __pydantic_config__ = CAMEL
    index: Annotated[int, whole(32)]
    uuid: Annotated[str, text(128, least=1)]
    product: Annotated[str, text(256)]
    memory_bytes: Annotated[int, whole()]
    healthy: Annotated[bool, flag()]
    numa: Annotated[
        int, whole(32, "NUMA node of the GPU; -1: the platform has none.", least=-1)
    ] = -1


@dataclass(frozen=True, slots=True)
class LinkRow:
    """The best path between two GPUs."""

    __pydantic_config__ = checked(rule("self.a != self.b", "a link joins two different GPUs"))
    a: Annotated[str, text(128, "UUID of a GPU.")]
    b: Annotated[str, text(128, "UUID of another GPU.")]
    kind: Annotated[str, text(64, least=1)]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of GPUs, and its seats."""

    __pydantic_config__ = checked(
        rule(
            "size(self.gpus) == int(self.resource.substring(11, self.resource.indexOf('x-seat')))",
            "resource must be kyb.ai/gpu-<n>x-seat for the n GPUs of the group",
        )
    )
    name: Annotated[str, text(52, least=1, pattern="^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]
    resource: Annotated[str, text(20, pattern=r"^kyb\.ai/gpu-[1-9][0-9]?x-seat$")]
    gpus: Annotated[
        tuple[Annotated[str, text(128)], ...],
        items(64, "set", "UUIDs, ordered by index.", least=1),
    ]
    seats: Annotated[int, whole(32)]
    active_slots: Annotated[int, whole(32, least=1)]


@dataclass(frozen=True, slots=True)
class Budget:
    """Host memory for parked seats."""

    __pydantic_config__ = CAMEL
    park_bytes: Annotated[int | None, whole()] = None
    parked_bytes: Annotated[int, whole()] = 0
    available_bytes: Annotated[
        int,
        whole(
            told="Bytes of RAM that the node has available, written again when it changes by 5 %; "
            "0: not known yet."
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class TierRow:
    """One tier of the node."""

    __pydantic_config__ = CAMEL
    name: Annotated[str, one_of(Tier)]
    seats: Annotated[int, whole(32)] = 0
    used_bytes: Annotated[int, whole()] = 0
    budget_bytes: Annotated[int, whole(told="Bytes that the tier may hold; 0: no limit.")] = 0


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """An artifact, and where it lies."""

    __pydantic_config__ = CAMEL
    artifact: Annotated[str, text(400, least=1)]
    uid: Annotated[str, text(128, _POD_UID, least=1)]
    tier: Annotated[str, one_of([Tier.NVME, Tier.OBJECT])]
    bytes: Annotated[int, whole()]


@dataclass(frozen=True, slots=True)
class Activity:
    """When a seat is used."""

    __pydantic_config__ = CAMEL
    busy: Annotated[
        tuple[Annotated[int, whole(32, least=-1, most=1000)], ...],
        items(HOURS, told="Thousandths of the hour in which requests were in flight.", least=HOURS),
    ]
    calls: Annotated[
        tuple[Annotated[float, number(-1)], ...],
        items(HOURS, told="How often per hour requests began after a pause.", least=HOURS),
    ]
    recent_busy: Annotated[
        int,
        whole(
            32,
            "Thousandths of about the last quarter of an hour in which requests were in flight.",
            most=1000,
        ),
    ] = 0
    recent_calls: Annotated[float, number()] = 0.0


@dataclass(frozen=True, slots=True)
class SeatRow:
    """What a seat does."""

    __pydantic_config__ = CAMEL
    uid: Annotated[str, text(128, _POD_UID, least=1)]
    name: Annotated[str, text(63, least=1)]
    group: Annotated[str, text(52, least=1)]
    namespace: Annotated[str, text(63)]
    pod: Annotated[str, text(253)]
    state: Annotated[str, one_of(_STATES)]
    model: Annotated[str, text(1024)] = ""
    tier: Annotated[str | None, one_of(Tier, "Tier in which the parked seat rests.")] = None
    saved_bytes: Annotated[
        int | None, whole(told="Size of the seat's artifact, if the seat is offloaded (bytes).")
    ] = None
    copied_bytes: Annotated[
        int | None,
        whole(
            told="How much of savedBytes has been copied, while the artifact is copied to or from "
            "the object store (bytes); told every 5 s."
        ),
    ] = None
    held_bytes: Annotated[
        int | None,
        whole(
            told="GPU memory that the agent has seen the seat hold, rounded up by a fifth at most "
            "(bytes)."
        ),
    ] = None
    reason: Annotated[str, text(LONGEST_MESSAGE)] = ""
    since: Annotated[str | None, TIME] = None
    requests: Annotated[int, whole()] = 0
    active_seconds: Annotated[float, number()] = 0.0
    wakes: Annotated[int, whole()] = 0
    last_wake_ms: Annotated[float, number(nullable=True)] = 0.0
    activity: Annotated[
        Activity | None,
        Field(
            description="At which hours the seat is used: 24 numbers, one for each hour of the "
            "day in UTC. Newer days weigh more; -1: the agent hasn't seen that hour "
            "yet."
        ),
    ] = None
    operation: Annotated[
        str,
        text(63, "Operation that is under way for the seat, such as park, evict, save or move."),
    ] = ""
    movable: Annotated[
        bool,
        flag(
            "True: a GPU of the seat's group is lost, and the seat is parked, so its pod can "
            "continue elsewhere."
        ),
    ] = False
    movable_reason: Annotated[str, text(LONGEST_MESSAGE)] = ""


@dataclass(frozen=True, slots=True)
class Use:
    """What the namespace has used since the window of its Share began."""

    __pydantic_config__ = CAMEL
    since: Annotated[str | None, TIME] = None
    gpu_seconds: Annotated[
        float, number(description="GPU-seconds in which the namespace's seats were active.")
    ] = 0.0
    parked_gib_hours: Annotated[
        float,
        Field(alias="parkedGiBHours"),
        number(description="GiB of RAM that the namespace's parked seats took, times hours."),
    ] = 0.0
    wakes: Annotated[int, whole(told="Wakes of the namespace's seats.")] = 0
    parked_bytes: Annotated[
        int, whole(told="RAM of all nodes that the namespace's parked seats take now (bytes).")
    ] = 0


@dataclass(frozen=True, slots=True)
class UseRow:
    """What a namespace with a Share has used of the node."""

    __pydantic_config__ = CAMEL
    namespace: Annotated[str, text(63, least=1)]
    used: Use


@dataclass(frozen=True, slots=True)
class Summary:
    """The node in a line, for `kubectl get`."""

    __pydantic_config__ = CAMEL
    gpus: Annotated[int, whole(32, "GPUs that are healthy.")] = 0
    seats: Annotated[str, text(32, "Seats that are active, parked and free: 1/3/4.")] = ""
    ram_percent: Annotated[
        int | None, whole(32, "What parked seats take of the RAM that they may take.")
    ] = None
    nvme_percent: Annotated[
        int | None, whole(32, "What is used of the NVMe that there is for artifacts.")
    ] = None


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a GPUNode."""

    __pydantic_config__ = CAMEL
    observed_generation: Annotated[int, whole()] = 1
    conditions: Annotated[tuple[Condition, ...], items(16, "type")] = ()
    agent: Annotated[
        AgentAddress | None,
        Field(description="How to reach the agent by gRPC, and its version."),
    ] = None
    driver: Driver | None = None
    device_strategy: Annotated[
        str,
        one_of(
            ["", "cdi", "nodes"],
            "How containers get their GPUs. cdi: by CDI device names. nodes: by the device ID "
            "that the kubelet allocates, so only pods of one group may be on their way to the "
            "node at a time.",
        ),
    ] = ""
    gpus: Annotated[tuple[GpuRow, ...], items(64, "uuid")] = ()
    links: Annotated[
        tuple[LinkRow, ...],
        items(2016, "atomic", "The best path between two GPUs, one entry per pair."),
    ] = ()
    groups: Annotated[tuple[GroupRow, ...], items(256, "name")] = ()
    budget: Annotated[Budget | None, Field(description="Host memory for parked seats.")] = None
    tiers: Annotated[
        tuple[TierRow, ...],
        items(3, "name", "Tiers in which parked seats may rest, from the fastest to the deepest."),
    ] = ()
    saved: Annotated[
        tuple[ArtifactRow, ...],
        items(
            MOST_SAVED,
            "artifact tier",
            "Artifacts that lie on the node, or that the node has put into the object store: the "
            "newest ones.",
        ),
    ] = ()
    seats: Annotated[tuple[SeatRow, ...], items(1024, "uid")] = ()
    summary: Annotated[Summary | None, Field(description="The node in a line.")] = None
    usage: Annotated[
        tuple[UseRow, ...],
        items(
            MOST_USES,
            "namespace",
            "What namespaces with a Share have used on this node, written every "
            "`usage_interval_s`.",
        ),
    ] = ()

    def dump(self) -> Json:
        """As the API server has it."""
        found: Json = _statuses().dump_python(self, mode="json", by_alias=True, exclude_none=True)
        return found


@dataclass(frozen=True, slots=True)
class GPUNode:
    """The object as a whole; its name is the node's."""

    __pydantic_config__ = CAMEL
    status: Status | None = None


@cache
def _statuses() -> TypeAdapter[Status]:
    """Made when first needed: it takes 30 ms, for which seats wait in an agent's start."""
    return TypeAdapter(Status)


def read_status(item: Json) -> tuple[str, Status]:
    """A GPUNode's name, and its status, empty if its agent has written none. Pure.

    Raises ConfigError, naming it, for one that this version can't read.
    """
    name = text_of(mapping(item.get("metadata")).get("name"))
    try:
        return name, _statuses().validate_python(item.get("status") or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"GPUNode {name}", f"status.{where}: {first['msg']}") from error
