"""Whether the host's memory can take what a park would put into it.

A park moves a seat's device memory into the memory of its own processes. So it must fit the
container's limit, the node's budget for parked seats, and what the node has available; and a node
whose tasks already stall for want of memory parks no more. A park that does not fit is refused
before it begins, with what can be done about it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Self

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kybernate.types import PodUid

_GIB = 1 << 30


class ShortRule(StrEnum):
    """What becomes of a seat whose GPUs are needed and whose state the host can't keep."""

    WAIT = "wait"
    RESTART = "restart"


class Lack(StrEnum):
    """Why a park is refused: whose memory there is too little of.

    One that `passes` does so by itself, and the seat is waited for; for any other one it may be
    given up, where the setting says so. One that is `shared` ends once other seats leave the host's
    memory.
    """

    passes: bool
    shared: bool

    def __new__(cls, word: str, passes: bool, shared: bool) -> Self:
        """A member."""
        one = str.__new__(cls, word)
        one._value_ = word
        one.passes, one.shared = passes, shared
        return one

    CONTAINER = "container", False, False
    BUDGET = "budget", False, True
    HOST = "host", False, True
    PRESSURE = "pressure", True, False


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One cgroup with a memory limit. Bytes; `used` leaves out cached file pages that can go.

    `whose` says for people whose limit it is: "its container's", "its pod's".
    """

    whose: str
    limit: int
    used: int

    @property
    def room(self) -> int:
        """Bytes that still fit."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The node. Bytes; `stalled`: percent of the last 10 s in which all tasks stood still for
    want of memory, None if the kernel doesn't say."""

    total: int
    available: int
    stalled: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A seat that holds device memory: `need` bytes would go to the host if it were parked."""

    uid: PodUid
    need: int
    levels: tuple[MemoryLevel, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """`park_budget`: bytes that all parked seats may take. `reserve`: bytes of the host that stay
    available. `stalled`: percent from which on the node parks no more."""

    park_budget: int
    reserve: int
    stalled: float


@dataclass(frozen=True, slots=True)
class Load:
    """What is taken already. `parked`: bytes of all parked seats and those being parked;
    `underway`: the part of it that `HostMemory.available` doesn't show yet."""

    parked: int = 0
    underway: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a seat can't be parked now, as a sentence with the choices."""

    lack: Lack
    sentence: str


def refusals(
    seats: Iterable[Candidate], load: Load, host: HostMemory, limits: BudgetLimits
) -> Mapping[PodUid, Refusal]:
    """The seats that can't be parked now, each on its own; the others are left out."""
    found = ((seat.uid, refusal(seat, load, host, limits)) for seat in seats)
    return {uid: why for uid, why in found if why is not None}


def refusal(seat: Candidate, load: Load, host: HostMemory, limits: BudgetLimits) -> Refusal | None:
    """Why this seat can't be parked now, or None. What holds longest is named first."""
    if seat.need <= 0:
        return None
    return (
        _container(seat)
        or _budget(seat, load, limits)
        or _host(seat, load, host, limits)
        or pressure(host, limits)
    )


def _container(seat: Candidate) -> Refusal | None:
    tight = min(seat.levels, key=lambda level: level.room, default=None)
    if tight is None or seat.need <= tight.room:
        return None
    more = _gib(seat.need - tight.room)
    return Refusal(
        Lack.CONTAINER,
        f"parking it needs {_gib(seat.need)} of host memory and {tight.whose} memory limit of "
        f"{_gib(tight.limit)} leaves {_gib(tight.room)}: raise that limit by {more}, "
        f"{_OR_RESTART}",
    )


def _budget(seat: Candidate, load: Load, limits: BudgetLimits) -> Refusal | None:
    if load.parked + seat.need <= limits.park_budget:
        return None
    return Refusal(
        Lack.BUDGET,
        f"parking it needs {_gib(seat.need)} of host memory, and of the {_gib(limits.park_budget)} "
        f"that parked seats may use (park_bytes) {_gib(load.parked)} are taken: raise park_bytes, "
        f"end another parked seat, {_OR_RESTART}",
    )


def _host(seat: Candidate, load: Load, host: HostMemory, limits: BudgetLimits) -> Refusal | None:
    room = host.available - load.underway - limits.reserve
    if seat.need <= room:
        return None
    return Refusal(
        Lack.HOST,
        f"parking it needs {_gib(seat.need)} of host memory and the node can give "
        f"{_gib(max(0, room))}: end another parked seat or whatever else fills the node's memory, "
        f"{_OR_RESTART}",
    )


def pressure(host: HostMemory, limits: BudgetLimits) -> Refusal | None:
    """Why this node parks nothing at all now, or None."""
    if host.stalled is None or host.stalled < limits.stalled:
        return None
    return Refusal(
        Lack.PRESSURE,
        f"the node is short of memory: in the last 10 s all its tasks stood still for "
        f"{host.stalled:.0f} % of the time; it parks again below {limits.stalled:g} %. End what "
        "fills its memory",
    )


_OR_RESTART = "or let such seats start again when they are next wanted (memory_short: restart)"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
