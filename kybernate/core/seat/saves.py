"""Snapshots: a seat's state that is kept for good while its workload continues. Pure.

A seat that serves is drained and parked, its frozen tree is written down, and it continues at once:
sealing and copying work on the files. One that is offloaded has its state in a sealed
artifact already, which is kept then.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.core.seat.operations import Kind, Progress, Verdict, why_not_there
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, TIER_OF, WITHOUT_TREE
from kybernate.core.tiers.tiering import deeper
from kybernate.dataclass import dataclass
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from kybernate.core.seat.operations import SeatFacts

_KEPT_IN = {Tier.NVME: "on this node's NVMe", Tier.OBJECT: "in the object store"}
_PRECOPY_BYTES, _PRECOPY_RATE = 256 << 20, 50e6
"""A smaller state is sent in less time than its workload would stand still once more. So many bytes
a second are counted on, as by an evacuation that has sent nothing yet."""


class Phase(StrEnum):
    """How far a save is. The last two are ends."""

    WANTED = "wanted"
    WRITING = "writing"
    SEALING = "sealing"
    COPYING = "copying"
    HELD = "held"
    FAILED = "failed"


class Next(StrEnum):
    """What a save that is wanted does now."""

    WAIT = "wait"
    SEND_AWAY = "send-away"
    WRITE = "write"
    KEEP_ARTIFACT = "keep-artifact"
    GIVE_UP = "give-up"


@dataclass(frozen=True, slots=True)
class SaveFacts:
    """One save. `why` says why it failed; `goal` is the tier where its artifact is to be kept."""

    phase: Phase
    goal: Tier
    artifact: str = ""
    why: str = ""


def keeping_tier(seat: SeatFacts, asked: Tier | None) -> Tier:
    """Where a save of this seat is kept: as asked, or the deepest that there is and that it may."""
    if asked is not None:
        return asked
    there = [tier for tier in Tier if tier in seat.tiers and not deeper(tier, seat.deepest)]
    return there[-1] if there[1:] else Tier.NVME


def why_refused(seat: SeatFacts, kind: Kind, asked: Tier | None) -> str:
    """Why its state can't go to this tier, or be kept there, whatever happens; empty if it may."""
    if kind is not Kind.SAVE:
        return why_not_there(seat, asked) if asked else ""
    if asked is Tier.RAM:
        return "a save outlives the RAM of its processes; keep it in nvme or object"
    return why_not_there(seat, keeping_tier(seat, asked))


def is_precopied(seat: SeatFacts, size: int, left_s: float, *, others: bool) -> bool:
    """Whether a snapshot of its state, of so many bytes, is worth its short pause, before the state
    is put into the object store for good, for which `left_s` seconds are left: all of it may have
    to be sent again. `others`: seats that would have its GPUs meanwhile."""
    timely = 2 * size <= _PRECOPY_RATE * left_s
    may = not (why_not_there(seat, Tier.OBJECT) or seat.unparkable or seat.undumpable)
    serves = seat.state is SeatState.ACTIVE and not seat.ending
    return serves and may and timely and not others and size >= _PRECOPY_BYTES


def next_step(seat: SeatFacts | None, *, busy: bool) -> Next:
    """What to do for a save that is wanted. `busy`: something else is being done to the seat."""
    if seat is None or seat.ending or seat.state is SeatState.FAILED:
        return Next.GIVE_UP
    if seat.state in {*AT_GATE, SeatState.GONE}:
        return Next.GIVE_UP
    if seat.state is SeatState.ACTIVE:
        return Next.SEND_AWAY
    if busy:
        return Next.WAIT
    if seat.state is SeatState.PARKED:
        return Next.WRITE
    return Next.KEEP_ARTIFACT if seat.state in WITHOUT_TREE else Next.WAIT


def judge_save(seat: SeatFacts | None, save: SaveFacts) -> Verdict:
    """How far a save has come."""
    match save.phase:
        case Phase.HELD:
            return Verdict(
                Progress.SUCCEEDED,
                f"{save.artifact} is kept {_KEPT_IN[save.goal]} until it is deleted "
                "(kybernate artifacts rm)",
            )
        case Phase.FAILED:
            return Verdict(Progress.FAILED, save.why)
        case Phase.COPYING:
            return Verdict(Progress.RUNNING, f"{save.artifact} is copied to {save.goal}")
        case Phase.SEALING:
            return Verdict(Progress.RUNNING, "its state is written down and is being sealed")
        case Phase.WRITING:
            return Verdict(Progress.RUNNING, "its frozen processes are being written down")
        case Phase.WANTED:
            return _waits(seat)


def _waits(seat: SeatFacts | None) -> Verdict:
    if seat is None:
        return Verdict(Progress.FAILED, why_given_up(seat))
    if seat.unparkable and seat.state in OCCUPYING:
        return Verdict(
            Progress.PENDING,
            f"it can't be parked now, and is saved frozen only: {seat.unparkable}; make room in "
            "the host's memory, or raise the container's limit",
        )
    running = seat.state in TIER_OF or seat.state in (SeatState.DRAINING, SeatState.PARKING)
    progress = Progress.RUNNING if running else Progress.PENDING
    return Verdict(progress, f"it is {seat.state} and is saved once it stands still")


def why_given_up(seat: SeatFacts | None) -> str:
    """Why there is nothing to save."""
    if seat is None:
        return "its pod is gone, and with it what the seat held"
    if seat.state in AT_GATE and not seat.ending:
        return f"nothing of it runs: there is nothing to save ({seat.reason})"
    return f"its workload ended before its state was saved ({seat.reason})"


def plan_save(seat: SeatFacts, asked: Tier | None) -> tuple[str, ...]:
    """What a save would do, in order."""
    goal = keeping_tier(seat, asked)
    if seat.state in WITHOUT_TREE:
        steps = [f"{seat.name} is offloaded: the state that it has there is kept."]
    else:
        steps = [
            "Its frozen processes are written to the node's NVMe.",
            "It continues at once, while what was written is synced, hashed and sealed.",
        ]
        if seat.state in OCCUPYING:
            steps.insert(
                0,
                f"{seat.name} is {seat.state}: its requests in flight are let end, "
                "its GPU memory is moved into the host's RAM, and it is frozen.",
            )
            steps[2] = "It is woken at once, while what was written is synced, hashed and sealed."
        if seat.undumpable:
            steps.insert(0, f"The last try to write it down was refused: {seat.undumpable}.")
    if goal is Tier.OBJECT:
        steps.append("The artifact is copied to the object store, and verified there.")
    steps.append(f"It is kept {_KEPT_IN[goal]} until it is deleted (kybernate artifacts rm).")
    return tuple(steps)
