"""Operations that people and controllers ask of a node, judged by what its seats are.

An operation is a wish and how far it has come. It is never carried out by itself: the wish is put
into the seat (or the node), the swap decision does what it can when it can, and the operation is
judged by the seat's state, before and after a restart of the agent alike.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import AT_GATE, OCCUPYING, RESTING, TIER_OF
from kybernate.core.tiers.tiering import deeper
from kybernate.dataclass import dataclass
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class Kind(StrEnum):
    """What is asked for."""

    PARK = "park"
    WAKE = "wake"
    EVICT = "evict"
    SAVE = "save"
    MOVE = "move"
    EVACUATE = "evacuate"
    DRAIN = "drain-node"
    UNDRAIN = "undrain-node"
    PLACE = "place"


class Progress(StrEnum):
    """How far it has come. The last three are ends."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({Progress.SUCCEEDED, Progress.FAILED, Progress.CANCELLED})
OF_NODE = frozenset({Kind.DRAIN, Kind.UNDRAIN, Kind.EVACUATE})
"""Operations on all seats of a node."""
WITHOUT_SEAT = OF_NODE | {Kind.PLACE}
"""Operations that are about no seat."""
AWAY = frozenset({Kind.PARK, Kind.EVICT})
"""Operations on a seat that take it out of GPU memory."""

OF_REQUEST = "ckpt-"
"""Before a CheckpointRequest's UID: the name of its operation."""

_SERVING = (SeatState.STARTING, SeatState.ACTIVE)
_LEAVING = (SeatState.DRAINING, SeatState.PARKING)
_COMING = (SeatState.STARTING, SeatState.RESTORING, SeatState.WAKING)


def is_of_request(name: str) -> bool:
    """Whether an operation of this name is a CheckpointRequest's."""
    return name.startswith(OF_REQUEST)


