"""The protocol of a migration: one table of transitions for both of its ends. Pure.

A seat's workload continues in another pod, on another node or on the same one. The agent at the
source and the agent at the target each take (state, event) to the next state. A step is taken as
its acts, in order, the journal's first; then the work of the new state begins, whose end is the
next event. An agent may die between any two acts: `resume` and `found_target` tell from what
survives it (records and artifacts, at either end) where the next agent continues.

What holds after each act: at most one of the two pods may run; the newest state exists at one end
at least. Two rules see to that. The target continues only after the source's tree is ended, and
the journal at the source says which artifact the target keeps. And that note is void before the
workload may run at the source again.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.core.migration import notes
from kybernate.core.seat.seats import AT_GATE
from kybernate.dataclass import dataclass
from kybernate.errors import IllegalTransitionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.migration.notes import MoveNote
    from kybernate.types import SeatState


class State(StrEnum):
    """How far a migration is: at the source, then at the target."""

    SEEKING = "seeking"
    ASKING = "asking"
    STAGING = "staging"
    LEAVING = "leaving"
    DELIVERED = "delivered"
    ENDING = "ending"
    RELEASING = "releasing"
    RECLAIMING = "reclaiming"
    CANCELLING = "cancelling"
    MOVED = "moved"
    LOST = "lost"
    STAYED = "stayed"
    EMPTY = "empty"
    RECEIVING = "receiving"
    HOLDING = "holding"
    CONTINUING = "continuing"


class Event(StrEnum):
    """What can happen to a migration. Each is a fact already."""

    FOUND = "found"
    NOT_YET = "not-yet"
    ACCEPTED = "accepted"
    ACCEPTED_HERE = "accepted-here"
    STAGED = "staged"
    SENT = "sent"
    VERIFIED = "verified"
    TREE_ENDED = "tree-ended"
    CONTINUES = "continues"
    REJECTED = "rejected"
    CLAIMED = "claimed"
    CLAIMED_ELSEWHERE = "claimed-elsewhere"
    FAILED = "failed"
    CANCEL = "cancel"
    CANCEL_OWED = "cancel-owed"
    PARTS = "parts"
    DELIVERY = "delivery"
    LACKING = "lacking"
    RELEASE = "release"
    CANCELLED = "cancelled"
    POD_GONE = "pod-gone"


class Act(StrEnum):
    """What an agent does within a step. Each may be done again without harm."""

    WITHDRAW_CANCEL = "withdraw-cancel"
    NOTE = "note"
    NOTE_SYNCED = "note-synced"
    NOTE_AT_LAST = "note-at-last"
    FORGET_NOTE = "forget-note"
    OWE_CANCEL = "owe-cancel"
    TAKE_BACK = "take-back"
    SERVE = "serve"
    MAY_WAKE = "may-wake"
    STAY = "stay"
    SLEEP = "sleep"
    SLEEP_FOR_GOOD = "sleep-for-good"
    REPORT_STOPPED = "report-stopped"
    LET_GO = "let-go"
    OPEN = "open"
    NOTE_ARRIVAL = "note-arrival"
    VERIFY = "verify"
    FORGET_ARRIVAL = "forget-arrival"
    REPORT_COPY = "report-copy"
    DROP_OLDER = "drop-older"
    ADOPT = "adopt"
    NOTE_TAKEN = "note-taken"
    SYNC = "sync"
    DROP_PARTS = "drop-parts"
    DROP_ARRIVAL = "drop-arrival"
    DROP_UNCLAIMED = "drop-unclaimed"


@dataclass(frozen=True, slots=True)
class Step:
    """To which state, by which acts in this order, and why, as a sentence without its end."""

    to: State
    acts: tuple[Act, ...]
    why: str


TARGET = frozenset({State.EMPTY, State.RECEIVING, State.HOLDING, State.CONTINUING})
"""States at the target; all others are at the source."""

OVER = frozenset({State.MOVED, State.LOST, State.STAYED})
"""States at the source in which nothing more is to be done."""

STATE_MEANING: Mapping[State, str] = MappingProxyType(
    {
        State.SEEKING: "the successor's pod is looked for; the workload serves",
        State.ASKING: "the target is asked whether the successor waits and has room",
        State.STAGING: "blocks of an earlier artifact are sent ahead; the workload serves",
        State.LEAVING: "the seat is parked, and its tree written down and sent",
        State.DELIVERED: "the target keeps the artifact; the tree is still here, and may stay",
        State.ENDING: "the tree is ended, whatever happens: the seat's record has the artifact",
        State.RELEASING: "nothing of the tree is left; the target is told to continue",
        State.RECLAIMING: "the successor never continues: the pod claims its own artifact",
        State.CANCELLING: "the workload continues here; the target is told to drop what came",
        State.MOVED: "the successor continues; nothing wakes the seat here again",
        State.LOST: "another pod has the claim: the workload continues neither here nor there",
        State.STAYED: "the workload continues here; the target knows, or is told until it does",
        State.EMPTY: "nothing of the artifact is here",
        State.RECEIVING: "parts arrive; nothing is verified yet",
        State.HOLDING: "verified and kept; nobody continues with it before the source says so",
        State.CONTINUING: "the successor's record names the artifact, and its claim is made",
    }
)

EVENT_MEANING: Mapping[Event, str] = MappingProxyType(
    {
        Event.FOUND: "the API server names the successor's UID and node",
        Event.NOT_YET: "the successor is not there yet, or its agent does not answer",
        Event.ACCEPTED: "the successor waits for just this pod, on a node with room",
        Event.ACCEPTED_HERE: "the same, on this node: nothing has to travel",
        Event.STAGED: "what can go ahead has gone, or nothing can",
        Event.SENT: "all that was written down has gone",
        Event.VERIFIED: "the target has verified the artifact and keeps it",
        Event.TREE_ENDED: "no process of the seat is left, and its record says so",
        Event.CONTINUES: "the successor continues, on the target's disk",
        Event.REJECTED: "the successor never continues with it",
        Event.CLAIMED: "the pod has the claim on its own artifact",
        Event.CLAIMED_ELSEWHERE: "another pod has the claim",
        Event.FAILED: "a step came to nothing for good",
        Event.CANCEL: "people cancelled the operation, or its time is over",
        Event.CANCEL_OWED: "the target was told once; who has not heard is told again",
        Event.PARTS: "parts of the state, or of an earlier one, arrive",
        Event.DELIVERY: "all was sent: the source asks the target to keep the artifact",
        Event.LACKING: "pieces are missing, or are not what was signed",
        Event.RELEASE: "the source says that the pod's processes are ended",
        Event.CANCELLED: "the source says that the pod continues there",
        Event.POD_GONE: "the successor's pod is gone",
    }
)

ACT_MEANING: Mapping[Act, str] = MappingProxyType(
    {
        Act.WITHDRAW_CANCEL: "delete `calloff/`: what comes from now on is wanted",
        Act.NOTE: "write `move/`, in the journal's order",
        Act.NOTE_SYNCED: "write `move/` with the artifact to the disk; its failure fails the step",
        Act.NOTE_AT_LAST: "write `move/` to the disk, however long that takes",
        Act.FORGET_NOTE: "delete `move/`",
        Act.OWE_CANCEL: "write `calloff/`: the target is told until it has heard",
        Act.TAKE_BACK: "within a node: an artifact that was held for the successor is the pod's",
        Act.SERVE: "requests are answered here while the successor is waited for",
        Act.MAY_WAKE: "nothing keeps the seat from waking here any more",
        Act.STAY: "the same; it need not park any more, and is woken if it served",
        Act.SLEEP: "whoever calls for the seat, it does not wake",
        Act.SLEEP_FOR_GOOD: "callers are told where it continues, or why nowhere",
        Act.REPORT_STOPPED: "tell the registry that the pod's workload has stopped",
        Act.LET_GO: "within a node: the seat names the artifact no more",
        Act.OPEN: "TCP is held back no more, so that clients' old connections end",
        Act.NOTE_ARRIVAL: "write `arrived/`: for which successor the artifact is here",
        Act.VERIFY: "hold each piece against the signed manifest, which is kept last",
        Act.FORGET_ARRIVAL: "delete `arrived/`",
        Act.REPORT_COPY: "tell the registry whether a copy is on its way to this node",
        Act.DROP_OLDER: "drop earlier artifacts of the pod that came for the successor",
        Act.ADOPT: "claim the artifact, and write it into the successor's record",
        Act.NOTE_TAKEN: "write `taken/` to the disk: a repeated release hears the same",
        Act.SYNC: "the artifact's files are on the disk",
        Act.DROP_PARTS: "remove what is only half here",
        Act.DROP_ARRIVAL: "drop the artifact, unless a seat or a person has it",
        Act.DROP_UNCLAIMED: "drop the artifact after `keep_left_s`, unless another pod waits",
    }
)

_BEFORE_PARK = (State.SEEKING, State.ASKING)
_MAY_STAY = (State.STAGING, State.LEAVING, State.DELIVERED)
_STAYS = (Act.OWE_CANCEL, Act.FORGET_NOTE, Act.STAY)

_TABLE: dict[tuple[State, Event], Step] = {
    (State.SEEKING, Event.FOUND): Step(
        State.ASKING,
        (Act.NOTE, Act.WITHDRAW_CANCEL),
        "what is owed would drop what comes now; the note tells whom to cancel with instead",
    ),
    (State.SEEKING, Event.NOT_YET): Step(
        State.SEEKING, (Act.SERVE,), "an agent that died may have sent the seat away already"
    ),
    (State.ASKING, Event.NOT_YET): Step(
        State.SEEKING, (Act.SERVE,), "another pod of the name may come"
    ),
    (State.ASKING, Event.ACCEPTED): Step(State.STAGING, (), "there is somebody to send to"),
    (State.ASKING, Event.ACCEPTED_HERE): Step(State.LEAVING, (), "on one node nothing travels"),
    (State.STAGING, Event.STAGED): Step(State.LEAVING, (), "without it, it only takes longer"),
    (State.LEAVING, Event.SENT): Step(
        State.LEAVING, (), "people are shown it; the target has not verified it yet"
    ),
    (State.LEAVING, Event.VERIFIED): Step(
        State.DELIVERED, (Act.NOTE_SYNCED,), "the next agent must know before the tree is ended"
    ),
    (State.DELIVERED, Event.VERIFIED): Step(
        State.DELIVERED, (Act.NOTE_SYNCED,), "the dump came to nothing after all, and was repeated"
    ),
    (State.DELIVERED, Event.TREE_ENDED): Step(
        State.RELEASING,
        (Act.SLEEP, Act.REPORT_STOPPED),
        "from here on the successor may run",
    ),
    (State.ENDING, Event.TREE_ENDED): Step(
        State.RELEASING,
        (Act.SLEEP, Act.REPORT_STOPPED),
        "from here on the successor may run",
    ),
    (State.RELEASING, Event.CONTINUES): Step(
        State.MOVED,
        (Act.SLEEP_FOR_GOOD, Act.NOTE_AT_LAST, Act.LET_GO, Act.OPEN),
        "until the note is done, the seat's record tells how far it is",
    ),
    (State.RELEASING, Event.REJECTED): Step(
        State.RECLAIMING, (), "a claim decides between this pod and any other"
    ),
    (State.RECLAIMING, Event.CLAIMED): Step(
        State.CANCELLING,
        (Act.NOTE_AT_LAST, *_STAYS),
        "the note is void before it may run",
    ),
    (State.RECLAIMING, Event.CLAIMED_ELSEWHERE): Step(
        State.LOST,
        (Act.SLEEP_FOR_GOOD, Act.NOTE_AT_LAST, Act.OPEN),
        "it must not run beside the other",
    ),
    (State.CANCELLING, Event.CANCEL_OWED): Step(
        State.STAYED, (), "the record of what is owed outlives agents"
    ),
    (State.EMPTY, Event.PARTS): Step(State.RECEIVING, (), "they are for a seat that waits here"),
    (State.RECEIVING, Event.PARTS): Step(State.RECEIVING, (), "what is here is not sent again"),
    (State.HOLDING, Event.PARTS): Step(
        State.HOLDING, (), "the next agent over there begins the migration again"
    ),
    (State.HOLDING, Event.LACKING): Step(
        State.RECEIVING, (Act.FORGET_ARRIVAL, Act.REPORT_COPY), "whole files are sent again"
    ),
    (State.CONTINUING, Event.RELEASE): Step(
        State.CONTINUING,
        (Act.NOTE_TAKEN, Act.DROP_OLDER, Act.SYNC),
        "the answer to the first was lost",
    ),
    (State.CONTINUING, Event.CANCELLED): Step(
        State.CONTINUING, (Act.DROP_PARTS,), "the successor's artifact is its own"
    ),
    (State.CONTINUING, Event.POD_GONE): Step(
        State.EMPTY, (Act.DROP_PARTS,), "what a pod leaves has rules of its own"
    ),
}
_TABLE |= {
    (state, event): Step(State.CANCELLING, _STAYS, "no note binds this end yet")
    for state in _BEFORE_PARK
    for event in (Event.FAILED, Event.CANCEL)
}
_TABLE |= {
    (state, event): Step(
        State.CANCELLING, (Act.NOTE_AT_LAST, *_STAYS), "the note is void before it may run"
    )
    for state in _MAY_STAY
    for event in (Event.FAILED, Event.CANCEL)
}
for _state in (State.EMPTY, State.RECEIVING, State.HOLDING):
    _TABLE |= {
        (_state, Event.DELIVERY): Step(
            State.HOLDING,
            (Act.NOTE_ARRIVAL, Act.VERIFY, Act.REPORT_COPY, Act.DROP_OLDER),
            "noted before it is here, so that no agent's death leaves it",
        ),
        (_state, Event.RELEASE): Step(
            State.CONTINUING,
            (Act.ADOPT, Act.NOTE_TAKEN, Act.DROP_OLDER, Act.SYNC),
            "the source drops its copy only after that",
        ),
        (_state, Event.CANCELLED): Step(
            State.EMPTY, (Act.DROP_PARTS, Act.DROP_ARRIVAL), "the pod continues over there"
        ),
        (_state, Event.POD_GONE): Step(
            State.EMPTY,
            (Act.DROP_PARTS, Act.DROP_UNCLAIMED),
            "it may be all that is left of the pod over there",
        ),
    }

TRANSITIONS: Mapping[tuple[State, Event], Step] = MappingProxyType(_TABLE)


def step(state: State, event: Event) -> Step:
    """What the event brings. Raises IllegalTransitionError if the table has no such entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        known = ", ".join(e for s, e in TRANSITIONS if s is state) or "none"
        raise IllegalTransitionError(
            f"a migration that is {state} can't take the event {event}; it takes: {known}"
        ) from None


