"""Debug clones: copies of other pods' states that are looked at, and that nobody can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.artifacts.restores import RestoreAs
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

_DEADLINE = 5.0


def is_clone(seat: Seat) -> bool:
    """Whether it is a copy that must not reach anybody, and gets no requests."""
    return seat.wishes.restore is not None and seat.wishes.restore.kind is RestoreAs.CLONE


def stays_stopped(seat: Seat) -> bool:
    """Whether not one of its instructions is executed."""
    return seat.wishes.restore is not None and is_clone(seat) and seat.wishes.restore.stopped


async def cut_off(offloading: Offloading, seat: Seat) -> None:
    """Before anything of a clone exists: nothing passes in or out of its pod but loopback.

    Raises RefusedError if its network is the node's, NotFoundError, OSError, DeadlineError.
    """
    if is_clone(seat):
        if seat.tree.init is None:
            raise NotFoundError("its container has ended")
        await offloading.gatekeeper.cut(seat.tree.init.pid, _DEADLINE)


def leave_gpus_alone(seat: Seat) -> None:
    """A clone that stays stopped can't be restored by the driver, which needs it to run: what it
    had on its GPUs stays in its processes' memory."""
    if stays_stopped(seat):
        seat.tree.uses((), dict.fromkeys(seat.identity.gpus, 0))