@dataclass(frozen=True, slots=True)
class SeatFacts:
    """A seat as an operation sees it. `reason`: why it is in its state; `unparkable`: why it can't
    be parked now, empty if it can; `held`: bytes of device memory that it has put aside;
    `undumpable`: why its state can't leave RAM, as far as is known; `tiers`: where a state may
    continue this node, and `deepest` how deep its pod lets it; `left_s`: seconds for which the node
    keeps the artifact of an offloaded pod that ends, 0 if it doesn't."""

    name: str
    state: SeatState
    reason: str = ""
    unparkable: str = ""
    held: int = 0
    ending: bool = False
    undumpable: str = ""
    tiers: frozenset[Tier] = frozenset({Tier.RAM})
    deepest: Tier = Tier.RAM
    left_s: float = 0.0

    def outlives_pod(self) -> float:
        """Seconds for which its state would be there once its pod is deleted now; 0: it would go
        with the pod. In RAM it is the pod's own processes."""
        return self.left_s if deeper(TIER_OF.get(self.state, Tier.RAM), Tier.RAM) else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far an operation has come, as a word and as a sentence."""

    progress: Progress
    sentence: str


def judge_away(
    seat: SeatFacts | None, kind: Kind, begun: Progress, tier: Tier | None = None
) -> Verdict:
    """Park and evict: how far they have come. `seat` is None when its pod is gone; `tier` is where
    its state was asked to go."""
    if seat is None:
        return _failed("its pod is gone, and with it what the seat held")
    if seat.state in TIER_OF and not seat.ending:
        return _judge_tier(seat, kind, tier)
    if seat.state not in OCCUPYING or seat.state is SeatState.FAILED or seat.ending:
        return _without_state(seat, begun)
    if seat.unparkable:
        return Verdict(
            Progress.PENDING,
            f"it can't be parked now: {seat.unparkable}; make room in the host's memory, raise "
            "the container's limit, or delete the pod, whose state is lost then",
        )
    if seat.state in _LEAVING:
        return Verdict(Progress.RUNNING, f"it is {seat.state}: {seat.reason}")
    return Verdict(Progress.PENDING, f"it is {seat.state} and leaves as soon as it can")


def _judge_tier(seat: SeatFacts, kind: Kind, tier: Tier | None) -> Verdict:
    """It is parked, somewhere."""
    resting = seat.state in RESTING.values()
    if resting and tier in (None, TIER_OF[seat.state]):
        return Verdict(Progress.SUCCEEDED, _parked(seat, kind))
    if tier is None:
        return Verdict(Progress.RUNNING, f"it is {seat.state}: {seat.reason}")
    if seat.state is SeatState.PARKED and seat.undumpable:
        return _failed(
            f"its state can't leave RAM: {seat.undumpable}. It stays parked in RAM and wakes on "
            "its next request; free it of that, or park it without --tier"
        )
    where = f"parked in {TIER_OF[seat.state]}" if resting else f"{seat.state}"
    return Verdict(Progress.RUNNING, f"it is {where} and goes to {tier}: {seat.reason}")


def why_not_there(seat: SeatFacts, tier: Tier) -> str:
    """Why this seat's state can't go to the tier, whatever happens; empty if it may."""
    if tier not in seat.tiers:
        there = ", ".join(sorted(seat.tiers))
        missing = "object_store" if tier is Tier.OBJECT else "criu"
        return (
            f"this node has no tier {tier}, only {there}; give its agent one ({missing}), or "
            "park it in another"
        )
    if deeper(tier, seat.deepest):
        return (
            f"its pod lets its state go no deeper than {seat.deepest} (kyb.ai/park-tier); change "
            "the annotation, or park it there"
        )
    return ""


def _without_state(seat: SeatFacts, begun: Progress) -> Verdict:
    if seat.state is SeatState.UNVERIFIED and not seat.ending:
        return Verdict(Progress.PENDING, "it was found without a record, and is asked where it is")
    if seat.state in AT_GATE and begun is Progress.PENDING and not seat.ending:
        return Verdict(Progress.SUCCEEDED, "it has not been started: there is nothing to save")
    return _failed(f"its workload ended before its state was saved ({seat.reason})")


_KEPT_IN = {
    Tier.RAM: "in the host's RAM",
    Tier.NVME: "on the node's NVMe",
    Tier.OBJECT: "in the object store",
}


def _parked(seat: SeatFacts, kind: Kind) -> str:
    where = _KEPT_IN[TIER_OF[seat.state]]
    size = f"{seat.held / (1 << 30):.1f} GiB of GPU memory are kept {where}"
    if kind is Kind.EVICT:
        return f"{size}, {_outliving(seat)}; a wake takes the eviction back"
    return f"{size}; it wakes on its next request"


def _outliving(seat: SeatFacts) -> str:
    """What becomes of a parked seat's state once its pod is deleted."""
    if seconds := seat.outlives_pod():
        return (
            f"which outlive the pod by {seconds:g} s: so long another pod may continue from its "
            "state "
            "(kyb.ai/restore-from), then it is dropped"
        )
    because = "" if TIER_OF[seat.state] is Tier.RAM else " (keep_left_s of its node is 0)"
    return f"which do not outlive the pod{because}: deleting it ends the workload and its state"


def judge_wake(
    seat: SeatFacts | None, draining: str, stranded: str, in_its_way: str = ""
) -> Verdict:
    """Wake. `draining`: why nothing wakes on this node; `stranded`: why this seat can't;
    `in_its_way`: what it waits for (`core.swap.obstacle`)."""
    if seat is None:
        return _failed("its pod is gone")
    if seat.ending:
        return _failed("its pod is ending; wake its successor instead")
    if seat.state is SeatState.ACTIVE:
        return Verdict(Progress.SUCCEEDED, "it is active")
    why = draining and f"the node is drained ({draining}); undrain it first"
    if why or stranded:
        return _failed(why or stranded)
    if seat.state in _COMING:
        return Verdict(Progress.RUNNING, f"it is {seat.state}: {seat.reason}")
    waits_for = in_its_way or seat.reason
    return Verdict(Progress.PENDING, f"it is {seat.state} and waits for its turn: {waits_for}")