def takes(state: State, event: Event) -> bool:
    """Whether the table has an entry for it."""
    return (state, event) in TRANSITIONS


# --- the source -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration as its source has it. `note`: what the journal has, or has to have next; None
    while no successor was found. `began` in seconds; `phases`: seconds since then, by what had been
    reached."""

    began: float
    state: State = State.SEEKING
    note: MoveNote | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


_REACHED: Mapping[tuple[State, Event], str] = MappingProxyType(
    {
        (State.ASKING, Event.ACCEPTED): "met",
        (State.ASKING, Event.ACCEPTED_HERE): "met",
        (State.STAGING, Event.STAGED): "staged",
        (State.LEAVING, Event.SENT): "sent",
        (State.LEAVING, Event.VERIFIED): "delivered",
        (State.DELIVERED, Event.TREE_ENDED): "ended",
        (State.RELEASING, Event.CONTINUES): "all",
    }
)
"""What an operation's phases call it: names of its API."""


def advance(
    one: Migration,
    event: Event,
    now: float,
    *,
    note: MoveNote | None = None,
    artifact: str = "",
    why: str = "",
) -> tuple[Migration, Step]:
    """The migration after the event, and the step. `note`: who was found; `artifact`: what was
    verified; `why`: of what is lost. Raises IllegalTransitionError."""
    taken = step(one.state, event)
    noted = note or one.note
    if noted is not None:
        if taken.to is State.DELIVERED:
            noted = notes.delivered(noted, artifact)
        elif taken.to is State.CANCELLING:
            noted = notes.outdated(noted)
        elif taken.to in (State.MOVED, State.LOST):
            noted = notes.done(noted, why)
    reached = _REACHED.get((one.state, event))
    phases = {**one.phases, reached: now - one.began} if reached else one.phases
    return replace(one, state=taken.to, note=noted, phases=phases), taken


