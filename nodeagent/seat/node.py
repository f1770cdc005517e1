"""The node's state: its seats, its inventory, its leases. The loop owns it; no locks.

Every change of a seat's state goes through `transition`: table, journal, observers, in that order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kybernate.core.artifacts.placed import unpinned
from kybernate.core.artifacts.restores import no_templates
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, TIER_OF, SeatEvent, next_state
from kybernate.core.swap.swapview import Expected, Places, SwapView
from kybernate.core.swap.turns import Book, TurnPolicy
from kybernate.core.tiers.tiers import Artifact, park_seconds, wake_seconds
from kybernate.dataclass import dataclass
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, SeatState, Tier, of_record
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kybernate.api.gpunodes import UseRow
    from kybernate.core.tiers.tiering import TierView
    from kybernate.ports import (
        DriverHelpers,
        Freezer,
        Gpus,
        Images,
        Journal,
        PodResources,
        Procs,
        Registry,
        SeatDoors,
        Specs,
    )
    from kybernate.settings.agent import AgentSettings
    from kybernate.types import ArtifactId, PodUid
    from nodeagent.seat.leases import Leases
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

T = TypeVar("T")

IN_RAM = (SeatState.PARKED, SeatState.DUMPING, SeatState.RESTORING)
"""States in which a parked seat takes, or begins to take, the host's RAM."""
DRAIN = "drain"
INVENTORY = "inventory"
PROXIES = "proxies"
SEAT = "seat/"
_COMPLAIN_EVERY = 60.0
_LINE_S = 0.002
"""Seconds until the log has a line of a transition."""
_WAKES = 2.0
"""Where nobody says what is in time, a wake may take twice what it should."""
_REMAPS = 580
"""The driver from which a process wakes on another GPU than it was parked on."""
_NOTHING_EXPECTED = Expected()


class Blocking(Protocol):
    """Runs a blocking call off the loop, with a deadline in seconds (DeadlineError)."""

    async def __call__(self, call: Callable[[], T], deadline: float) -> T:
        """The call's result."""
        ...


def undisturbed(seat: Seat) -> bool:
    """`World.imaging` where nobody but the agent touches a seat's tree."""
    return False


