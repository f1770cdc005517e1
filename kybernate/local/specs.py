"""A model as the box runs it, and the seat that it has."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.api.turns import VRAM
from kybernate.dataclass import dataclass
from kybernate.types import Group, GroupName, PodRef, PodUid, SeatName, Tier
from nodeagent.seat.record import Seat, SeatIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kybernate.types import Gpu

NAMESPACE = "box"
ANY = "any"
"""The group of models that may be on any GPU."""
SLOTS = 256
"""Of a group: what limits how many models are active at once is their memory."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is to run. `address` is host:port, `check` the path that answers 200 once it serves, ""
    if it serves once it listens. `gpus`: how many, or their indices; None for all. `vram`: bytes on
    each of them, None for all of them. Seconds: `ttl` until it is parked for idleness, `ram_idle`
    until it leaves RAM, 0 for never; `grace` between SIGTERM and SIGKILL. `preload`: it is started
    at once. `secrets`: values; no variable that has one is passed on to it. `weight`: of one that
    takes turns: it is active also while nobody asks it; None of others. `cooperate`: how its server
    does its own part of a park and a wake, "" if it has none; `base`: what its paths begin with.
    `measured`: bytes as `vram`, where the file says nothing, None before its first park.
    `ready_within`: seconds after which an answer comes too late, None if nobody says so."""

    name: str
    argv: tuple[str, ...]
    address: str
    env: tuple[tuple[str, str], ...] = ()
    check: str = ""
    gpus: int | tuple[int, ...] | None = 1
    vram: int | None = None
    ttl: float = 0.0
    ram_idle: float = 0.0
    grace: float = 10.0
    start_limit: float = 120.0
    preload: bool = False
    pin: bool = False
    priority: int = 0
    secrets: frozenset[str] = frozenset()
    weight: float | None = None
    cooperate: str = ""
    base: str = ""
    measured: int | None = None
    ready_within: float | None = None

    @property
    def port(self) -> int:
        """Of its address."""
        return int(self.address.rpartition(":")[2])

    @property
    def anywhere(self) -> bool:
        """Whether any one GPU of the box will do, now this one and now that."""
        return self.gpus == 1

    @property
    def by_parks(self) -> bool:
        """Whether its parks measure what it takes. Of one whose server does its own part the driver
        puts away only what that has left."""
        return self.vram is None and not self.cooperate

    def uid(self, gpus: Iterable[Gpu]) -> PodUid:
        """Names a seat of just this: a model that is started otherwise has another one."""
        where = ANY if self.anywhere else [gpu.uuid for gpu in gpus]
        what = [self.name, self.argv, self.address, self.env, self.vram, where]
        return PodUid(f"model-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]}")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a file says of a seat that may change while it runs; see `nodeagent`'s wishes."""

    idle: Mapping[str, float] = field(default_factory=dict)
    park_tier: Tier = Tier.NVME
    ready_within: float | None = None
    ready_active: bool = False
    weight: float | None = None
    min_residency: float | None = None
    max_wait: float | None = None
    prefetch: float | None = None
    priority: int = 0
    keep_connections: bool = False
    spec_hash: str = ""


def declared(spec: ModelSpec) -> Declared:
    """Of a model."""
    idle = {VRAM: spec.ttl} if spec.ttl and spec.weight is None else {}
    if spec.ram_idle:
        idle[Tier.RAM.value] = spec.ram_idle
    return Declared(
        idle, ready_within=spec.ready_within, weight=spec.weight, priority=spec.priority
    )


def any_of(gpus: tuple[Gpu, ...]) -> Group:
    """The group of all who may be on any of these GPUs."""
    return Group(GroupName(ANY), "", tuple(gpu.uuid for gpu in gpus), SLOTS, SLOTS)


def group_of(gpus: tuple[Gpu, ...]) -> Group:
    """The group of just these GPUs."""
    name = "gpu-" + "-".join(str(gpu.index) for gpu in gpus)
    return Group(GroupName(name), "", tuple(gpu.uuid for gpu in gpus), SLOTS, SLOTS)


def seat_of(spec: ModelSpec, gpus: tuple[Gpu, ...], now: float, wall: float) -> Seat:
    """A new seat for the model. Of one that may be anywhere, `gpus` are where it would go first."""
    uid, group = spec.uid(gpus), group_of(gpus)
    identity = SeatIdentity(
        pod=PodRef(NAMESPACE, spec.name, uid),
        container="",
        resource="",
        device_id=uid,
        name=SeatName(spec.name),
        group=GroupName(ANY) if spec.anywhere else group.name,
        gpus=group.gpus,
        vram=spec.measured if spec.by_parks else spec.vram,
        model=spec.name,
        image="",
        port=spec.port,
        grace=spec.grace,
        anywhere=spec.anywhere,
    )
    seat = Seat(identity, now, wall)
    seat.contact.moved(spec.address.rpartition(":")[0])
    seat.wishes.declared(declared(spec))
    if not spec.preload:
        seat.ending.starts_on_demand()
    return seat


def placed(specs: Iterable[ModelSpec], gpus: tuple[Gpu, ...]) -> dict[str, tuple[Gpu, ...]]:
    """The GPUs of each model by its name, the same for the same file: indices as the file says, and
    a count where the least is declared so far. A model that wants what the box hasn't got is left
    out."""
    load = {gpu.index: 0 for gpu in gpus}
    found: dict[str, tuple[Gpu, ...]] = {}
    for spec in specs:
        chosen = _choose(spec, gpus, load)
        if not chosen:
            continue
        found[spec.name] = chosen
        for gpu in chosen:
            load[gpu.index] += gpu.memory if spec.vram is None else spec.vram
    return found


def why_left_out(spec: ModelSpec, gpus: tuple[Gpu, ...]) -> str:
    """What a model asks for that the box hasn't got, and what it has."""
    has = ", ".join(f"{gpu.index} ({_mib(gpu.memory)})" for gpu in gpus) or "none that is healthy"
    return f"model {spec.name} is left out: it asks for {_wants(spec)}; GPUs here: {has}"


def _wants(spec: ModelSpec) -> str:
    if spec.gpus is None:
        return "all GPUs"
    if isinstance(spec.gpus, tuple):
        return f"the GPUs {', '.join(map(str, spec.gpus))} (gpus)"
    memory = "" if spec.vram is None else f", with {_mib(spec.vram)} each (vram)"
    return f"{spec.gpus} of the GPUs (gpus){memory}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _choose(spec: ModelSpec, gpus: tuple[Gpu, ...], load: Mapping[int, int]) -> tuple[Gpu, ...]:
    by_index = {gpu.index: gpu for gpu in gpus}
    if isinstance(spec.gpus, tuple):
        wanted = spec.gpus
    elif spec.gpus is None:
        wanted = tuple(by_index)
    else:
        fitting = [gpu for gpu in gpus if spec.vram is None or gpu.memory >= spec.vram]
        ranked = sorted(fitting, key=lambda gpu: (load[gpu.index], gpu.index))[: spec.gpus]
        wanted = tuple(sorted(gpu.index for gpu in ranked)) if len(ranked) == spec.gpus else (-1,)
    if not all(index in by_index for index in wanted):
        return ()
    return tuple(by_index[index] for index in wanted)
