"""What becomes of a state from which a seat goes on, once it has, or its container ended before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.core.seat.seats import WITHOUT_TREE
from kybernate.types import SeatState, Tier
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from nodeagent.app.loop import Loop
    from nodeagent.artifacts.left import Left
    from nodeagent.artifacts.reports import Reports
    from nodeagent.seat.record import Seat

_SUCCESSION = RestoreWish()
_LONGEST_WHY = 500
_NEVER_RAN = WITHOUT_TREE | {SeatState.WAITING, SeatState.RESTORING}


class Adopted:
    """Of all seats of the node; `Transfers` asks it. Lives on the loop."""

    def __init__(self, loop: Loop, reports: Reports, left: Left) -> None:
        self._loop = loop
        self._node = loop.node
        self._reports = reports
        self._left = left
        loop.dumps.spares, loop.dumps.left_in = self.spares, left.bytes_in
        loop.dumps.outgrown, loop.dumps.succeeded = self.outgrown, self.succeeded
        loop.dumps.dropped = loop.arrived.forget

    def spares(self, seat: Seat, artifact: str) -> bool:
        """A seat has gone on, or its container has ended: whether its state, if it had one, is
        somebody else's, or may be yet."""
        if seat.saved.borrowed:
            self._outlived(seat, artifact)
            return True
        if seat.state is SeatState.ACTIVE:
            self._left.outdated(seat.uid)
            return False
        # What the successor was handed by way of the object store it may be fetching still.
        moved = self._loop.dumps.leavers.where(seat.uid)
        handed_over = bool(moved) and Tier.OBJECT not in seat.saved.copies
        left = bool(artifact) and not handed_over and self._left.leave(seat, artifact)
        return left or self.succeeded(artifact)

    def succeeded(self, artifact: str) -> bool:
        """Whether the state is a successor's on this node: a pod that ended doesn't drop it."""
        seats = self._node.seats.values()
        taken = any(seat.saved.borrowed and seat.saved.claimed == artifact for seat in seats)
        return bool(artifact) and (taken or artifact in self._loop.arrived)

    def _outlived(self, seat: Seat, artifact: str) -> None:
        """It was another pod's: it has gone on since, or its container ended before it could."""
        if seat.state is SeatState.ACTIVE:
            self.outgrown(seat, artifact)
            return
        self._left.unused(seat, artifact, self._ours(seat))
        again = not _spent(seat) or (seat.wishes.restore is not None and seat.wishes.restore.waits)
        seat.saved.unused(Begins.OPEN if again else Begins.ANEW)

    def outgrown(self, seat: Seat, artifact: str) -> None:
        """The seat was restored from another pod's state: what is saved of it now is its own."""
        if not is_copy(seat):
            self._left.drop_from(artifact, self._ours(seat))
        seat.saved.own()

    @staticmethod
    def _ours(seat: Seat) -> list[str]:
        """The tiers from which this node may drop what the seat goes on from."""
        return sorted(
            {*seat.saved.may_drop} | ({Tier.OBJECT.value} if _packed_here(seat) else set())
        )

    def gone(self, seat: Seat) -> None:
        """Its pod no longer exists, and nothing of it is left here."""
        if self._node.world.below is not None:
            self.stopped(seat, seat.history.reason or "its pod is gone")

    def stopped(self, seat: Seat, why: str) -> None:
        """It never goes on here: whoever succeeds it may do so, once the registry is told."""
        pod = seat.identity.pod
        self._reports.put(Report(Kind.STOPPED, pod.namespace, pod.uid, why=_plain(why)))


def is_copy(seat: Seat) -> bool:
    """Whether it goes on as a copy, and takes nobody's place."""
    return (seat.wishes.restore or _SUCCESSION).kind is not RestoreAs.SUCCESSOR


def droppable(tier: Tier, *, copied: bool, home: bool) -> tuple[Tier, ...]:
    """Where a state may be dropped once its successor has gone on: on this node, and where this
    node put it. Others know better what they keep for people."""
    if copied:
        return ()
    if home:
        return (Tier.NVME, Tier.OBJECT)
    return (Tier.NVME,) if tier is Tier.NVME else ()


def _spent(seat: Seat) -> bool:
    """Whether its container ends because a step failed, of which people were told that it starts
    anew; or after its tree may have run, so that the state is not its newest any more."""
    failed = seat.unverified or seat.state is SeatState.FAILED
    return failed or (seat.state not in _NEVER_RAN and not is_copy(seat))


def _packed_here(seat: Seat) -> bool:
    """Whether this node put into the object store what was brought to its NVMe."""
    return Tier.OBJECT in seat.saved.copies and Tier.NVME.value in seat.saved.may_drop


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST_WHY]
