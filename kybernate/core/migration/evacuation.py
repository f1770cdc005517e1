"""Which seats' states are saved when the node is gone in some seconds, and in which order. Pure.

What lies in the object store already costs nothing and is always saved. Of the others the more
important go first, and among equals those that are requested most for each second that saving them
takes. Two things continue at once: one state is written down while the one before is sent; each in
its turn has all of the disk, or of the network. A state that would not be there in time is passed
over, so that a smaller one gets its chance.

The evacuation itself is a table: for each seat that is saved, (state, event) to the next state and
the acts that take it there. Nothing of it is recorded but the operation: an agent that died plans
again with the time that is left, and each act may be done again.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kybernate.types import PodUid


_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Load:
    """One seat. `gpu` and `host`: bytes of its GPUs' memory, and of the host's besides, that must
    be written down, 0 if that is done; `send`: bytes that must reach the object store, 0 if they
    are there. `priority` is the pod's, `calls` how often per hour requests are expected for it.
    `why_not`: why it can't be saved at all. `earlier`: a state of before that is in the object
    store and stays there; how much of it is the state of now as well nobody knows before that is
    written."""

    uid: PodUid
    name: str
    gpu: int
    host: int
    send: int
    priority: int = 0
    calls: float = 0.0
    why_not: str = ""
    earlier: str = ""

    @property
    def write(self) -> int:
        """Bytes that must be written down."""
        return self.gpu + self.host


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second, as measured, of writing down and of sending; above zero."""

    write: float
    send: float


@dataclass(frozen=True, slots=True)
class Saving:
    """One that is saved: `ready` seconds from now on, at these rates."""

    load: Load
    ready: float


@dataclass(frozen=True, slots=True)
class Lost:
    """One that isn't, and why, as a sentence without its end."""

    load: Load
    why: str


@dataclass(frozen=True, slots=True)
class Evacuation:
    """What to do: in this order. And who is left behind."""

    saved: tuple[Saving, ...]
    lost: tuple[Lost, ...]


def plan(loads: Iterable[Load], rates: Rates, seconds: float) -> Evacuation:
    """What can be saved within so many seconds."""
    saved: list[Saving] = []
    lost: list[Lost] = []
    written = sent = 0.0
    for load in sorted(loads, key=lambda one: _turn(one, rates)):
        if load.send and load.why_not:
            lost.append(Lost(load, load.why_not))
            continue
        there = written + load.write / rates.write
        ready = max(sent, there) + load.send / rates.send if load.send else 0.0
        if ready > seconds:
            lost.append(Lost(load, f"it would be saved after {ready:.0f} s, not {seconds:.0f}"))
            continue
        saved.append(Saving(load, ready))
        if load.send:
            written, sent = there, ready
    return Evacuation(tuple(saved), tuple(lost))


def _turn(load: Load, rates: Rates) -> tuple[bool, int, float, PodUid]:
    takes = max(load.write / rates.write, load.send / rates.send)
    return bool(load.send), -load.priority, takes / (1.0 + load.calls), load.uid


def sentences(plan: Evacuation) -> tuple[str, ...]:
    """The plan, for people."""
    steps = [
        f"{one.load.name} is saved already: its state is in the object store."
        if not one.load.send
        else f"{one.load.name} is saved after about {one.ready:.0f} s ({_bytes(one.load)})."
        for one in plan.saved
    ]
    steps += [f"{one.load.name} can't be saved: {one.why}{instead(one.load)}." for one in plan.lost]
    return tuple(steps)


def instead(load: Load) -> str:
    """What is left of one that isn't saved, behind the reason."""
    return f"; its earlier state {load.earlier} is in the object store" if load.earlier else ""


# --- the evacuation ------------------------------------------------------------------------------


class State(StrEnum):
    """How far a seat is that is to be saved."""

    QUEUED = "queued"
    WRITING = "writing"
    SENDING = "sending"
    STORED = "stored"
    PASSED = "passed over"
    GONE = "gone"


class Event(StrEnum):
    """What is seen of it, or of those before it."""

    TURN = "turn"
    WRITTEN = "written"
    STORED = "stored"
    REFUSED = "refused"
    ALLOWED = "allowed"
    GONE = "gone"


class Act(StrEnum):
    """What is done for it. Each may be done again."""

    SEND_AWAY = "send away"
    ASK_FOR_STORE = "ask for the object store"