def judge_drain(seats: Collection[SeatFacts]) -> tuple[Verdict, int]:
    """Drain of the node; also how many seats are out of GPU memory."""
    left = [seat for seat in seats if seat.state in OCCUPYING]
    out = len(seats) - len(left)
    if not left:
        return Verdict(Progress.SUCCEEDED, "no seat is in GPU memory; nothing starts or wakes"), out
    stuck = [seat for seat in left if seat.unparkable]
    if len(stuck) == len(left):
        one = stuck[0]
        return Verdict(
            Progress.RUNNING,
            f"{_names(stuck)} can't be parked: {one.unparkable}; make room in the host's memory "
            "or delete the pods, whose state is lost then",
        ), out
    return Verdict(Progress.RUNNING, f"{_names(left)} still in GPU memory"), out


def _names(seats: Collection[SeatFacts]) -> str:
    return ", ".join(sorted(seat.name for seat in seats))


def _failed(why: str) -> Verdict:
    return Verdict(Progress.FAILED, why)


def plan_away(seat: SeatFacts, kind: Kind, tier: Tier | None = None) -> tuple[str, ...]:
    """What parking or evicting the seat would do, in order."""
    if seat.state in TIER_OF:
        there = tier in (None, TIER_OF[seat.state])
        rest = ": nothing is moved." if there else f" in {TIER_OF[seat.state]}."
        steps = [f"{seat.name} is parked already{rest}"]
    elif seat.state not in OCCUPYING:
        steps = [f"{seat.name} is {seat.state} and holds no GPU memory: nothing is moved."]
    else:
        steps = [
            f"{seat.name} is {seat.state}: its requests in flight are let end first.",
            "Its GPU memory is moved into the host's RAM, and its processes are frozen.",
        ]
        if seat.unparkable:
            steps.insert(0, f"Not possible now: {seat.unparkable}.")
    steps += _plan_tier(seat, tier)
    after = (
        "It stays parked until its pod is deleted, or a wake takes the eviction back. "
        + _plan_left(seat)
        if kind is Kind.EVICT
        else "It wakes on its next request."
    )
    return (*steps, after)


def _plan_left(seat: SeatFacts) -> str:
    if not seat.left_s:
        return "Its state does not outlive the pod."
    stays = f"for {seat.left_s:g} s, for a pod that continues from it"
    if seat.outlives_pod():
        return f"Its state outlives the pod {stays}."
    return f"A state in RAM does not outlive the pod; that of an offloaded seat does, {stays}."


def _plan_tier(seat: SeatFacts, tier: Tier | None) -> Iterator[str]:
    now = TIER_OF.get(seat.state, Tier.RAM)
    if tier is None or tier is now or (seat.state not in TIER_OF and seat.state not in OCCUPYING):
        return
    if deeper(tier, Tier.RAM) and now is Tier.RAM:
        yield (
            "Its processes are written to the node's NVMe while they stand still; once that is "
            "sealed they are ended, and their RAM is free. Its container, IP and volumes stay."
        )
        if seat.undumpable:
            yield f"The last try was refused: {seat.undumpable}."
    if tier is Tier.OBJECT:
        yield "The artifact is copied to the object store, verified, and leaves the node."
    if tier is Tier.RAM or (tier is Tier.NVME and now is Tier.OBJECT):
        yield f"Its state comes back into {tier}."


def plan_wake(seat: SeatFacts, rivals: Collection[SeatFacts]) -> tuple[str, ...]:
    """What waking the seat would do. `rivals`: seats in GPU memory on its GPUs."""
    if seat.state in _SERVING:
        return (f"{seat.name} is {seat.state}: nothing is moved.",)
    steps = [
        f"{rival.name} is {rival.state} on its GPUs and is parked first, when its turn is over."
        for rival in rivals
    ]
    return (*steps, f"{seat.name} is {seat.state}: its state is moved into GPU memory.")


def plan_drain(seats: Collection[SeatFacts]) -> tuple[str, ...]:
    """What draining the node would do."""
    left = [seat for seat in seats if seat.state in OCCUPYING]
    steps = ["From now on nothing starts or wakes on this node, and no new seat is bound to it."]
    steps += [
        f"{s.name} is {s.state}: "
        + (f"it can't be parked ({s.unparkable})." if s.unparkable else "it is parked.")
        for s in left
    ]
    steps.append(
        "Requests for its models wait at the proxy until the node is undrained. Pods are not "
        "deleted; what is parked in RAM is lost if the machine is switched off."
    )
    return tuple(steps)