@dataclass(frozen=True, slots=True)
class Survived:
    """What the last agent at the source has left. `live`: the operation has not ended; `state` and
    `artifact`: the seat's record, None and "" if the pod has no seat here."""

    note: MoveNote | None
    live: bool
    state: SeatState | None
    artifact: str = ""


def resume(left: Survived, now: float) -> tuple[Migration, Step]:
    """Where the next agent at the source continues, and by which acts."""
    note, taken = left.note, _found(left)
    if note is not None and taken.to in (State.SEEKING, State.CANCELLING):
        note = notes.outdated(note)
    return Migration(now, taken.to, note), taken


def _found(left: Survived) -> Step:
    note = left.note
    if note is None:
        return Step(State.SEEKING, (), "no successor was met")
    if note.done:
        return _found_done(note, left.state)
    if not left.live:
        acts = (Act.TAKE_BACK, Act.OWE_CANCEL, Act.FORGET_NOTE)
        return Step(State.CANCELLING, acts, "the last agent died before it did")
    if may_continue_there(note, left.state, left.artifact):
        return Step(State.ENDING, (Act.SLEEP,), "the successor may have the state")
    acts = (Act.NOTE, Act.TAKE_BACK, Act.MAY_WAKE)
    return Step(State.SEEKING, acts, "the workload may run here, so an older note is void")


def _found_done(note: MoveNote, state: SeatState | None) -> Step:
    to = State.LOST if note.lost else State.MOVED
    if state is None:
        return Step(to, (Act.FORGET_NOTE,), "the pod is gone")
    let_go = () if note.lost else (Act.LET_GO,)
    return Step(to, (Act.SLEEP_FOR_GOOD, *let_go, Act.OPEN), "the last agent saw it")


def may_continue_there(note: MoveNote, state: SeatState | None, artifact: str) -> bool:
    """Whether the successor may continue: by its note, and by the seat's own record, None and "" if
    there is no seat, its tree is ended, or must be."""
    ended = note.done or state is None or state in AT_GATE
    return bool(note.artifact) and (ended or artifact == note.artifact)


# --- the target -----------------------------------------------------------------------------------


def found_target(*, parts: bool, delivered: bool, continues: bool) -> State:
    """Where the target is with an artifact. `parts` of it are here; `delivered`: its journal says
    for whom it is here; `continues`: the successor's record, or `taken/` names it."""
    if continues:
        return State.CONTINUING
    if delivered:
        return State.HOLDING
    return State.RECEIVING if parts else State.EMPTY
