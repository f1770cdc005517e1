"""Who may hold GPU memory now and how much, and what becomes of those that may not.

Pure judgements over a snapshot: the processes that the GPUs' driver lists, the pods they belong
to, and where those pods' seats are. A judgement is acted upon only when it stands at two looks
(`confirmed`): a wake, a start or an end may lie between two looks at the machine.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from kybernate.core.seat.seats import OCCUPYING
from kybernate.dataclass import dataclass
from kybernate.types import SeatState

_GIB = 1 << 30
_USING = (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from kybernate.types import GpuUuid, PodUid


class IntruderRule(StrEnum):
    """What is done with a process that holds a GPU without its turn."""

    PARK = "park"
    """Parked where a park can reach it, else ended."""
    KILL = "kill"
    REPORT = "report"


class Cause(StrEnum):
    """What is wrong with a process."""

    OUTSIDE = "outside-kubernetes"
    NO_SEAT = "no-seat"
    NOT_ACTIVE = "seat-not-active"
    OUTSIDE_TREE = "outside-tree"
    OTHER_GPU = "other-gpu"
    OVER_DECLARED = "over-declared"


class Remedy(StrEnum):
    """What to do about it."""

    PARK = "park"
    SEND_AWAY = "send-away"
    KILL_SEAT = "kill-seat"
    KILL_PROCESS = "kill-process"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A process that the driver lists. `memory`: bytes per GPU, None where it doesn't say.

    PID and start time (clock ticks since boot) name it exactly. `pod` is that of its cgroup;
    `in_tree` says that it is in the freezer sub-cgroup of its pod's seat.
    """

    pid: int
    start: int
    name: str
    memory: Mapping[GpuUuid, int | None]
    pod: PodUid | None = None
    in_tree: bool = False

    @property
    def gpus(self) -> frozenset[GpuUuid]:
        """The GPUs that it holds memory of, for all that is known."""
        return frozenset(gpu for gpu, size in self.memory.items() if size != 0)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a seat is. `settled`: its tree is known and nothing is under way that explains more.

    `epoch` changes with every start, wake and change of state: judgements of two epochs are never
    taken for one. `vram`: the bytes of each GPU that it declares, None for all. `wants`: it asks
    for its turn, and by what all declare it could have it beside those that are in GPU memory.
    `of_file`: it is a model of a box's file and no pod, so that `vram` may have been measured.
    """

    uid: PodUid
    name: str
    gpus: frozenset[GpuUuid]
    state: SeatState
    epoch: str
    settled: bool = True
    vram: int | None = None
    wants: bool = False
    of_file: bool = False


class Judgement(Protocol):
    """What can be compared with that of another look."""

    @property
    def key(self) -> Hashable:
        """What makes it the same judgement as an earlier one."""
        ...


J = TypeVar("J", bound=Judgement)


@dataclass(frozen=True, slots=True)
class Excess:
    """A seat that holds more of a GPU than it declares, what to do, and why, as a sentence."""

    uid: PodUid
    gpu: GpuUuid
    remedy: Remedy
    sentence: str
    epoch: str

    @property
    def key(self) -> tuple[PodUid, GpuUuid, str]:
        """What makes it the same judgement as an earlier one."""
        return self.uid, self.gpu, self.epoch


@dataclass(frozen=True, slots=True)
class Verdict:
    """One process that may not hold what it holds, what to do, and why, as a sentence."""

    remedy: Remedy
    cause: Cause
    sighting: Sighting
    sentence: str
    epoch: str = ""

    @property
    def key(self) -> tuple[Hashable, Cause, str]:
        """What makes it the same judgement as an earlier one: of a pod, whichever of its processes
        it is, lest those with short lives be never confirmed."""
        return self.whose, self.cause, self.epoch

    @property
    def whose(self) -> Hashable:
        """The pod; of a process of none its PID and start time."""
        return self.sighting.pod or (self.sighting.pid, self.sighting.start)


def judge(
    sightings: Iterable[Sighting],
    seats: Mapping[PodUid, Standing],
    rule: IntruderRule,
    *,
    pods_known: bool,
) -> tuple[Verdict, ...]:
    """The processes that may not hold what they hold; empty when all is well.

    `pods_known`: every managed pod of the node is among `seats`. Until then, processes of other
    pods are left alone: theirs may be a seat that the agent has yet to learn of.
    """
    found = (
        _judge_one(one, seats.get(one.pod) if one.pod else None, rule)
        for one in sightings
        if one.gpus and (pods_known or one.pod is None or one.pod in seats)
    )
    return tuple(verdict for verdict in found if verdict is not None)


def excesses(
    sightings: Iterable[Sighting],
    seats: Mapping[PodUid, Standing],
    rule: IntruderRule,
    tolerance: int,
) -> tuple[Excess, ...]:
    """Seats whose trees hold over `tolerance` bytes more of a GPU than they declare.

    Where no other seat uses the GPU or wants to beside it, that harms nobody and is only told.
    """
    found = []
    for (uid, gpu), size in _held(sightings).items():
        seat = seats.get(uid)
        if seat is None or seat.vram is None or not seat.settled or gpu not in seat.gpus:
            continue
        if seat.state in _USING and size > seat.vram + tolerance:
            others = (s for s in seats.values() if s.uid != uid and gpu in s.gpus)
            names = [s.name for s in others if s.state in OCCUPYING or s.wants]
            found.append(_excess(seat, gpu, size, ", ".join(sorted(names)), rule))
    return tuple(found)


def confirmed(before: Iterable[J], now: Iterable[J]) -> tuple[J, ...]:
    """Those that stood at the look before, too."""
    stood = {judgement.key for judgement in before}
    return tuple(judgement for judgement in now if judgement.key in stood)


def foreign_bytes(sightings: Iterable[Sighting]) -> dict[GpuUuid, int]:
    """Bytes per GPU of processes that no park moves away: those outside of every seat's tree."""
    found: dict[GpuUuid, int] = {}
    for one in sightings:
        if not one.in_tree:
            for gpu, size in one.memory.items():
                found[gpu] = found.get(gpu, 0) + (size or 0)
    return {gpu: size for gpu, size in found.items() if size}


