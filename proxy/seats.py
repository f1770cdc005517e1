"""What the proxy keeps of a seat, its lease and a model's queue, and what a wake costs. Pure."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from kybernate.core.fairqueue import FairQueue
from kybernate.dataclass import dataclass
from kybernate.types import SeatState
from proxy.actions import Abort, Close

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kybernate.types import NodeName, PodUid
    from proxy.actions import Action, SeatInfo

_WAKE_COST: dict[SeatState, int] = {
    SeatState.ACTIVE: 0,
    SeatState.WAKING: 1,
    SeatState.STARTING: 2,
    SeatState.PARKED: 3,
    SeatState.RESTORING: 4,
    SeatState.DRAINING: 5,
    SeatState.PARKING: 6,
    SeatState.DUMPING: 7,
    SeatState.PARKED_NVME: 8,
    SeatState.PARKED_OBJECT: 9,
    SeatState.WAITING: 10,
    SeatState.UNVERIFIED: 10,
    SeatState.ADOPTING: 10,
    SeatState.FAILED: 11,
    SeatState.GONE: 12,
}
"""Lower is sooner ready. A seat on its way is never abandoned for one that isn't."""

_NEWEST = 0.25
"""How much of the newest wait counts in what the next one is expected to be."""


class Word(Enum):
    """What an agent's word counts that a seat's pod has taken another pod's place."""

    HEARD = "heard"
    """The registry hasn't said yet whether it is so: the other one's seat gets nothing new."""
    CONFIRMED = "confirmed"
    DENIED = "denied"


class Held(Enum):
    """What this proxy has of a seat's lease."""

    NONE = "none"
    GRANTED = "granted"
    """Requests may begin."""
    DRAINING = "draining"
    """None may begin. Once nothing is in flight its agent hears that it is drained."""
    GIVEN_BACK = "given back"
    """None may begin, and nothing is in flight: it goes back unasked, and its agent may grant it
    again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to send requests to a seat, and all that may become of it. `generation` is its
    agent's name for it. An order for a lease of another generation is none for this one."""

    held: Held = Held.NONE
    generation: int = 0

    @property
    def ends(self) -> bool:
        """Whether nothing begins under it any more, and its agent hears of that, or has."""
        return self.held in (Held.DRAINING, Held.GIVEN_BACK)

    def is_meant(self, generation: int) -> bool:
        """Whether an order for this generation is for this lease; any is for none that is held."""
        return self.held is Held.NONE or self.generation == generation

    def grant(self, generation: int) -> Lease:
        """Its agent grants it, also again; that ends a drain."""
        return Lease(Held.GRANTED, generation)

    def drain(self, generation: int) -> Lease:
        """Its agent wants it back, also if it was given back unasked."""
        return Lease(Held.DRAINING, generation) if self.is_meant(generation) else self

    def revoke(self, generation: int) -> Lease:
        """Its agent has taken it away."""
        return NO_LEASE if self.is_meant(generation) else self

    def give_back(self) -> Lease:
        """It goes back unasked, as nothing is in flight under it."""
        return Lease(Held.GIVEN_BACK, self.generation) if self.held is Held.GRANTED else self

    def resign(self) -> Lease:
        """The proxy ends, and wants none again."""
        return self if self.held is Held.NONE else Lease(Held.DRAINING, self.generation)


NO_LEASE = Lease()


@dataclass(frozen=True, slots=True)
class Wait:
    """How long something is expected to take (s). What nobody has `measured` is a guess, by a table
    that knows no node: people are told of it, and no request is refused for it."""

    seconds: float
    measured: bool


@dataclass(slots=True, eq=False)
class Seat:
    """A seat, its lease and what is in flight there. `word`: of its predecessor, if it has one."""

    info: SeatInfo
    connected: bool = True
    confirmed: bool = True  # named by the agent on its present stream
    word: Word = Word.HEARD
    lease: Lease = NO_LEASE
    in_flight: set[int] = field(default_factory=set)
    requests: int = 0
    share: float = 0.0  # seconds that a request had which was there all the time
    shared_at: float = 0.0  # until when that counts
    ends_at: float | None = None  # when a broken stream ends what is in flight
    waits: dict[SeatState, float] = field(default_factory=dict)  # what waits took, by its state

    @property
    def open(self) -> bool:
        """Whether requests may go there."""
        granted = self.lease.held is Held.GRANTED
        return granted and self.connected and bool(self.info.address)

    @property
    def idle(self) -> bool:
        """Whether requests may go there, and none is there."""
        return self.open and not self.in_flight

    @property
    def at_hand(self) -> bool:
        """Whether it is awake, and only its agent's word is missing of whether it stays."""
        given_back = self.lease.held is Held.GIVEN_BACK
        return given_back and self.connected and self.info.state is SeatState.ACTIVE

    @property
    def wake_cost(self) -> int:
        """Lower is sooner ready."""
        return _WAKE_COST[self.info.state]

    @property
    def expected(self) -> Wait | None:
        """How long who asks for it now is expected to wait; None if nothing tells.

        Its agent tells what a wake from its tier takes, or guesses; that counts while nothing is
        measured. What waits took lately has in it, too, that another seat had to be drained and
        parked first.
        """
        told = self.info.wake
        took = told if self.info.measured else 0.0 if told else self.info.last_wake_ms / 1000
        took = max(took, self.waits.get(self.info.state, 0.0))
        return Wait(took or told, bool(took)) if took or told else None

    def enter(self, ticket: int, now: float) -> float:
        """A request begins here; returns `share`."""
        self._count(now)
        self.in_flight.add(ticket)
        return self.share

    def exit(self, ticket: int, now: float) -> float:
        """A request is over; returns `share`."""
        self._count(now)
        self.in_flight.discard(ticket)
        return self.share

    def _count(self, now: float) -> None:
        if self.in_flight:
            self.share += max(0.0, now - self.shared_at) / len(self.in_flight)
        self.shared_at = now

    def learn(self, state: SeatState, took: float) -> None:
        """Who asked for it in this state waited so long."""
        self.waits[state] = newer(self.waits.get(state, took), took)


