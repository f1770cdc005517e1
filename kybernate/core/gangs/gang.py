"""Gangs: pods that get their seats together, or none of them. Pure.

A gang's pods are held by a scheduling gate until all of them exist and a plan has a seat for each.
The plan is written into the pods before the first gate is lifted, so that after a crash the pods
alone say which seats are held, until when, and what is left to do. `judge` finds the next step from
the pods as they are; doing a step twice, or stopping in the middle of one, is harmless.

Invariants: no member holds a planned seat unless all unbound members do, but for as long as a plan
is being written or taken back; and a planned seat is held for a limited time. So gangs never wait
for each other's seats: whoever waits holds none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kybernate.core.placement import Demand
    from kybernate.types import GroupName, NodeName, PodRef

MOST_MEMBERS = 256
"""The largest gang: its plan is searched, written and lifted pod by pod."""

_NAMED = 5
"""How many pods a sentence names."""


@dataclass(frozen=True, slots=True)
class PlannedSeat:
    """A seat that is held for a member until `until`, in seconds since 1970."""

    node: NodeName
    group: GroupName
    until: float


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a gang that exists and isn't ending.

    `size` is what it says of the gang's size, as it was written. `node` and `group` are where it is
    bound, `seat` is what is held for it. `gates` are all its scheduling gates. `problem` says why
    no seat can ever suit it. `created` is RFC 3339.
    """

    pod: PodRef
    gang: str
    size: str | None
    demand: Demand | None
    problem: str = ""
    node: NodeName | None = None
    group: GroupName | None = None
    seat: PlannedSeat | None = None
    gates: tuple[str, ...] = ()
    priority: int = 0
    created: str = ""


class Act(StrEnum):
    """What is to be done for a gang."""

    NOTHING = "nothing"
    WAIT = "wait"
    PLAN = "plan"
    LIFT = "lift"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Step:
    """The next step, for which members, and why.

    PLAN: find seats for the members, hold and write them. LIFT: lift the members' gates. RELEASE:
    take back the seats that are held for the members.
    """

    act: Act
    members: tuple[Member, ...] = ()
    reason: str = ""


def parse_size(text: str | None) -> int:
    """The gang's size as a pod says it. Raises ConfigError with what to write instead."""
    if text is None:
        raise ConfigError(
            keys.GANG_SIZE,
            f"it is missing; write how many pods the gang has, since {keys.GANG} is set",
        )
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_MEMBERS))
    size = int(text) if digits else 0
    if not 1 <= size <= MOST_MEMBERS:
        raise ConfigError(
            keys.GANG_SIZE, f"{text[:40]!r} is no whole number from 1 to {MOST_MEMBERS}"
        )
    return size


def judge(members: Sequence[Member], now: float, stands: Callable[[Member], bool]) -> Step:
    """The next step for a gang. `now` in seconds since 1970.

    `stands` says whether the seat that is held for a member can still be given to it.
    """
    unbound = tuple(member for member in members if member.node is None)
    planned = tuple(member for member in unbound if member.seat is not None)
    if not unbound:
        return Step(Act.NOTHING)
    broken = trouble(members) or _broken(unbound, planned, now, stands)
    if broken:
        return Step(Act.RELEASE if planned else Act.WAIT, planned, broken)
    if not planned:
        return Step(Act.PLAN, unbound)
    gated = tuple(member for member in unbound if keys.GANG_GATE in member.gates)
    if gated:
        return Step(Act.LIFT, gated)
    return Step(Act.WAIT, reason=f"seats are held for it; to be bound: {names(unbound)}")


def trouble(members: Sequence[Member]) -> str:
    """Why there can be no plan for a gang as its pods are, whatever is free; "" if there can."""
    sizes: dict[int, Member] = {}
    for member in members:
        try:
            sizes.setdefault(parse_size(member.size), member)
        except ConfigError as error:
            return f"pod {member.pod.name}: {error}"
    if len(sizes) > 1:
        stated = ", ".join(f"{one.pod.name} says {size}" for size, one in sorted(sizes.items()))
        return f"its pods disagree on {keys.GANG_SIZE} ({stated}); give all of them the same"
    (size,) = sizes or (0,)
    if len(members) > size:
        return (
            f"it has {len(members)} pods ({names(members)}), and {keys.GANG_SIZE} is {size}: "
            f"raise it, or give the others another {keys.GANG}"
        )
    if len(members) < size:
        return f"{len(members)} of its {size} pods exist ({names(members)})"
    return _of_members(members)


def in_turn(gangs: Iterable[Sequence[Member]]) -> list[Sequence[Member]]:
    """The gangs in the order in which they are planned: highest priority, then oldest first."""

    def turn(members: Sequence[Member]) -> tuple[object, ...]:
        first = min(members, key=lambda one: (one.created, one.pod.uid))
        return -max(one.priority for one in members), first.created, first.pod.uid

    return sorted((members for members in gangs if members), key=turn)


def _of_members(members: Sequence[Member]) -> str:
    for member in members:
        if member.node is not None:
            continue
        if member.problem or member.demand is None:
            return f"pod {member.pod.name}: {member.problem or 'it asks for no seat'}"
        others = [gate for gate in member.gates if gate != keys.GANG_GATE]
        if others:
            return f"pod {member.pod.name} is held by the scheduling gate {others[0]}"
    return ""


def _broken(
    unbound: Sequence[Member],
    planned: Sequence[Member],
    now: float,
    stands: Callable[[Member], bool],
) -> str:
    """Why the plan that is written is none any more; "" if it is, or there was none."""
    if not planned:
        return ""
    if len(planned) < len(unbound):
        without = [member for member in unbound if member.seat is None]
        return f"the plan lacks a seat for {names(without)}"
    late = [member for member in planned if member.seat and member.seat.until <= now]
    if late:
        return f"the scheduler did not bind {names(late)} in time"
    fallen = [member for member in planned if not stands(member)]
    if fallen:
        seats = ", ".join(
            f"{member.seat.group} of {member.seat.node}" for member in fallen if member.seat
        )
        return f"a seat that was planned can't be had any more ({seats})"
    return ""


def names(members: Sequence[Member]) -> str:
    """The names of pods, as a sentence has them: not all of too many."""
    names = sorted(member.pod.name for member in members)
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