@dataclass(frozen=True, slots=True)
class World:
    """All ports of the agent, and the two clocks. `asking` is `blocking` for calls of `gpus`;
    without `offloading` nothing is parked deeper than in RAM, without `registry` only this node's
    own pods are succeeded. `imaging`: whether somebody takes an image of a seat's tree just now.
    `templates`: the artifact of a namespace's template, see `SnapshotTemplates.artifact`; `pinned`:
    whether a TierPlacement pins an artifact, see `Placements.pinned`. Without
    `resizing` a pod requests what it does wherever its seat rests."""

    gpus: Gpus
    helpers: DriverHelpers
    freezer: Freezer
    procs: Procs
    doors: SeatDoors
    specs: Specs
    pod_resources: PodResources
    images: Images
    journal: Journal
    blocking: Blocking
    asking: Blocking
    now: Callable[[], float]
    wall: Callable[[], float]
    offloading: Offloading | None = None
    registry: Registry | None = None
    imaging: Callable[[Seat], bool] = undisturbed
    templates: Callable[[str, str], ArtifactId] = no_templates
    pinned: Callable[[str], bool] = unpinned
    resizing: Resizing | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the plugin reported. Links are (UUID, UUID, kind as on the wire)."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()
    groups: tuple[Group, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    strategy: str = "cdi"

    def record(self) -> dict[str, object]:
        """The journal's form."""
        return asdict(self)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Inventory:
        """The inventory that `record` wrote."""
        return Inventory(
            tuple(of_record(Gpu, gpu) for gpu in record["gpus"]),
            tuple((a, b, kind) for a, b, kind in record["links"]),
            tuple(of_record(Group, {**g, "gpus": tuple(g["gpus"])}) for g in record["groups"]),
            record["driver_version"],
            record["cuda_version"],
            record.get("strategy", "cdi"),
        )

    def group(self, name: GroupName) -> Group | None:
        """The group of this name."""
        return next((group for group in self.groups if group.name == name), None)

    def gpu(self, uuid: GpuUuid) -> Gpu | None:
        """The GPU of this UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def with_health_of(self, other: Inventory) -> Inventory:
        """The same, with every GPU as healthy as the other says; one it lacks is not."""
        healthy = other.memory()
        gpus = tuple(replace(gpu, healthy=gpu.uuid in healthy) for gpu in self.gpus)
        return replace(self, gpus=gpus)

    def memory(self) -> dict[GpuUuid, int]:
        """Bytes of each healthy GPU."""
        return {gpu.uuid: gpu.memory for gpu in self.gpus if gpu.healthy}


class Observer(Protocol):
    """Who hears of changes; called on the loop, must be quick."""

    def seat_changed(self, seat: Seat) -> None:
        """A seat is new, or its state, reason, address or counters changed."""
        ...

    def seat_gone(self, seat: Seat) -> None:
        """The seat's pod no longer exists."""
        ...

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Something people should read: an event of kind Normal or Warning."""
        ...


class Resizing(Observer, Protocol):
    """Who gives back what offloaded pods request."""

    async def take(self, seat: Seat) -> None:
        """Return once the pod has again what its workload asked for. Raises RetryableError while
        there is no room for that, NotFoundError if the pod is gone."""
        ...


class DemandListener(Protocol):
    """Who hears of each change of the demand for a seat; called on the loop, must be quick."""

    def demand_changed(self, seat: Seat) -> None:
        """Its `in_flight` or `waiting` may have changed."""
        ...


def as_settings_say(_: Seat) -> None:
    """No seat has a limit of its own for its start."""


async def taken_for_healthy(seat: Seat) -> bool:
    """`Node.healthy` where others ask the workload: a pod's probes."""
    return True


def _expects_nothing(_seat: Seat) -> Expected:
    return _NOTHING_EXPECTED


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the node that people should know, as a condition of its GPUNode."""

    ok: bool
    reason: str
    message: str
    since: float


@dataclass(slots=True)
class Node:
    """The state. `inventory` is None until the plugin reported one, ever.

    `park_budget` is how many bytes of device memory the host's RAM may hold; `foreign` bytes per
    GPU of processes of no seat; `draining` why nothing may start or wake here, empty if it may;
    `notices` are the conditions besides Ready;
    `host_available` is about how many bytes of host memory are available, 0 while unknown.
    `activity` is what is published of when each seat is used, `used` of what namespaces have used.
    `seen` says how many bytes of device memory a seat was last seen to hold; `park_room` is how
    many bytes more may be parked into RAM now, `free_ram` the host's part of that, None while
    unknown; `ram_freed_at` when a state last left RAM; `standing` is what the last decision saw of
    the tiers (`Tiers.stand`). `healthy` asks a workload that listens whether it serves yet;
    `start_limit` is how many seconds a seat's start may take, None if the settings say it. `turns`
    is what seats that always want their GPUs have had of them since this agent began. `last`:
    namespaces whose seats come after all others; `ram_quotas`: bytes of RAM that a namespace's
    parked seats may take.
    """

    settings: AgentSettings
    world: World
    leases: Leases
    seats: dict[PodUid, Seat] = field(default_factory=dict)
    inventory: Inventory | None = None
    park_budget: int = 0
    foreign: Mapping[GpuUuid, int] = field(default_factory=dict)
    draining: str = ""
    host_available: int = 0
    notices: dict[str, Notice] = field(default_factory=dict)
    observers: list[Observer] = field(default_factory=list)
    demand_listeners: list[DemandListener] = field(default_factory=list)
    activity: dict[PodUid, dict[str, Any]] = field(default_factory=dict)
    seen: Mapping[PodUid, int] = field(default_factory=dict)
    park_room: int | None = None
    standing: TierView | None = None
    free_ram: int | None = None
    ram_freed_at: float = 0.0
    healthy: Callable[[Seat], Awaitable[bool]] = taken_for_healthy
    start_limit: Callable[[Seat], float | None] = as_settings_say
    used: tuple[UseRow, ...] = ()
    last: frozenset[str] = frozenset()
    ram_quotas: Mapping[str, int] = field(default_factory=dict)
    turns: Book = field(init=False)
    _memory: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Of each healthy GPU, as every decision asks."""
    _places: dict[tuple[tuple[GpuUuid, ...], int | None, bool], Places] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        one = self.settings
        policy = TurnPolicy(
            swap_share=one.turn_swap_percent / 100,
            min_residency=one.min_residency_s,
            shares=one.shares,
            most_residency=one.pod_residency_s,
        )
        self.turns = Book(policy, self.world.now())

    def transition(
        self,
        seat: Seat,
        event: SeatEvent,
        reason: str,
        *,
        synced: bool = False,
        late: bool = True,
    ) -> Awaitable[None]:
        """Take the seat through the transition table, note it, tell it.

        Await the answer where an act depends on the record; one that isn't `late` is being written
        meanwhile. Raises IllegalTransitionError; then nothing has changed.
        """
        before, seat.state = seat.state, next_state(seat.state, event)
        now, wall = self.world.now(), self.world.wall()
        seat.history.entered(before, seat.state, reason, now=now, wall=wall)
        # Once the loop has begun what follows, for which a request may wait.
        line = "%s: %s -> %s (%s)", seat, before, seat.state, reason
        asyncio.get_running_loop().call_later(_LINE_S, log.info, *line)
        seat.wishes.met(event)
        written = self.save(seat, synced=synced, late=late)
        self.changed(seat)
        return written

    def start_overdue(self, seat: Seat) -> str:
        """Why the seat must not continue starting, as a sentence; empty while it may. However often
        its gate is released meanwhile."""
        limit = self.start_limit(seat) or self.settings.start_limit_s
        if seat.history.starts_by(self.world.now(), limit):
            return ""
        return f"it does not serve {limit:g} s after its start"

    def changed(self, seat: Seat) -> None:
        """Tell the observers."""
        for observer in self.observers:
            observer.seat_changed(seat)

    def tell(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Tell people: log line and Kubernetes event. `kind` is Normal or Warning."""
        log.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", seat, sentence)
        for observer in self.observers:
            observer.told(seat, kind, reason, sentence)

    def complain(self, seat: Seat, event: str, why: str) -> None:
        """Tell people of something that is tried again and again, now and then. What is told of one
        event silences none of the others."""
        if seat.backoff.may_complain(event, self.world.now(), _COMPLAIN_EVERY):
            self.tell(seat, "Warning", event, why)

    def save(self, seat: Seat, *, synced: bool = False, late: bool = True) -> Awaitable[None]:
        """Journal the seat as it is now; await it where an act depends on the record, which may be
        late else."""
        return self.world.journal.put(SEAT + seat.uid, seat.record(), synced=synced, late=late)

    def save_proxies(self) -> None:
        """Journal who holds leases, so that a restarted agent waits for them."""
        self.world.journal.put(PROXIES, {"names": self.leases.names()}, synced=False)

    # --- what is seen, and said, of the node ----------------------------------------------------

    def resume(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """What the last agent had noted of the node itself."""
        if INVENTORY in records:
            self.found(Inventory.from_record(records[INVENTORY]))
        self.draining = str(records.get(DRAIN, {}).get("why", ""))

    def add(self, seat: Seat) -> None:
        """A seat is new, or was recorded."""
        self.seats[seat.uid] = seat

    def remove(self, seat: Seat) -> None:
        """Its pod is gone, and nothing of it is left."""
        self.seats.pop(seat.uid, None)
        self.leases.forget(seat.uid)

    def observe(self, *observers: Observer) -> None:
        """They hear of changes from now on."""
        self.observers += observers

    def hear_demand(self, listener: DemandListener) -> None:
        """It hears of each change of demand from now on."""
        self.demand_listeners.append(listener)

    def found(self, inventory: Inventory) -> None:
        """What the node has, as somebody else notes."""
        self.inventory, self._memory = inventory, inventory.memory()
        self._places.clear()

    def set_inventory(self, inventory: Inventory) -> None:
        """Accept the plugin's report."""
        self.found(inventory)
        self.world.journal.put(INVENTORY, inventory.record(), synced=False)

    def set_draining(self, why: str) -> None:
        """Let nothing start or wake here, or (empty) let all again."""
        self.draining = why
        self.world.journal.put(DRAIN, {"why": why}, synced=False)

    def notice(self, name: str, reason: str, message: str, *, ok: bool) -> None:
        """Have people know it. It is as old as its last change between well and not."""
        last = self.notices.get(name)
        if last is None or (last.ok, last.reason, last.message) != (ok, reason, message):
            since = last.since if last and last.ok == ok else self.world.wall()
            self.notices[name] = Notice(ok, reason, message, since)

    def gpus_seen(self, seen: Mapping[PodUid, int], foreign: Mapping[GpuUuid, int]) -> None:
        """Who holds how many bytes of the GPUs: seats, and others."""
        self.seen, self.foreign = seen, foreign

    def ram_seen(self, *, free: int, room: int) -> None:
        """What the host has for states to be parked."""
        self.free_ram, self.park_room = free, room

    def host_seen(self, available: int) -> None:
        """What the host has for anybody."""
        self.host_available = available

    def ram_freed(self) -> None:
        """A state has left RAM."""
        self.ram_freed_at = self.world.now()

    def use_seen(self, uid: PodUid, use: dict[str, Any] | None) -> None:
        """What is published of the seat's use; None once it is gone."""
        if use is None:
            self.activity.pop(uid, None)
        else:
            self.activity[uid] = use

    def set_shares(
        self, weights: Mapping[str, float], last: frozenset[str], ram: Mapping[str, int]
    ) -> bool:
        """What namespaces get: of GPUs against 1 (those that aren't named as the settings say), who
        comes last, and bytes of RAM. Whether anything has changed."""
        changed = self.turns.set_shares({**self.settings.shares, **weights}, self.world.now())
        changed = changed or (last, ram) != (self.last, self.ram_quotas)
        self.last, self.ram_quotas = last, ram
        return changed

    def use_of_namespaces(self, rows: tuple[UseRow, ...]) -> None:
        """What is published of it."""
        self.used = rows

    # --- decisions ------------------------------------------------------------------------------

    def judge_parks(self, refused: Mapping[PodUid, str]) -> None:
        """Note of each seat whether it could be parked now; why not, by seat."""
        for uid, seat in self.seats.items():
            why = refused.get(uid, "")
            if why != seat.backoff.unparkable:
                seat.backoff.judged(why)

    def judge_turns(self, refused: Mapping[PodUid, str]) -> None:
        """Note of each seat whether it is refused its turn, and tell people why; why, by seat."""
        for uid, seat in self.seats.items():
            why = refused.get(uid, "")
            if why:
                self.complain(seat, "TurnRefused", why)
            if why != seat.backoff.refused:
                seat.backoff.refuse(why)
                self.changed(seat)

    def swap_view(self) -> SwapView:
        """What the swap decision looks at."""
        inventory, drained = self.inventory or Inventory(), self.leases.drained
        drains = SeatState.DRAINING
        # Where nobody says what is in time, nothing is weighed against it.
        said = self.settings.answer_within_s is not None or any(
            seat.wishes.ready_within is not None for seat in self.seats.values()
        )
        expected = self._expected if said else _expects_nothing
        view = SwapView(
            seats=tuple(
                seat.view(
                    drained=seat.state is drains and drained(uid),
                    expected=expected(seat),
                    places=self.places(seat),
                )
                for uid, seat in self.seats.items()
            ),
            gpu_memory=self._memory,
            active_slots={group.name: group.active_slots for group in inventory.groups},
            reserve=self.settings.reserve_bytes,
            foreign=self.foreign,
            draining=self.draining,
            park_room=self.park_room,
            park_bytes={
                uid: self.park_size(seat)
                for uid, seat in self.seats.items()
                if seat.state in OCCUPYING
            },
            tiers=self.standing,
            last=self._who_comes_last(),
        )
        return self.turns.look(view, self.world.now())

    def _who_comes_last(self) -> frozenset[PodUid]:
        if not self.last:
            return frozenset()
        seats = self.seats.items()
        return frozenset(uid for uid, one in seats if one.identity.pod.namespace in self.last)

    def _expected(self, seat: Seat) -> Expected:
        """By the seat's last swaps between GPU memory and RAM, else by the table of tiers; an
        offloaded one is expected to take as long as its tier."""
        size, gpus = self.park_size(seat), len(seat.identity.gpus)
        tier = TIER_OF.get(seat.state, Tier.RAM)
        wake, park = seat.history.last_wake_ms / 1000, seat.history.last_park_ms / 1000
        if not wake or tier is not Tier.RAM:
            wake = max(wake, self._wake_seconds(seat, tier))
        park, calls = park or park_seconds(size, gpus), self.calls_per_hour(seat) / 3600
        within, slack = seat.wishes.ready_within, self.settings.answer_within_s
        if within is None and slack is not None:
            within = slack + _WAKES * wake
        return Expected(wake, park, calls, within)

    def has_gpus(self, seat: Seat) -> bool:
        """Whether its own GPUs are all healthy, as far as is known."""
        return self.inventory is None or self._memory.keys() >= {*seat.identity.gpus}

    def places(self, seat: Seat) -> Places:
        """Where it may start or wake, its own GPU first: a wake there needs no remap. Empty: on its
        own alone."""
        one, inventory = seat.identity, self.inventory
        if not one.anywhere or inventory is None or seat.tree.stays_on:
            return ()
        key = one.gpus, one.vram, seat.state not in AT_GATE
        if key not in self._places:
            self._places[key] = tuple(frozenset({gpu}) for gpu in _may_be_on(inventory, *key))
        return self._places[key]

    def calls_per_hour(self, seat: Seat) -> float:
        """How often requests are expected for it, about now, as of the last look at that."""
        known = self.activity.get(seat.uid)
        if known is None:
            return 0.0
        hour = int(self.world.wall() // 3600) % 24  # of UTC
        expected, recent = float(known["calls"][hour]), float(known.get("recentCalls", 0.0))
        return max(expected, recent, 0.0)

    def parked_bytes(self) -> int:
        """Bytes of device memory that parked seats keep in the host's RAM."""
        parked = (s for s in self.seats.values() if s.state in IN_RAM)
        return sum(sum(seat.tree.held.values()) for seat in parked)

    def tiers(self) -> Mapping[Tier, int]:
        """Bytes that parked seats' states may take in each tier of this node."""
        offloading = self.world.offloading
        return {Tier.RAM: self.park_budget, **(offloading.limits if offloading else {})}

    def in_tier(self, tier: Tier) -> tuple[int, int]:
        """How many parked seats' states are in the tier, and their bytes."""
        there = [seat for seat in self.seats.values() if TIER_OF.get(seat.state) is tier]
        sizes = (self.park_size(s) if tier is Tier.RAM else s.saved.size for s in there)
        return len(there), sum(sizes)

    def park_size(self, seat: Seat) -> int:
        """Bytes that its park puts into RAM: as of its last park, as seen, as declared, or all
        that its GPUs have."""
        if (held := self.held(seat)) or seat.uid in self.seen:
            return held
        one = seat.identity
        if one.vram is not None:
            return one.vram * len(one.gpus)
        memory = self.inventory.memory() if self.inventory else {}
        return sum(max(0, memory.get(gpu, 0) - self.settings.reserve_bytes) for gpu in one.gpus)

    def held(self, seat: Seat) -> int:
        """Bytes of GPU memory as of its last park, or as seen; 0 where nobody has looked yet."""
        return sum(seat.tree.held.values()) or self.seen.get(seat.uid, 0)

    def dump_size(self, seat: Seat) -> tuple[int, int]:
        """About how many bytes a dump of its tree would write now: of its GPUs' memory, and of the
        host's besides."""
        offloading, gpu = self.world.offloading, self.park_size(seat)
        held = offloading.weigh(seat) if offloading is not None else 0
        # A parked tree has what was its GPUs' in its own memory.
        return gpu, held if seat.state in OCCUPYING else max(0, held - gpu)

    def keeps_orphaned(self, seat: Seat) -> float:
        """Seconds for which its artifact is kept once its pod has ended."""
        keeps = self.settings.keep_left_s
        # Nobody comes before a request does, or before there is a seat for who was evicted.
        evicted = seat.wishes.stays_away and keeps > 0
        waits = Tier.OBJECT.value in seat.wishes.idle or evicted
        long = waits and Tier.OBJECT in seat.saved.copies
        return max(keeps, self.settings.keep_scaled_s) if long else keeps

    def wakes_in_time(self, seat: Seat, tier: Tier) -> bool:
        """Whether it wakes from this tier within what its pod calls ready, if it says so."""
        if seat.wishes.ready_within is None:
            return True
        return self._wake_seconds(seat, tier) <= seat.wishes.ready_within

    def _wake_seconds(self, seat: Seat, tier: Tier) -> float:
        if (measured := seat.history.wake_from(tier)) is not None:
            return measured
        size = self.park_size(seat)
        size = size if tier is Tier.RAM else seat.saved.size or size
        gpus, node = len(seat.identity.gpus), NodeName(self.settings.node)
        return wake_seconds(Artifact(tier, size), node, gpus)

    def count_states(self) -> None:
        """Set the gauge of seats by state."""
        found = Counter(seat.state for seat in self.seats.values())
        for state in SeatState:
            metrics.SEATS.labels(state.value).set(found[state])

    def leases_of_serving(self) -> dict[PodUid, int]:
        """Generation of each seat's lease that requests may use now."""
        active = (
            s for s in self.seats.values() if s.state is SeatState.ACTIVE and not s.ending.asked
        )
        return {seat.uid: seat.history.lease for seat in active}


def _may_be_on(
    inventory: Inventory, gpus: tuple[GpuUuid, ...], vram: int | None, runs: bool
) -> list[GpuUuid]:
    """Healthy GPUs that are large enough; for a tree that runs, of its own GPU's product, if the
    driver moves it at all."""
    own = inventory.gpu(gpus[0])
    major = inventory.driver_version.partition(".")[0]
    if runs and (own is None or not major.isdecimal() or int(major) < _REMAPS):
        return []
    found = [
        gpu.uuid
        for gpu in inventory.gpus
        if gpu.healthy
        and gpu.memory >= (vram or 0)
        and not (runs and own is not None and gpu.product != own.product)
    ]
    return sorted(found, key=lambda gpu: gpu not in gpus)
