"""One operation: its record, and its form in the journal."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from kybernate.core.seat.operations import ENDED, Kind, Progress, SeatFacts
from kybernate.dataclass import dataclass
from kybernate.errors import ConflictError
from kybernate.types import PodUid, Tier
from nodeagent.seat.parts.wishes import EVACUATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.seat.record import Seat

OPERATION = "operation/"
"""Journal keys of operations, by their names."""

_NODE = PodUid("")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller asks. `by` is who: "node", or the name of its certificate. `limit` in
    seconds from now, 0 for the agent's own. `uid` is empty where it is about the node. `tier`:
    where a park's state is to go, or a save is kept, None where that is left to the agent.
    `successor`: the pod that continues after a move; `artifact`: what is copied to a tier;
    `precopy`: an eviction's state is copied first, while its seat serves, if that is worth it."""

    kind: Kind
    name: str = ""
    uid: PodUid = _NODE
    why: str = ""
    by: str = "node"
    limit: float = 0.0
    tier: Tier | None = None
    successor: str = ""
    artifact: str = ""
    precopy: bool = False


@dataclass(slots=True)
class Operation:
    """One operation. Times are wall-clock seconds, 0 for not yet; `due_at` 0 for never.

    Of an eviction: `left_s`, the seconds for which what is saved outlives the pod; `artifact`, its
    name; `precopy`, see `Ask`.
    Of a save: `wakes`, whether the seat served and is woken again; `artifact`, what is kept;
    `bytes_done` of its `bytes_total` are where it is kept; of a park or an eviction, too.
    Of a copy that is placed: `artifact`, and as of a save.
    Of a move: `successor`, the pod that continues. Of an evacuation: `report`, what becomes of each
    seat.
    """

    name: str
    kind: Kind
    uid: PodUid
    namespace: str
    pod: str
    why: str
    by: str
    created_at: float
    due_at: float
    state: Progress = Progress.PENDING
    sentence: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    saved: int | None = None
    tier: Tier | None = None
    saved_in: Tier | None = None
    left_s: float = 0.0
    wakes: bool = False
    artifact: str = ""
    successor: str = ""
    report: tuple[str, ...] = ()
    bytes_done: int = 0
    bytes_total: int = 0
    precopy: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    def lasts(self, until: float) -> None:
        """It is due then."""
        self.due_at = until

    def counted(self, done: int, total: int) -> None:
        """So many seats of all are done."""
        self.done, self.total = done, total

    def copies(self, done: int | None, total: int) -> None:
        """So many bytes of all are there; None: nothing is copied now."""
        if done is not None:
            self.bytes_done, self.bytes_total = done, total

    def reported(self, report: tuple[str, ...]) -> None:
        """What becomes of each seat."""
        self.report = report

    def took(self, phases: Mapping[str, float]) -> None:
        """Seconds by phase, so far."""
        self.phases = dict(phases)

    def __str__(self) -> str:
        of = f"{self.namespace}/{self.pod}" if self.pod else "this node"
        of = self.artifact if self.kind is Kind.PLACE else of
        return f"{self.name} ({self.kind} of {of}, asked by {self.by})"


def facts_of(seat: Seat, tiers: frozenset[Tier], left_s: float) -> SeatFacts:
    """A seat as an operation sees it. `tiers` are those that the node has, `left_s` the seconds for
    which it keeps the artifacts of offloaded pods that end."""
    return SeatFacts(
        name=f"{seat.identity.pod}",
        state=seat.state,
        reason=seat.history.reason,
        unparkable=seat.backoff.unparkable,
        held=sum(seat.tree.held.values()),
        ending=seat.ending.asked,
        undumpable=seat.saved.undumpable,
        tiers=tiers,
        deepest=Tier(seat.wishes.park_tier),
        left_s=left_s,
    )


def from_record(record: Mapping[str, Any]) -> Operation:
    """The operation whose `asdict` this is."""
    known = {key: record[key] for key in Operation.__slots__ if key in record}
    known["kind"], known["state"] = Kind(record["kind"]), Progress(record["state"])
    known["uid"] = PodUid(record["uid"])
    for name in ("tier", "saved_in"):
        known[name] = Tier(record[name]) if record.get(name) else None
    known["report"] = tuple(record.get("report", ()))
    return Operation(**known)


def the_same(known: Operation, ask: Ask) -> Operation:
    """`known`, if that is what is asked for. Raises ConflictError."""
    asked = (ask.kind, ask.uid, ask.tier, ask.successor)
    same = (known.kind, known.uid, known.tier, known.successor) == asked
    if not same or (ask.kind is Kind.PLACE and known.artifact != ask.artifact):
        raise ConflictError(f"the name is that of operation {known}; choose another")
    return known


def words(operation: Operation) -> str:
    """What happens and who asked for it, for events and reasons."""
    what = {
        Kind.PARK: "parked on request",
        Kind.WAKE: "woken on request",
        Kind.EVICT: "evicted",
        Kind.SAVE: "saved",
        Kind.MOVE: "moved",
        Kind.EVACUATE: EVACUATED,
        Kind.DRAIN: "drained",
        Kind.UNDRAIN: "in use again",
        Kind.PLACE: "placed",
    }[operation.kind]
    why = f": {operation.why}" if operation.why else ""
    return f"{what} by {operation.by}{why}"


def event_of(kind: Kind) -> str:
    """What the event is called that tells of its end."""
    names = {Kind.EVICT: "Evicted", Kind.SAVE: "Saved", Kind.MOVE: "Moved"}
    return names.get(kind, "ParkedByOperator")
