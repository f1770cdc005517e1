"""What a seed decides: the node, the pods, and what happens when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kybernate.types import Gpu, GpuUuid, Group, GroupName
from nodeagent.seat.node import Inventory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.artifacts.restores import RestoreWish

GIB = 1 << 30
MEMORY = 80 * GIB
WEATHER_CLEARS = 4.0
"""Virtual seconds of misfortunes."""

FAULTS = {
    "nvml": 0.03,
    "nvml-list": 0.03,
    "nvml-unsure": 0.03,
    "lock-timeout": 0.06,
    "lock-sticks": 0.02,
    "lock-kills": 0.02,
    "park-hangs": 0.03,
    "checkpoint-refused": 0.05,
    "checkpoint-fails": 0.03,
    "wake-hangs": 0.03,
    "restore-fails": 0.03,
    "remap-refused": 0.05,
    "states-hang": 0.03,
    "helper-dies": 0.03,
    "no-helper": 0.05,
    "freeze-fails": 0.05,
    "worker-begins": 0.03,
    "worker-joins": 0.5,
    "kill-fails": 0.2,
    "disk-full": 0.04,
    "not-cooperating": 0.1,
    "undumpable": 0.05,
    "dump-refused": 0.05,
    "dump-fails": 0.05,
    "dump-suspect": 0.05,
    "dump-hangs": 0.03,
    "end-hangs": 0.05,
    "keep-fails": 0.03,
    "restore-fails-criu": 0.08,
    "restore-hangs": 0.05,
    "begin-fails": 0.03,
    "seal-fails": 0.05,
    "seal-hangs": 0.03,
    "corrupt": 0.02,
    "fill-fails": 0.1,
    "pages-late": 0.1,
    "pages-lost": 0.03,
    "store-down": 0.2,
    "abandon-fails": 0.1,
    "drop-fails": 0.1,
    "shut-fails": 0.05,
    "open-fails": 0.1,
    "registry-down": 0.05,
    "registry-unheard": 0.05,
    "peer-down": 0.1,
    "peer-unheard": 0.1,
}
"""How often each kind of call fails while the weather is bad."""

EVENTS = {
    "burst": 14,
    "long-request": 5,
    "cancel": 3,
    "call": 3,
    "send-away": 3,
    "stay-away": 1,
    "let-stay": 1,
    "drain-node": 1,
    "undrain-node": 1,
    "no-room": 2,
    "room": 2,
    "create": 3,
    "delete": 3,
    "force-delete": 1,
    "container-dies": 3,
    "stray-term": 1,
    "worker-dies": 2,
    "lose-gpu": 2,
    "find-gpu": 3,
    "proxy-breaks": 3,
    "regroup": 1,
    "kill-agent": 3,
    "kill-at-write": 6,
}
"""Relative frequencies."""

TIER_EVENTS = {"to-nvme": 8, "to-object": 3, "to-ram": 1, "any-tier": 1, "arrive": 8}
"""Besides, where seats may be parked below RAM."""

BETWEEN = {"go-by-the-store": 6, "succeed": 4, "rivals": 3, "cut-off": 3}
"""What happens between two nodes."""

AGAIN = {**BETWEEN, "again": 12}
"""The same where a successor may be deleted before it continues, and another one comes."""

MOVES = {**BETWEEN, "move": 8, "move-within": 6}
"""The same where states also go from agent to agent, or from pod to pod of one node."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod. `size` in bytes per GPU that it really takes, `vram` what it declares; `restore` says
    whose state it goes on from. `weight`: of one that always wants its GPUs. `idle` (s): when it
    leaves GPU memory, or a tier. `ready_within` (s): when its answers are in time. `anywhere`: any
    one GPU of the node will do."""

    name: str
    group: Group
    vram: int | None
    size: int
    ranks: int
    delay: float
    priority: int
    ignores_term: bool
    restore: RestoreWish | None = None
    weight: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    ready_within: float | None = None
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """At `at` seconds; `draw` in 0…1 decides the rest."""

    at: float
    kind: str
    draw: float


@dataclass(slots=True)
class Plan:
    """A whole schedule. `kind` is storm, or kills: nothing but kills of the agent. `tiers`: seats
    may be parked below RAM, of which `ram` bytes are for parked seats, 0 for enough. `besides`:
    bytes of each seat that are on no GPU; many are restored lazily. `between` is what happens
    between this node and the next one."""

    seed: int
    kind: str
    rng: random.Random
    inventory: Inventory = field(default_factory=Inventory)
    pods: list[PodPlan] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    faults: dict[str, float] = field(default_factory=dict)
    lose_tail: bool = False
    lose_journal: bool = False
    spoil_journal: bool = False
    tiers: bool = False
    ram: int = 0
    besides: int = 0
    object_store: bool = False
    node: str = "n1"
    between: list[Event] = field(default_factory=list)


_WITH_TIERS = 0.7
_WITH_WISHES = (2, 3)
_WITH_LIMITS = (3, 4)
"""Of five seeds."""
_ONE_NODE, _ANYWHERE = ("storm", "kills"), 0.7
_PAIR_EVENTS = {
    "burst": 5,
    "to-object": 4,
    "to-nvme": 2,
    "arrive": 3,
    "kill-agent": 2,
    "kill-at-write": 8,
    "container-dies": 1,
    "delete": 1,
    "force-delete": 1,
}


def draw_plan(seed: int, kind: str = "storm") -> Plan:
    """The schedule of this seed."""
    rng = random.Random(f"{kind}-{seed}")
    plan = Plan(seed, kind, rng)
    plan.inventory = _inventory(rng, "")
    plan.pods = [another_pod(plan, number) for number in range(rng.randint(2, 4))]
    storm = kind == "storm"
    chosen = EVENTS if storm else {"burst": 8, "long-request": 1, "call": 1, "kill-at-write": 6}
    plan.tiers = rng.random() < _WITH_TIERS
    if plan.tiers:
        plan.ram = rng.choice([0, 2 * MEMORY, 3 * MEMORY, 5 * MEMORY])
        plan.besides = rng.choice([0, MEMORY])
        plan.object_store = rng.random() < 0.5
        chosen = {**chosen, **TIER_EVENTS}
    plan.events = _draw_events(rng, chosen, rng.randint(4, 14))
    if storm:
        _draw_weather(plan, rng.choice([0.0, 0.5, 1.0, 3.0]))
        plan.lose_tail = rng.random() < 0.3
        plan.lose_journal = rng.random() < 0.1
        plan.spoil_journal = random.Random(f"spoilt-{seed}").random() < 0.2
    return plan


def draw_pair(seed: int, kind: str = "pair") -> tuple[Plan, Plan]:
    """The schedule of this seed for two nodes with a registry and an object store in common; `kind`
    is pair, again or moves."""
    rng = random.Random(f"{kind}-{seed}")
    intensity = rng.choice([0.0, 0.0, 0.5, 1.0, 2.0])
    lose_tail, plans = rng.random() < 0.2, []
    for node in ("n1", "n2"):
        plan = Plan(seed, kind, rng, tiers=True, object_store=True, node=node)
        plan.inventory = _inventory(rng, f"{node}-")
        names = [f"{node}-p{number}" for number in range(rng.randint(1, 2))]
        plan.pods = [_with_wishes(plan, _pod(rng, plan.inventory, name)) for name in names]
        plan.ram = rng.choice([0, 3 * MEMORY])
        plan.besides = rng.choice([0, MEMORY])
        plan.events = _draw_events(rng, _PAIR_EVENTS, rng.randint(1, 5))
        plan.lose_tail = lose_tail
        _draw_weather(plan, intensity)
        plans.append(plan)
    between = {"moves": MOVES, "again": AGAIN}.get(kind, BETWEEN)
    plans[0].between = _draw_events(rng, between, rng.randint(1, 4))
    return plans[0], plans[1]


def _draw_weather(plan: Plan, intensity: float) -> None:
    plan.faults = {name: rate * intensity for name, rate in FAULTS.items() if intensity}


def _draw_events(rng: random.Random, chosen: dict[str, int], count: int) -> list[Event]:
    kinds = rng.choices(list(chosen), list(chosen.values()), k=count)
    times = sorted(0.3 + rng.random() * (WEATHER_CLEARS - 0.5) for _ in kinds)
    return [Event(at, what, rng.random()) for at, what in zip(times, kinds, strict=True)]


def _inventory(rng: random.Random, prefix: str) -> Inventory:
    count = rng.choice([1, 1, 2, 2, 3])
    gpus = tuple(Gpu(GpuUuid(f"{prefix}GPU-{i}"), i, "H100", MEMORY, 0) for i in range(count))
    slots = rng.choice([1, 1, 1, 2, 3])
    one = "kyb.ai/gpu-1x-seat"
    groups = [Group(GroupName(f"G{g.index}"), one, (g.uuid,), 8, slots) for g in gpus]
    if count > 1:
        pair = tuple(gpu.uuid for gpu in gpus[:2])
        groups.append(Group(GroupName("G01"), "kyb.ai/gpu-2x-seat", pair, 8, rng.choice([1, 2])))
    return Inventory(gpus, (), tuple(groups), "580", "13.0")


def _pod(rng: random.Random, inventory: Inventory, name: str) -> PodPlan:
    vram = rng.choice([None, None, 20 * GIB, 30 * GIB, 60 * GIB])
    declared = vram or 70 * GIB
    return PodPlan(
        name=name,
        group=rng.choice(inventory.groups),
        vram=vram,
        size=int(declared * rng.choice([0.3, 0.8, 1.0])),
        ranks=rng.choice([1, 1, 1, 2, 3]),
        delay=rng.choice([0.05, 0.15, 0.4]),
        priority=rng.choice([0, 0, 0, 10]),
        ignores_term=rng.random() < 0.2,
    )


def _with_wishes(plan: Plan, pod: PodPlan) -> PodPlan:
    """In a part of the schedules some pods always want their GPUs, have idle times, say when their
    answers are in time, or may be on any GPU. Drawn from the pod's name, so that seeds that once
    found something find the rest as it was."""
    if plan.seed % 5 in _WITH_LIMITS:
        rng = random.Random(f"limits-{plan.kind}-{plan.seed}-{pod.name}")
        pod = replace(pod, ready_within=rng.choice([None, 0.1, 1.0, 3.0, 30.0]))
    if plan.kind in _ONE_NODE and plan.seed % 2 and len(pod.group.gpus) == 1:
        rng = random.Random(f"places-{plan.kind}-{plan.seed}-{pod.name}")
        pod = replace(pod, anywhere=rng.random() < _ANYWHERE)
    if plan.seed % 5 not in _WITH_WISHES:
        return pod
    rng = random.Random(f"wishes-{plan.kind}-{plan.seed}-{pod.name}")
    idle = [{}, {}, {"vram": 0.2}, {"vram": 0.3, "ram": 0.5, "nvme": 0.5}]
    return replace(pod, weight=rng.choice([None, 1.0, 1.0, 4.0]), idle=rng.choice(idle))


def another_pod(plan: Plan, number: int) -> PodPlan:
    """The pod of this number; one may come later."""
    return _with_wishes(plan, _pod(plan.rng, plan.inventory, f"p{number}"))
