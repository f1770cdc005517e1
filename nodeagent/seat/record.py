"""A seat as the agent's loop holds it, and its form in the journal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kybernate.api.turns import VRAM
from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.core.swap.swapview import SeatView, Turn
from kybernate.types import GpuUuid, GroupName, PodRef, PodUid, SeatName, SeatState, Tier, of_record

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from kybernate.ports import GateHello


_PLAIN = (
    "reason",
    "generation",
    "lease",
    "address",
    "pod_ip",
    "handle",
    "active_since",
    "active_seconds",
    "wakes",
    "last_wake_ms",
    "requests",
    "started_once",
    "image_mode",
    "keep_connections",
    "starting_since",
    "asked_since",
    "leave",
    "stays_away",
    "on_demand",
    "ending",
    "ending_since",
    "artifact",
    "images",
    "needs",
    "paging",
    "unsealed",
    "saved",
    "first",
    "park_tier",
    "tier_asked",
    "used_at",
    "moved_at",
    "ready_within",
    "spec_hash",
    "borrowed",
    "predecessor",
    "claimed",
    "weight",
    "acquired",
    "rests",
)
"""Fields that go into the journal as they are. A journal of an older release may lack some."""

_BEGINS = (SeatState.WAITING, SeatState.STARTING)

_read_plain = attrgetter(*_PLAIN)


class Begins(StrEnum):
    """How a seat's workload begins, as far as it is settled."""

    OPEN = ""
    """If its pod names a state to go on from, that is still looked for."""
    ADOPTING = "adopting"
    """By a state that it may have: its kyb-init is being told, or was."""
    ADOPTED = "adopted"
    ANEW = "anew"
    """By its command, since the state that its pod names can't be had."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, named exactly: PID and start time in clock ticks since boot."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class SeatIdentity:
    """What never changes about a seat. `vram` in bytes per GPU, None for the whole GPU.

    `device_id` is the kubelet's token; `port` the first containerPort; `has_args` whether the
    pod names arguments (then the image's CMD is not used); `priority` is the pod's, and
    `grace` the seconds that the kubelet waits between SIGTERM and SIGKILL. `namespace_uid` tells
    the pod's namespace from an earlier one of its name; empty if it could not be read.
    """

    pod: PodRef
    container: str
    resource: str
    device_id: str
    name: SeatName
    group: GroupName
    gpus: tuple[GpuUuid, ...]
    vram: int | None
    model: str
    image: str
    port: int | None = None
    has_args: bool = False
    priority: int = 0
    grace: float = 30.0
    namespace_uid: str = ""


@dataclass(slots=True, eq=False)
class Seat:
    """One seat. Owned by the loop: nothing else writes to it.

    Times: `since` is wall-clock seconds, all others are of the loop's monotonic clock.
    `generation` counts starts of the command, `lease` the times that it was granted to proxies.
    `held` is bytes per GPU that its processes held when it was last parked.
    `asked_since`: since when somebody other than a proxy wants it awake. `leave`: why it must
    leave GPU memory though nobody needs its GPUs; with `stays_away` also when it has.
    `unparkable`: why it can't be parked now, as of the last decision. `forfeit`: why it is ended
    instead of parked; `on_demand`: having ended so, it starts again only when called for.
    `apart`: it was found running without a record, and is not yet known to be where its state says.
    Of a seat parked below RAM: `artifact` is its saved state, `images` a folder into which it was
    fetched, `needs` what machine that was saved on, `paging` the saved state from which its memory
    still comes in, `saved` its bytes, `first` those of them that were on its GPUs and that also a
    lazy restore brings in at once, `copies` the tiers that hold it verified, `inner` the PIDs in
    the container of its processes on the GPUs, in the order of `cuda`. `park_tier`: how deep its
    pod lets it go; `tier_asked`: where an operator wants it; `used_at`: when it was last in GPU
    memory; `moved_at`: when it last changed tiers; `sinks_to`: where its state is being copied to;
    `to_save`: a copy of its state is to be written next; `undumpable`: why it stays in RAM;
    `unlooked`: nobody has looked yet whether something arrived at its sockets since it was frozen.
    `restore`: which saved state its pod wants to go on from, and `begins` whether it does.
    `predecessor`: the pod that it succeeds, if any, and `claimed` from which of its states.
    `borrowed`: `artifact` is another pod's state, which may be dropped from the tiers `may_drop`
    once the seat has gone on; `gpu_map`: GPUs of that state and, for each, the seat's own.
    `unsealed`: its container ended while it was written down, and a state of it may lie somewhere
    that nobody needs. `ready_within` (s): what is a timely wake; `spec_hash`: what
    its container is. `weight`: of a seat that always wants its GPUs, None if it waits for requests;
    `acquired`: its workload says that it wants them until it says otherwise; `yields`: that it
    gives up the turn that it has; `rests`: it was sent away, and wants nothing until called for.
    `idle` (s): unused for so long it leaves GPU memory, or the tier of that name; `untimely`: a
    wake from RAM takes longer than `ready_within`. `ending`: its
    container was asked to end, or its tree is being killed; `doomed`: the pod is being deleted;
    `deleted`: the pod is gone.
    """

    identity: SeatIdentity
    bound_at: float
    since: float
    state: SeatState = SeatState.WAITING
    reason: str = ""
    generation: int = 0
    lease: int = 0
    address: str = ""
    pod_ip: str = ""
    init: Process | None = None
    tree: Process | None = None
    handle: str = ""
    cuda: tuple[Process, ...] = ()
    held: Mapping[GpuUuid, int] = field(default_factory=dict)
    active_since: float | None = None
    active_seconds: float = 0.0
    wakes: int = 0
    last_wake_ms: float = 0.0
    requests: int = 0
    started_once: bool = False
    ending: bool = False
    ending_since: float = 0.0
    starting_since: float | None = None
    artifact: str = ""
    images: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    paging: str = ""
    unsealed: bool = False
    saved: int = 0
    first: int = 0
    copies: frozenset[Tier] = frozenset()
    inner: tuple[int, ...] = ()
    park_tier: str = Tier.OBJECT.value
    tier_asked: str = ""
    used_at: float = 0.0
    moved_at: float | None = None
    ready_within: float | None = None
    spec_hash: str = ""
    restore: RestoreWish | None = None
    begins: Begins = Begins.OPEN
    borrowed: bool = False
    predecessor: str = ""
    claimed: str = ""
    weight: float | None = None
    acquired: bool = False
    rests: bool = False
    idle: Mapping[str, float] = field(default_factory=dict)
    may_drop: tuple[str, ...] = ()
    gpu_map: Mapping[GpuUuid, GpuUuid] = field(default_factory=dict)
    # Known only while this agent runs.
    connected: bool = False
    apart: bool = False
    doomed: bool = False
    deleted: bool = False
    image_mode: bool = False
    keep_connections: bool = False
    next_hello: GateHello | None = None
    in_flight: int = 0
    waiting: int = 0
    waiting_since: float | None = None
    idle_since: float | None = None
    drain_since: float | None = None
    not_before: float = 0.0
    stays_until: float = 0.0
    asked_since: float | None = None
    leave: str = ""
    stays_away: bool = False
    unparkable: str = ""
    undumpable: str = ""
    yields: bool = False
    untimely: bool = False
    unlooked: bool = False
    move_not_before: float = 0.0
    sinks_to: Tier | None = None
    to_save: bool = False
    failed_restores: int = 0
    waiting_restores: int = 0
    unsure_restores: int = 0
    lacking_since: float = 0.0
    forfeit: str = ""
    on_demand: bool = False
    complain_at: dict[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    work: asyncio.Task[None] | None = None
    watch: asyncio.Task[None] | None = None
    _shown: SeatView | None = None
    _shown_of: tuple[object, ...] = ()

    @property
    def uid(self) -> PodUid:
        """The pod's UID, the seat's key everywhere."""
        return self.identity.pod.uid

    @property
    def called(self) -> bool:
        """Whether somebody wants it awake."""
        return self.asked_since is not None or self.waiting > 0

    @property
    def awaits_state(self) -> bool:
        """Whether it is not yet settled if it goes on from a saved state."""
        return self.restore is not None and self.begins in (Begins.OPEN, Begins.ADOPTING)

    @property
    def turn(self) -> Turn | None:
        """Its part in taking turns, if it does that now. Its first start is no turn: whoever waits
        for its pod to be Ready waits for that."""
        if self.state in _BEGINS and not self.started_once:
            return None
        if self.rests or self.ending or (self.weight is None and not self.acquired):
            return None
        return Turn(self.identity.pod.namespace, self.weight or 1.0, self.yields)

    def __str__(self) -> str:
        return f"{self.identity.name} ({self.identity.pod})"

    @property
    def _can_begin(self) -> bool:
        there = self.connected and not self.ending and not self.apart
        return there and not self.awaits_state

    def view(self, *, drained: bool) -> SeatView:
        """What the swap decision sees. A seat that is ending asks for nothing.

        The same object as the last time, unless something has changed.
        """
        # In the order of SeatView's fields, after those that never change.
        now = (
            self.state,
            self.bound_at,
            self.active_since,
            self.idle_since,
            self.in_flight,
            0 if self.ending else self.waiting,
            self.waiting_since,
            drained,
            self.drain_since,
            self._can_begin,
            self.identity.priority,
            self.not_before,
            self.stays_until,
            None if self.ending else self.asked_since,
            self.leave,
            self.unparkable,
            self.on_demand,
            self.apart,
            self.turn,
            None if self.untimely else self.idle.get(VRAM),
        )
        if self._shown is None or now != self._shown_of:
            one = self.identity
            gpus = frozenset(one.gpus)
            self._shown = SeatView(one.pod.uid, one.name, one.group, gpus, one.vram, *now)
            self._shown_of = now
        return self._shown

    def record(self) -> dict[str, object]:
        """The journal's form; `from_record` reads it."""
        one = self.identity
        return {
            "namespace": one.pod.namespace,
            "pod": one.pod.name,
            "uid": one.pod.uid,
            "container": one.container,
            "resource": one.resource,
            "device_id": one.device_id,
            "name": one.name,
            "group": one.group,
            "gpus": list(one.gpus),
            "vram": one.vram,
            "model": one.model,
            "image": one.image,
            "port": one.port,
            "has_args": one.has_args,
            "priority": one.priority,
            "grace": one.grace,
            "namespace_uid": one.namespace_uid,
            "state": self.state.value,
            "bound_at": self.bound_at,
            "since": self.since,
            "init": _pair(self.init),
            "tree": _pair(self.tree),
            "cuda": [_pair(process) for process in self.cuda],
            "held": dict(self.held),
            "copies": sorted(self.copies),
            "idle": dict(self.idle),
            "inner": list(self.inner),
            "restore": asdict(self.restore) if self.restore else None,
            "begins": self.begins.value,
            "may_drop": list(self.may_drop),
            "gpu_map": dict(self.gpu_map),
            **dict(zip(_PLAIN, _read_plain(self), strict=True)),
        }


def from_record(record: Mapping[str, Any]) -> Seat:
    """The seat that `Seat.record` wrote."""
    identity = SeatIdentity(
        pod=PodRef(record["namespace"], record["pod"], PodUid(record["uid"])),
        container=record["container"],
        resource=record["resource"],
        device_id=record["device_id"],
        name=SeatName(record["name"]),
        group=GroupName(record["group"]),
        gpus=tuple(GpuUuid(gpu) for gpu in record["gpus"]),
        vram=record["vram"],
        model=record["model"],
        image=record["image"],
        port=record["port"],
        has_args=record["has_args"],
        priority=record.get("priority", 0),
        grace=record.get("grace", 30.0),
        namespace_uid=record.get("namespace_uid", ""),
    )
    seat = Seat(identity, record["bound_at"], record["since"], SeatState(record["state"]))
    for name in _PLAIN:
        if name in record:
            setattr(seat, name, record[name])
    seat.init, seat.tree = _process(record["init"]), _process(record["tree"])
    seat.cuda = tuple(Process(pid, start) for pid, start in record["cuda"])
    seat.held = {GpuUuid(gpu): size for gpu, size in record["held"].items()}
    seat.copies = frozenset(Tier(tier) for tier in record.get("copies", ()))
    seat.idle = dict(record.get("idle", {}))
    seat.inner = tuple(record.get("inner", ()))
    if wish := record.get("restore"):
        seat.restore = of_record(RestoreWish, {**wish, "kind": RestoreAs(wish["kind"])})
    seat.begins = Begins(record.get("begins", ""))
    seat.may_drop = tuple(record.get("may_drop", ()))
    seat.gpu_map = {GpuUuid(old): GpuUuid(new) for old, new in record.get("gpu_map", {}).items()}
    return seat


def _pair(process: Process | None) -> list[int] | None:
    return [process.pid, process.start] if process else None


def _process(pair: list[int] | None) -> Process | None:
    return Process(*pair) if pair else None
