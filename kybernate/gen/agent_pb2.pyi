from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Gpu(_message.Message):
    __slots__ = ("uuid", "index", "product", "memory_bytes", "numa", "healthy", "trouble")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    product: str
    memory_bytes: int
    numa: int
    healthy: bool
    trouble: str
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., product: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., numa: _Optional[int] = ..., healthy: _Optional[bool] = ..., trouble: _Optional[str] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("a", "b", "kind")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    kind: str
    def __init__(self, a: _Optional[str] = ..., b: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "resource", "gpus", "seats", "active_slots")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    resource: str
    gpus: _containers.RepeatedScalarFieldContainer[str]
    seats: int
    active_slots: int
    def __init__(self, name: _Optional[str] = ..., resource: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ..., seats: _Optional[int] = ..., active_slots: _Optional[int] = ...) -> None: ...

class ReportInventoryRequest(_message.Message):
    __slots__ = ("gpus", "links", "groups", "driver_version", "cuda_version", "device_strategy")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    driver_version: str
    cuda_version: str
    device_strategy: str
    def __init__(self, gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ..., device_strategy: _Optional[str] = ...) -> None: ...

class ReportInventoryResponse(_message.Message):
    __slots__ = ("park_budget_bytes", "held_groups")
    PARK_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_GROUPS_FIELD_NUMBER: _ClassVar[int]
    park_budget_bytes: int
    held_groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, park_budget_bytes: _Optional[int] = ..., held_groups: _Optional[_Iterable[str]] = ...) -> None: ...

class Attendance(_message.Message):
    __slots__ = ("unlisted",)
    UNLISTED_FIELD_NUMBER: _ClassVar[int]
    unlisted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unlisted: _Optional[_Iterable[str]] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AwaitedGroupsRequest(_message.Message):
    __slots__ = ("resource",)
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    resource: str
    def __init__(self, resource: _Optional[str] = ...) -> None: ...

class AwaitedGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[str]] = ...) -> None: ...

class PrepareSeatRequest(_message.Message):
    __slots__ = ("resource", "device_ids")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    resource: str
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource: _Optional[str] = ..., device_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PrepareSeatResponse(_message.Message):
    __slots__ = ("seat", "group")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    seat: str
    group: str
    def __init__(self, seat: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class WatchHoldingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Holdings(_message.Message):
    __slots__ = ("park_budget_bytes", "parked_bytes", "seats")
    PARK_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    park_budget_bytes: int
    parked_bytes: int
    seats: _containers.RepeatedCompositeFieldContainer[HeldSeat]
    def __init__(self, park_budget_bytes: _Optional[int] = ..., parked_bytes: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[HeldSeat, _Mapping]]] = ...) -> None: ...