class Seats:
    """All seats, and those of one model or node without a look at all others."""

    def __init__(self) -> None:
        self._all: dict[PodUid, Seat] = {}
        self._by: dict[tuple[str, str], dict[PodUid, Seat]] = {}

    def __iter__(self) -> Iterator[Seat]:
        return iter(tuple(self._all.values()))

    def get(self, uid: PodUid) -> Seat | None:
        """The seat of this pod."""
        return self._all.get(uid)

    def add(self, seat: Seat) -> None:
        """A seat that wasn't there."""
        self._all[seat.info.uid] = seat
        self._enter(seat)

    def change(self, seat: Seat, info: SeatInfo) -> None:
        """From now on this is what is known of the seat, which has the same UID."""
        if _found_by(info) == _found_by(seat.info):
            seat.info = info
            return
        self._strike(seat)
        seat.info = info
        self._enter(seat)

    def remove(self, uid: PodUid) -> Seat | None:
        """The seat, which is no more; None if there was none."""
        seat = self._all.pop(uid, None)
        if seat is not None:
            self._strike(seat)
        return seat

    def of_route(self, route: str) -> Collection[Seat]:
        """Those of the model with this full name."""
        return self._of(_ROUTE, route)

    def of_model(self, model: str) -> Collection[Seat]:
        """Those whose pods call their model so, of all namespaces."""
        return self._of(_MODEL, model)

    def on(self, node: NodeName) -> Collection[Seat]:
        """Those of one node."""
        return self._of(_NODE, node)

    def words(self, info: SeatInfo) -> list[tuple[Word, NodeName]]:
        """What is said, and by whose agents, of seats of the same model that have taken this one's
        place."""
        if (_PREDECESSOR, info.uid) not in self._by:
            return []
        after = self._of(_PREDECESSOR, info.uid)
        mine = (one for one in after if one.info.route == info.route and one.info.uid != info.uid)
        return [(one.word, one.info.node) for one in mine]

    def is_replaced(self, info: SeatInfo) -> bool:
        """Whether it is certain that another one has taken this one's place."""
        return any(word is Word.CONFIRMED for word, _ in self.words(info))

    def _of(self, what: str, name: str) -> Collection[Seat]:
        return tuple(self._by.get((what, name), {}).values())

    def _enter(self, seat: Seat) -> None:
        for key in _found_by(seat.info):
            self._by.setdefault(key, {})[seat.info.uid] = seat

    def _strike(self, seat: Seat) -> None:
        for key in _found_by(seat.info):
            del self._by[key][seat.info.uid]
            if not self._by[key]:
                del self._by[key]


_ROUTE, _MODEL, _NODE, _PREDECESSOR = "route", "model", "node", "predecessor"


def _found_by(info: SeatInfo) -> tuple[tuple[str, str], ...]:
    found = (_ROUTE, info.route), (_MODEL, info.model), (_NODE, info.node)
    return (*found, (_PREDECESSOR, info.predecessor)) if info.predecessor else found


@dataclass(slots=True)
class Queue:
    """Who waits for a model."""

    waiting: FairQueue = field(default_factory=FairQueue)
    target: PodUid | None = None  # the seat that is asked to wake for them
    since: float = 0.0  # when it was asked first
    roused: float | None = None  # since when a seat is to come of what was scaled to zero
    bytes_take: float = 0.0  # what that one's state was expected to take then, without the pod (s)
    asked_as: SeatState = SeatState.WAITING  # its state then
    expected: Wait | None = None  # of what is on its way
    ready_at: float = 0.0  # when it serves by that

    def aim(self, seat: Seat, now: float) -> None:
        """From now on this seat is asked. A guess about it takes the place of no measurement."""
        self.target, self.since, self.asked_as = seat.info.uid, now, seat.info.state
        expected, known = seat.expected, self.roused is not None and self.expected
        if not known or (expected is not None and expected.measured >= known.measured):
            self._expect(expected, now)

    def rouse(self, bytes_take: float, expected: Wait | None, now: float) -> None:
        """From now on a pod is to come."""
        self.roused, self.bytes_take = now, bytes_take
        self._expect(expected, now)

    def _expect(self, expected: Wait | None, now: float) -> None:
        self.expected, self.ready_at = expected, now + (expected.seconds if expected else 0.0)

    def left(self, now: float) -> Wait | None:
        """What is left of it; None if nothing tells."""
        if self.expected is None:
            return None
        return Wait(max(0.0, self.ready_at - now), self.expected.measured)

    @property
    def asked(self) -> bool:
        """Whether anything is on its way."""
        return self.target is not None or self.roused is not None


def newer(before: float, took: float) -> float:
    """What is expected of the next wait, after this one."""
    return before + (took - before) * _NEWEST


def load(seat: Seat) -> tuple[int, str]:
    """Sorts seats by their requests, the least first."""
    return len(seat.in_flight), str(seat.info.uid)


def order(seat: Seat) -> tuple[str, str, str]:
    """Sorts seats by model, node and name."""
    return seat.info.route, seat.info.node, seat.info.name


def end(seat: Seat, reason: str) -> list[Action]:
    """End all that is in flight there."""
    return [*(Abort(ticket, reason) for ticket in sorted(seat.in_flight)), Close(seat.info.uid)]
