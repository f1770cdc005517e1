"""A seat as the agent's loop holds it, and its form in the journal."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kybernate.api.turns import VRAM
from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.core.seat.ending import Ends
from kybernate.core.seat.seats import AT_GATE, TIER_OF
from kybernate.core.swap.swapview import Expected, Places, SeatView, Turn
from kybernate.dataclass import dataclass
from kybernate.types import GpuUuid, GroupName, PodRef, PodUid, SeatName, SeatState, Tier, of_record
from nodeagent.seat.parts.backoff import Backoff
from nodeagent.seat.parts.contact import Contact
from nodeagent.seat.parts.demand import Demand
from nodeagent.seat.parts.ending import Ending
from nodeagent.seat.parts.history import History
from nodeagent.seat.parts.saved import Begins, Saved
from nodeagent.seat.parts.tasks import Tasks
from nodeagent.seat.parts.tree import Process, Tree
from nodeagent.seat.parts.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Mapping


_PLAIN = {
    "reason": "history.reason",
    "generation": "history.generation",
    "lease": "history.lease",
    "address": "contact.address",
    "pod_ip": "contact.pod_ip",
    "handle": "tree.handle",
    "active_since": "history.active_since",
    "active_seconds": "history.active_seconds",
    "wakes": "history.wakes",
    "last_wake_ms": "history.last_wake_ms",
    "last_park_ms": "history.last_park_ms",
    "took": "history.took",
    "requests": "demand.requests",
    "started_once": "history.started_once",
    "image_mode": "contact.image_mode",
    "keep_connections": "wishes.keep_connections",
    "starting_since": "history.starting_since",
    "asked_since": "demand.asked_since",
    "leave": "wishes.leave",
    "stays_away": "wishes.stays_away",
    "on_demand": "ending.on_demand",
    "ending_since": "ending.since",
    "artifact": "saved.artifact",
    "images": "saved.images",
    "needs": "saved.needs",
    "paging": "saved.paging",
    "unsealed": "saved.unsealed",
    "saved": "saved.size",
    "first": "saved.first",
    "park_tier": "wishes.park_tier",
    "tier_asked": "wishes.tier_asked",
    "used_at": "history.used_at",
    "moved_at": "saved.moved_at",
    "ready_within": "wishes.ready_within",
    "ready_active": "wishes.ready_active",
    "min_residency": "wishes.min_residency",
    "max_wait": "wishes.max_wait",
    "prefetch": "wishes.prefetch",
    "priority": "wishes.priority",
    "spec_hash": "wishes.spec_hash",
    "borrowed": "saved.borrowed",
    "predecessor": "saved.predecessor",
    "claimed": "saved.claimed",
    "weight": "wishes.weight",
    "acquired": "wishes.acquired",
    "rests": "wishes.rests",
    "stays_on": "tree.stays_on",
}
"""What goes into the journal as it is, by its name there. One of an older release may lack some."""

_GOES = {
    SeatState.PARKING: Tier.RAM,
    SeatState.DUMPING: Tier.NVME,
    SeatState.RESTORING: Tier.RAM,
}
_NOTHING = Expected()
_BEGINS = AT_GATE | {SeatState.STARTING}

_AS_RECORDED = dict.fromkeys((SeatState.UNVERIFIED, SeatState.ADOPTING), SeatState.WAITING)
"""A restarted agent asks the one again, and reads of the other in `begins`; older releases know no
other words either."""
_ADOPTING = "adopting"

_read_plain = attrgetter(*_PLAIN.values())


@dataclass(frozen=True, slots=True)
class SeatIdentity:
    """What a seat is. `vram` in bytes per GPU, None for the whole GPU.

    `gpus` change only of a seat that may be `anywhere`: on any one GPU of its node, one at a time.
    They are those where it is, was last, or goes now. `vram` changes only of a box's model that
    does not say what it needs: it is measured.

    `device_id` is the kubelet's token; `port` the first containerPort; `has_args` whether the
    pod names arguments (then the image's CMD is not used); `grace` is the seconds that the kubelet
    waits between SIGTERM and SIGKILL. `namespace_uid` tells the pod's namespace from an earlier one
    of its name; empty if it could not be read.
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
    grace: float = 30.0
    namespace_uid: str = ""
    anywhere: bool = False


_OF_IDENTITY = tuple(one.name for one in fields(SeatIdentity))


class Seat:
    """One seat. Owned by the loop. Its state is changed by `Node.transition`, the values of each of
    its parts by that part's module."""

    __slots__ = (
        "_shown",
        "backoff",
        "contact",
        "demand",
        "ending",
        "history",
        "identity",
        "saved",
        "state",
        "tasks",
        "tree",
        "wishes",
    )

    def __init__(
        self,
        identity: SeatIdentity,
        bound_at: float,
        since: float,
        state: SeatState = SeatState.WAITING,
    ) -> None:
        self.identity = identity
        self.state = state
        self.tree = Tree()
        self.contact = Contact()
        self.demand = Demand()
        self.wishes = Wishes()
        self.saved = Saved()
        self.ending = Ending()
        self.history = History(bound_at, since)
        self.backoff = Backoff()
        self.tasks = Tasks()
        self._shown: tuple[tuple[object, ...], SeatView] | None = None
        """What its view was made of, and the view."""

    @property
    def uid(self) -> PodUid:
        """The pod's UID, the seat's key everywhere."""
        return self.identity.pod.uid

    def goes_to(self, gpus: tuple[GpuUuid, ...]) -> None:
        """It starts or wakes on these from now on; to be noted before it does."""
        if self.state not in AT_GATE:
            self.tree.moves(dict(zip(self.identity.gpus, gpus, strict=True)))
        self._has(gpus)

    def is_on(self, gpus: tuple[GpuUuid, ...]) -> None:
        """Its memory was found there."""
        self.tree.stands()
        self._has(gpus)

    def _has(self, gpus: tuple[GpuUuid, ...]) -> None:
        self.identity = replace(self.identity, gpus=gpus)
        self._shown = None

    def measured(self, vram: int) -> None:
        """It holds so many bytes on each of its GPUs; nobody has declared how many."""
        self.identity = replace(self.identity, vram=vram)
        self._shown = None

    def may_take(self, grace: float) -> None:
        """So many seconds to end, from now on."""
        self.identity = replace(self.identity, grace=grace)

    def stays(self, why: str) -> None:
        """It is still parked, and can't be moved off the GPU that its memory comes from."""
        self.goes_to(tuple(self.tree.gpu_map) or self.identity.gpus)
        self.tree.is_tied(why)

    def is_device(self, device_id: str) -> None:
        """The kubelet gave its container this device."""
        self.identity = replace(self.identity, device_id=device_id)

    @property
    def unverified(self) -> bool:
        """Whether nobody knows if it uses its GPUs."""
        found = self.state is SeatState.UNVERIFIED
        return found or self.ending.killed or self.contact.unheard

    @property
    def why(self) -> str:
        """Why it is in its state, as a sentence; if it is refused its turn, why that is."""
        refused = self.backoff.refused
        return f"it can't have its turn: {refused}" if refused else self.history.reason

    @property
    def comes_back(self) -> bool:
        """Whether somebody wants it awake whom no operator's word keeps waiting."""
        return self.demand.called and not self.wishes.stays_away

    @property
    def bound_for(self) -> Tier | None:
        """The tier to which its state is on its way."""
        return _GOES.get(self.state, self.saved.sinks_to)

    def takes(self, tier: Tier) -> bool:
        """Whether its state takes room in the tier, or will once it is there."""
        return tier in (TIER_OF.get(self.state), self.bound_for) or tier in self.saved.there

    @property
    def awaits_state(self) -> bool:
        """Whether it is not yet settled if it continues from an artifact."""
        return self.wishes.restore is not None and self.saved.begins is Begins.OPEN

    @property
    def turn(self) -> Turn | None:
        """Its part in taking turns, if it does that now. Its first start is no turn: whoever waits
        for its pod to be Ready waits for that."""
        weight = self.wishes.turn_weight
        if not weight or self.wishes.rests or self.ending.asked:
            return None
        if self.state in _BEGINS and not self.history.started_once:
            return None
        return Turn(self.identity.pod.namespace, weight, self.wishes.yields)

    def __str__(self) -> str:
        return f"{self.identity.name} ({self.identity.pod})"

    def view(
        self, *, drained: bool, expected: Expected = _NOTHING, places: Places = ()
    ) -> SeatView:
        """What the swap decision sees. A seat that is ending asks for nothing. `places`: where it
        may start or wake, empty: on its own GPUs alone.

        The same object as the last time, unless something has changed.
        """
        # In the order of SeatView's fields, after those that never change.
        history, demand, wishes, backoff = self.history, self.demand, self.wishes, self.backoff
        ends = self.ending.asked
        now = (
            self.state,
            history.bound_at,
            history.active_since,
            demand.idle_since,
            demand.in_flight,
            0 if ends else demand.waiting,
            demand.waiting_since,
            drained,
            history.drain_since,
            self.contact.connected and not ends and not self.awaits_state,
            wishes.priority,
            backoff.not_before,
            backoff.stays_until,
            None if ends else demand.asked_since,
            wishes.leave,
            backoff.unparkable,
            self.ending.on_demand,
            self.unverified,
            self.turn,
            None if history.untimely else wishes.idle.get(VRAM),
            places,
            wishes.ready_within if expected.within is None else expected.within,
            expected.wakes_in,
            expected.parks_in,
            expected.calls,
            wishes.min_residency,
            wishes.max_wait,
            bool(self.ending.forfeit),
        )
        if self._shown is None or now != self._shown[0]:
            one = self.identity
            gpus = frozenset(one.gpus)
            view = SeatView(one.pod.uid, one.name, one.group, gpus, one.vram, *now)
            self._shown = now, view
        return self._shown[1]

    def record(self) -> dict[str, object]:
        """The journal's form; `from_record` reads it."""
        one = self.identity
        return {
            **{name: getattr(one, name) for name in _OF_IDENTITY},
            "namespace": one.pod.namespace,
            "pod": one.pod.name,
            "uid": one.pod.uid,
            "gpus": list(one.gpus),
            "state": _AS_RECORDED.get(self.state, self.state).value,
            "bound_at": self.history.bound_at,
            "since": self.history.since,
            "init": _pair(self.tree.init),
            "tree": _pair(self.tree.root),
            "cuda": [_pair(process) for process in self.tree.cuda],
            "held": dict(self.tree.held),
            "copies": sorted(self.saved.copies),
            "idle": dict(self.wishes.idle),
            "inner": list(self.tree.inner),
            "restore": asdict(self.wishes.restore) if self.wishes.restore else None,
            "begins": _ADOPTING if self.state is SeatState.ADOPTING else self.saved.begins.value,
            "ending": self.ending.asked,
            "may_drop": list(self.saved.may_drop),
            "gpu_map": dict(self.tree.gpu_map),
            **dict(zip(_PLAIN, _read_plain(self), strict=True)),
        }


def from_record(record: Mapping[str, Any]) -> Seat:
    """The seat that `Seat.record` wrote."""
    pod = PodRef(record["namespace"], record["pod"], PodUid(record["uid"]))
    gpus = tuple(GpuUuid(gpu) for gpu in record["gpus"])
    identity = of_record(SeatIdentity, {**record, "pod": pod, "gpus": gpus})
    begins = record.get("begins", "")
    adopting = begins == _ADOPTING
    state = SeatState.ADOPTING if adopting else SeatState(record["state"])
    seat = Seat(identity, record["bound_at"], record["since"], state)
    parts: dict[str, dict[str, Any]] = {
        "tree": _tree(record),
        "ending": {"ends": Ends.ASKED if record.get("ending") else Ends.NOT},
        "wishes": {"restore": _wish(record.get("restore")), "idle": dict(record.get("idle", {}))},
        "saved": {
            "copies": frozenset(Tier(tier) for tier in record.get("copies", ())),
            "begins": Begins.OPEN if adopting else Begins(begins),
            "may_drop": tuple(record.get("may_drop", ())),
        },
    }
    for name, place in _PLAIN.items():
        if name in record:
            part, _, value = place.partition(".")
            parts.setdefault(part, {})[value] = record[name]
    for part, values in parts.items():
        setattr(seat, part, replace(getattr(seat, part), **values))
    return seat


def _tree(record: Mapping[str, Any]) -> dict[str, Any]:
    moved = record.get("gpu_map", {}).items()
    return {
        "init": _process(record["init"]),
        "root": _process(record["tree"]),
        "cuda": tuple(Process(pid, start) for pid, start in record["cuda"]),
        "held": {GpuUuid(gpu): size for gpu, size in record["held"].items()},
        "inner": tuple(record.get("inner", ())),
        "gpu_map": {GpuUuid(old): GpuUuid(new) for old, new in moved},
    }


def _wish(record: Mapping[str, Any] | None) -> RestoreWish | None:
    if not record:
        return None
    return of_record(RestoreWish, {**record, "kind": RestoreAs(record["kind"])})


def _pair(process: Process | None) -> list[int] | None:
    return [process.pid, process.start] if process else None


def _process(pair: list[int] | None) -> Process | None:
    return Process(*pair) if pair else None
