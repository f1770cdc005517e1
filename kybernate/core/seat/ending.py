"""What becomes of a seat that ends, and of any seat when the agent is restarted. Pure."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import AT_GATE, TIER_OF
from kybernate.dataclass import dataclass
from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Mapping


class Ends(Enum):
    """Whether a seat's container is ending, and by whom."""

    NOT = auto()
    ASKED = auto()
    """It was asked to."""
    KILLED = auto()
    """By the agent, which lost its state while it held no GPU memory; or so its state said."""


class Watched(Enum):
    """What became of a seat of which processes are left."""

    ENDS = auto()
    """They will be gone."""
    STAYS = auto()
    """Its kyb-init is connected, and nobody asked it to end."""
    SURVIVED = auto()
    """It was asked to end, and nobody followed that up: it runs on."""


@dataclass(frozen=True, slots=True)
class EndView:
    """What the decision knows. `until`: when whoever asked it to end has killed it, on the clock of
    `now`. `replaced`: a new kyb-init waits for its place."""

    state: SeatState
    ends: Ends
    until: float
    connected: bool
    replaced: bool
    pod_ends: bool
    pod_gone: bool


def watched(view: EndView, now: float) -> Watched:
    """What became of it by now."""
    if view.replaced or view.pod_gone or not view.connected:
        return Watched.ENDS
    if view.ends is Ends.NOT:
        return Watched.ENDS if view.state is SeatState.FAILED else Watched.STAYS
    # What stands still can't have answered the signal; what is killed is followed up.
    follows = view.state in TIER_OF or view.state in (SeatState.FAILED, SeatState.UNVERIFIED)
    if view.pod_ends or follows or view.ends is Ends.KILLED or now < view.until:
        return Watched.ENDS
    return Watched.SURVIVED


class Resume(StrEnum):
    """What a restarted agent does with a seat."""

    NOTHING = "nothing: its kyb-init says what there is"
    WATCH_END = "see it to its end"
    AWAIT_START = "wait until it serves"
    ACTIVATE = "let requests go to it"
    UNDRAIN = "let requests go to it again"
    FINISH_PARK = "park it if all of it is checkpointed, else let it run on"
    FINISH_WAKE = "leave it parked if all of it is checkpointed, else wake it"
    KEEP_PARKED = "see it stand frozen"
    KEEP_OFFLOADED = "finish or revert what was begun, and hold its connections back"
    KILL = "kill it"


_RESUMES: Mapping[SeatState, Resume] = MappingProxyType(
    {
        SeatState.STARTING: Resume.AWAIT_START,
        SeatState.ACTIVE: Resume.ACTIVATE,
        SeatState.DRAINING: Resume.UNDRAIN,
        SeatState.PARKING: Resume.FINISH_PARK,
        SeatState.WAKING: Resume.FINISH_WAKE,
        SeatState.PARKED: Resume.KEEP_PARKED,
        SeatState.DUMPING: Resume.KEEP_OFFLOADED,
        SeatState.RESTORING: Resume.KEEP_OFFLOADED,
        SeatState.PARKED_NVME: Resume.KEEP_OFFLOADED,
        SeatState.PARKED_OBJECT: Resume.KEEP_OFFLOADED,
        SeatState.FAILED: Resume.KILL,
    }
)

_NOT_IF_ENDING = (Resume.UNDRAIN, Resume.KEEP_PARKED, Resume.KEEP_OFFLOADED)
"""What would hold up one whose container was asked to end."""


def resumed(state: SeatState, *, ending: bool, there: bool) -> Resume:
    """What to do with a seat whose record says so. `there`: its kyb-init is the same process."""
    if not there:
        return Resume.NOTHING if state in AT_GATE else Resume.WATCH_END
    found = _RESUMES.get(state, Resume.NOTHING)
    return Resume.NOTHING if ending and found in _NOT_IF_ENDING else found