STATE_MEANING: Mapping[State, str] = MappingProxyType(
    {
        State.QUEUED: "those before it have the disk",
        State.WRITING: "it is parked, and its tree written down",
        State.SENDING: "its artifact is sent; the next one has the disk",
        State.STORED: "its artifact is in the object store, and only there",
        State.PASSED: "it can't be saved for now, and holds up no other",
        State.GONE: "its pod is gone",
    }
)

EVENT_MEANING: Mapping[Event, str] = MappingProxyType(
    {
        Event.TURN: "none before it has the disk any more",
        Event.WRITTEN: "its tree has ended, and its artifact is all there is",
        Event.STORED: "its artifact is in the object store",
        Event.REFUSED: "it can't be saved just now",
        Event.ALLOWED: "it can be saved after all",
        Event.GONE: "its pod is gone",
    }
)

ACT_MEANING: Mapping[Act, str] = MappingProxyType(
    {
        Act.SEND_AWAY: "it leaves GPU memory, and stays away",
        Act.ASK_FOR_STORE: "its state is wanted in the object store",
    }
)

TRANSITIONS: Mapping[tuple[State, Event], tuple[State, tuple[Act, ...]]] = MappingProxyType(
    {
        (State.QUEUED, Event.TURN): (State.WRITING, (Act.SEND_AWAY, Act.ASK_FOR_STORE)),
        (State.WRITING, Event.WRITTEN): (State.SENDING, ()),
        (State.WRITING, Event.REFUSED): (State.PASSED, ()),
        (State.PASSED, Event.ALLOWED): (State.WRITING, ()),
        (State.PASSED, Event.WRITTEN): (State.SENDING, ()),
        (State.SENDING, Event.REFUSED): (State.PASSED, ()),
        **{
            (state, Event.STORED): (State.STORED, ())
            for state in (State.WRITING, State.SENDING, State.PASSED)
        },
        **{
            (state, Event.GONE): (State.GONE, ())
            for state in (State.QUEUED, State.WRITING, State.SENDING, State.PASSED)
        },
    }
)

OVER = frozenset({State.STORED, State.PASSED, State.GONE})
"""States in which nobody waits for it any more, unless it may be saved after all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A seat now. `written`: its tree has ended, and its artifact is all there is; `stored`: in the
    object store, too; `why_not`: why it can't be saved. None of these of a pod that is gone."""

    written: bool = False
    stored: bool = False
    why_not: str = ""
    gone: bool = False


def happened(state: State, seen: Seen) -> Event | None:
    """What has become of a seat in this state, if that is news."""
    if seen.gone:
        event = Event.GONE
    elif seen.stored:
        event = Event.STORED
    elif seen.why_not:
        event = Event.REFUSED
    else:
        event = Event.WRITTEN if seen.written else Event.ALLOWED
    return event if (state, event) in TRANSITIONS else None


def step(
    at: Mapping[PodUid, State], seen: Mapping[PodUid, Seen]
) -> tuple[PodUid, State, tuple[Act, ...]] | None:
    """What comes next, of seats in the order of `at`: a seat, its new state, and what to do first;
    None while nothing does. While one is written down, none behind it has its turn."""
    busy = False
    for uid, state in at.items():
        event = happened(state, seen[uid])
        if event is None and state is State.QUEUED and not busy:
            event = Event.TURN
        if event is not None:
            return uid, *TRANSITIONS[state, event]
        busy = busy or state is State.WRITING
    return None


def outcome(plan: Evacuation, stored: Iterable[PodUid]) -> tuple[tuple[str, ...], list[str]]:
    """At the end: a sentence for each seat, and who is left behind, and why."""
    there = set(stored)
    saved = [one.load.name for one in plan.saved if one.load.uid in there]
    late = [(one.load, "not in time") for one in plan.saved if one.load.uid not in there]
    lost = [(one.load, one.why) for one in plan.lost]
    left = [f"{load.name} ({why}{instead(load)})" for load, why in (*late, *lost)]
    told = (
        *(f"{name} is saved: its state is in the object store." for name in saved),
        *(f"{each} is not saved." for each in left),
    )
    return told, left


def _bytes(load: Load) -> str:
    """How much is sent, and what it is made of where both kinds of memory are written down."""
    all_of_it = f"{load.send / _GIB:.1f} GiB"
    if not (load.gpu and load.host):
        return all_of_it
    return f"{all_of_it}: {load.gpu / _GIB:.1f} of GPUs, {load.host / _GIB:.1f} of the host"