class HeldSeat(_message.Message):
    __slots__ = ("device_id", "group", "vram_bytes")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VRAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    group: str
    vram_bytes: int
    def __init__(self, device_id: _Optional[str] = ..., group: _Optional[str] = ..., vram_bytes: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Seat(_message.Message):
    __slots__ = ("uid", "name", "group", "namespace", "pod", "model", "state", "address", "in_flight", "waiting", "wakes", "last_wake_ms", "active_seconds", "requests", "reason", "generation", "movable", "movable_reason", "since", "held_bytes", "unparkable", "leave", "tier", "saved_bytes", "undumpable", "wake_seconds", "refused", "weight", "predecessor", "wake_measured")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAKES_FIELD_NUMBER: _ClassVar[int]
    LAST_WAKE_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNPARKABLE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNDUMPABLE_FIELD_NUMBER: _ClassVar[int]
    WAKE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_FIELD_NUMBER: _ClassVar[int]
    WAKE_MEASURED_FIELD_NUMBER: _ClassVar[int]
    uid: str
    name: str
    group: str
    namespace: str
    pod: str
    model: str
    state: str
    address: str
    in_flight: int
    waiting: int
    wakes: int
    last_wake_ms: float
    active_seconds: float
    requests: int
    reason: str
    generation: int
    movable: bool
    movable_reason: str
    since: float
    held_bytes: int
    unparkable: str
    leave: str
    tier: str
    saved_bytes: int
    undumpable: str
    wake_seconds: float
    refused: str
    weight: float
    predecessor: str
    wake_measured: bool
    def __init__(self, uid: _Optional[str] = ..., name: _Optional[str] = ..., group: _Optional[str] = ..., namespace: _Optional[str] = ..., pod: _Optional[str] = ..., model: _Optional[str] = ..., state: _Optional[str] = ..., address: _Optional[str] = ..., in_flight: _Optional[int] = ..., waiting: _Optional[int] = ..., wakes: _Optional[int] = ..., last_wake_ms: _Optional[float] = ..., active_seconds: _Optional[float] = ..., requests: _Optional[int] = ..., reason: _Optional[str] = ..., generation: _Optional[int] = ..., movable: _Optional[bool] = ..., movable_reason: _Optional[str] = ..., since: _Optional[float] = ..., held_bytes: _Optional[int] = ..., unparkable: _Optional[str] = ..., leave: _Optional[str] = ..., tier: _Optional[str] = ..., saved_bytes: _Optional[int] = ..., undumpable: _Optional[str] = ..., wake_seconds: _Optional[float] = ..., refused: _Optional[str] = ..., weight: _Optional[float] = ..., predecessor: _Optional[str] = ..., wake_measured: _Optional[bool] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "gpus", "links", "groups", "seats", "used_bytes", "park_budget_bytes", "parked_bytes", "draining", "version", "tiers")
    class UsedBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARK_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    node: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    seats: _containers.RepeatedCompositeFieldContainer[Seat]
    used_bytes: _containers.ScalarMap[str, int]
    park_budget_bytes: int
    parked_bytes: int
    draining: str
    version: str
    tiers: _containers.RepeatedCompositeFieldContainer[TierUse]
    def __init__(self, node: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., seats: _Optional[_Iterable[_Union[Seat, _Mapping]]] = ..., used_bytes: _Optional[_Mapping[str, int]] = ..., park_budget_bytes: _Optional[int] = ..., parked_bytes: _Optional[int] = ..., draining: _Optional[str] = ..., version: _Optional[str] = ..., tiers: _Optional[_Iterable[_Union[TierUse, _Mapping]]] = ...) -> None: ...

class TierUse(_message.Message):
    __slots__ = ("name", "seats", "used_bytes", "budget_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    seats: int
    used_bytes: int
    budget_bytes: int
    def __init__(self, name: _Optional[str] = ..., seats: _Optional[int] = ..., used_bytes: _Optional[int] = ..., budget_bytes: _Optional[int] = ...) -> None: ...

class ParkRequest(_message.Message):
    __slots__ = ("name", "uid", "why", "dry_run", "tier", "deadline_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    why: str
    dry_run: bool
    tier: str
    deadline_seconds: float
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ..., tier: _Optional[str] = ..., deadline_seconds: _Optional[float] = ...) -> None: ...

class WakeRequest(_message.Message):
    __slots__ = ("name", "uid", "why", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    why: str
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("name", "uid", "why", "dry_run", "deadline_seconds", "tier", "precopy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PRECOPY_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    why: str
    dry_run: bool
    deadline_seconds: float
    tier: str
    precopy: bool
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ..., deadline_seconds: _Optional[float] = ..., tier: _Optional[str] = ..., precopy: _Optional[bool] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("name", "uid", "why", "dry_run", "tier", "deadline_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    why: str
    dry_run: bool
    tier: str
    deadline_seconds: float
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ..., tier: _Optional[str] = ..., deadline_seconds: _Optional[float] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("name", "artifact", "why", "dry_run", "tier", "deadline_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    artifact: str
    why: str
    dry_run: bool
    tier: str
    deadline_seconds: float
    def __init__(self, name: _Optional[str] = ..., artifact: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ..., tier: _Optional[str] = ..., deadline_seconds: _Optional[float] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("name", "uid", "why", "dry_run", "deadline_seconds", "successor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    why: str
    dry_run: bool
    deadline_seconds: float
    successor: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ..., deadline_seconds: _Optional[float] = ..., successor: _Optional[str] = ...) -> None: ...

class EvacuateRequest(_message.Message):
    __slots__ = ("name", "why", "dry_run", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    dry_run: bool
    seconds: float
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ..., seconds: _Optional[float] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("name", "why", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class UndrainNodeRequest(_message.Message):
    __slots__ = ("name", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class CancelOperationRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropSnapshotRequest(_message.Message):
    __slots__ = ("name", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class DropSnapshotResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: str
    def __init__(self, artifact: _Optional[str] = ...) -> None: ...

class GetOperationRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListOperationsRequest(_message.Message):
    __slots__ = ("ended_too",)
    ENDED_TOO_FIELD_NUMBER: _ClassVar[int]
    ended_too: bool
    def __init__(self, ended_too: _Optional[bool] = ...) -> None: ...

class ListOperationsResponse(_message.Message):
    __slots__ = ("operations",)
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("name", "kind", "uid", "namespace", "pod", "state", "sentence", "why", "by", "created_at", "started_at", "ended_at", "due_at", "phases", "done", "total", "saved", "plan", "dry_run", "tier", "artifact", "successor", "report", "bytes_done", "bytes_total")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    uid: str
    namespace: str
    pod: str
    state: str
    sentence: str
    why: str
    by: str
    created_at: float
    started_at: float
    ended_at: float
    due_at: float
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    done: int
    total: int
    saved: Saved
    plan: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    tier: str
    artifact: str
    successor: str
    report: _containers.RepeatedScalarFieldContainer[str]
    bytes_done: int
    bytes_total: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., uid: _Optional[str] = ..., namespace: _Optional[str] = ..., pod: _Optional[str] = ..., state: _Optional[str] = ..., sentence: _Optional[str] = ..., why: _Optional[str] = ..., by: _Optional[str] = ..., created_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., due_at: _Optional[float] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., plan: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ..., tier: _Optional[str] = ..., artifact: _Optional[str] = ..., successor: _Optional[str] = ..., report: _Optional[_Iterable[str]] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("tier", "bytes", "outlives_pod")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTLIVES_POD_FIELD_NUMBER: _ClassVar[int]
    tier: str
    bytes: int
    outlives_pod: bool
    def __init__(self, tier: _Optional[str] = ..., bytes: _Optional[int] = ..., outlives_pod: _Optional[bool] = ...) -> None: ...

class ProxyReport(_message.Message):
    __slots__ = ("hello", "demand", "drained")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    demand: Demand
    drained: Drained
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("proxy", "version")
    PROXY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    proxy: str
    version: int
    def __init__(self, proxy: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("uid", "in_flight", "waiting", "oldest_wait_seconds", "requests", "traceparent", "idle")
    UID_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    uid: str
    in_flight: int
    waiting: int
    oldest_wait_seconds: float
    requests: int
    traceparent: str
    idle: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, uid: _Optional[str] = ..., in_flight: _Optional[int] = ..., waiting: _Optional[int] = ..., oldest_wait_seconds: _Optional[float] = ..., requests: _Optional[int] = ..., traceparent: _Optional[str] = ..., idle: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("uid", "generation")
    UID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    uid: str
    generation: int
    def __init__(self, uid: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class AgentOrder(_message.Message):
    __slots__ = ("seat", "gone", "grant", "drain", "revoke", "proxies")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    PROXIES_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    gone: SeatGone
    grant: Lease
    drain: Lease
    revoke: Lease
    proxies: Proxies
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., gone: _Optional[_Union[SeatGone, _Mapping]] = ..., grant: _Optional[_Union[Lease, _Mapping]] = ..., drain: _Optional[_Union[Lease, _Mapping]] = ..., revoke: _Optional[_Union[Lease, _Mapping]] = ..., proxies: _Optional[_Union[Proxies, _Mapping]] = ...) -> None: ...

class Proxies(_message.Message):
    __slots__ = ("connected", "takes_back")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    TAKES_BACK_FIELD_NUMBER: _ClassVar[int]
    connected: int
    takes_back: bool
    def __init__(self, connected: _Optional[int] = ..., takes_back: _Optional[bool] = ...) -> None: ...

class SeatGone(_message.Message):
    __slots__ = ("uid",)
    UID_FIELD_NUMBER: _ClassVar[int]
    uid: str
    def __init__(self, uid: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("uid", "generation")
    UID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    uid: str
    generation: int
    def __init__(self, uid: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...