def _held(sightings: Iterable[Sighting]) -> Mapping[tuple[PodUid, GpuUuid], int]:
    """Bytes that each seat's tree holds of each GPU."""
    held: Counter[tuple[PodUid, GpuUuid]] = Counter()
    for one in sightings:
        if one.in_tree and one.pod is not None:
            for gpu, size in one.memory.items():
                held[one.pod, gpu] += size or 0
    return held


def _excess(seat: Standing, gpu: GpuUuid, size: int, others: str, rule: IntruderRule) -> Excess:
    known, most = (seat.vram or 0) / _GIB, -(-size // _GIB)
    if seat.of_file:
        known_as = f"is known to take {known:.1f}; write vram: {most}GiB for it into models.yaml"
    else:
        known_as = f"declares {known:.1f}; write kyb.ai/vram: {most}Gi into its pod template"
    said = f"it holds {size / _GIB:.1f} GiB of {gpu} and {known_as}"
    if not others:
        return Excess(seat.uid, gpu, Remedy.REPORT, said, seat.epoch)
    said = f"{said}; seat {others} needs that GPU, too"
    if rule is IntruderRule.PARK:
        return Excess(seat.uid, gpu, Remedy.SEND_AWAY, f"{said}, so it is parked", seat.epoch)
    remedy = Remedy.KILL_SEAT if rule is IntruderRule.KILL else Remedy.REPORT
    return Excess(seat.uid, gpu, remedy, said, seat.epoch)


def _judge_one(one: Sighting, seat: Standing | None, rule: IntruderRule) -> Verdict | None:
    if one.pod is None:
        said = f"{_who(one)} outside of Kubernetes uses {_gpus(one)}; seats leave it its memory"
        return Verdict(Remedy.REPORT, Cause.OUTSIDE, one, said)
    if seat is None:
        said = f"{_who(one)} of a pod without a seat uses {_gpus(one)}"
        return _ended_or_told(one, Cause.NO_SEAT, said, rule)
    own = one.gpus <= seat.gpus
    if not seat.settled or (seat.state in OCCUPYING and own):
        return None
    return _judge_of_seat(one, seat, rule, own=own)


def _judge_of_seat(one: Sighting, seat: Standing, rule: IntruderRule, *, own: bool) -> Verdict:
    if not one.in_tree:
        said = (
            f"{_who(one)}, which the seat's command did not start, uses {_gpus(one)} while the "
            f"seat is {seat.state}"
        )
        return _ended_or_told(one, Cause.OUTSIDE_TREE, said, rule, seat)
    if not own:
        said = f"{_who(one)} uses {_gpus(one)}, which isn't the seat's"
        return _seat_ended_or_told(one, Cause.OTHER_GPU, said, rule, seat)
    return _not_active(one, seat, rule)


def _not_active(one: Sighting, seat: Standing, rule: IntruderRule) -> Verdict:
    said = f"{_who(one)} uses {_gpus(one)} while the seat is {seat.state}"
    if rule is IntruderRule.PARK and seat.state is SeatState.PARKED:
        return Verdict(
            Remedy.PARK, Cause.NOT_ACTIVE, one, f"{said}; it is parked again", seat.epoch
        )
    return _seat_ended_or_told(one, Cause.NOT_ACTIVE, said, rule, seat)


def _seat_ended_or_told(
    one: Sighting, cause: Cause, said: str, rule: IntruderRule, seat: Standing
) -> Verdict:
    if rule is IntruderRule.REPORT:
        return Verdict(Remedy.REPORT, cause, one, f"{said}; end it, or its pod", seat.epoch)
    return Verdict(Remedy.KILL_SEAT, cause, one, f"{said}; its workload is ended", seat.epoch)


def _ended_or_told(
    one: Sighting, cause: Cause, said: str, rule: IntruderRule, seat: Standing | None = None
) -> Verdict:
    epoch = seat.epoch if seat else ""
    if rule is not IntruderRule.REPORT:
        return Verdict(Remedy.KILL_PROCESS, cause, one, f"{said}; it is killed", epoch)
    said = f"{said}; end it, or have the agent kill such (intruder: park, or kill)"
    return Verdict(Remedy.REPORT, cause, one, said, epoch)


def _who(one: Sighting) -> str:
    return f"process {one.pid} ({one.name})"


def _gpus(one: Sighting) -> str:
    parts = []
    for gpu in sorted(one.gpus):
        size = one.memory[gpu]
        parts.append(f"{gpu}" if size is None else f"{size / (1 << 30):.1f} GiB of {gpu}")
    return ", ".join(parts)
