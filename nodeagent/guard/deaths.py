"""Parked seats that lose a process: to the kernel's out-of-memory killer, or to anybody.

A parked seat's state is in its processes. When one of them is killed, the rest is frozen and can't
say so: the tree is thawed, so that its end becomes the container's, and killed if it lives on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kybernate.errors import NotFoundError
from kybernate.types import SeatState
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.ports import Deaths, Memory
    from kybernate.types import PodUid
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_AFTER_THE_SWAP = 0.05


class ParkedDeaths:
    """Implements `node.Observer`. `excused` says whose processes come and go for a good reason."""

    def __init__(
        self,
        node: Node,
        life: Lifecycle,
        deaths: Deaths,
        memory: Memory,
        excused: Callable[[PodUid], bool],
    ) -> None:
        self._node = node
        self._life = life
        self._deaths = deaths
        self._memory = memory
        self._excused = excused
        self._oom_kills: dict[PodUid, int] = {}

    def begin(self) -> None:
        """Watch what is parked already; once, after the journal was read."""
        for seat in tuple(self._node.seats.values()):
            self.seat_changed(seat)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        parked = seat.state is SeatState.PARKED and not seat.ending.asked and bool(seat.tree.handle)
        if parked and not self._excused(seat.uid):
            if seat.uid not in self._oom_kills:
                self._oom_kills[seat.uid] = self._count(seat)
                # Who waits for the GPU comes first; who dies meanwhile is told all the same.
                asyncio.get_running_loop().call_later(_AFTER_THE_SWAP, self._watch, seat)
        elif self._oom_kills.pop(seat.uid, None) is not None:
            self._deaths.unwatch(seat.uid)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if self._oom_kills.pop(seat.uid, None) is not None:
            self._deaths.unwatch(seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""

    def _watch(self, seat: Seat) -> None:
        if seat.uid not in self._oom_kills:
            return
        named = [
            process.pid for process in (seat.tree.root, *seat.tree.cuda) if process is not None
        ]
        members = self._node.world.freezer.pids(seat.tree.handle)
        self._deaths.watch(seat.uid, (*named, *members), self._died)

    def _count(self, seat: Seat) -> int:
        try:
            return self._memory.oom_kills(seat.tree.init.pid) if seat.tree.init else 0
        except (NotFoundError, OSError):
            return 0

    def _died(self, uid: PodUid, pid: int) -> None:
        before = self._oom_kills.pop(uid, 0)
        seat = self._node.seats.get(uid)
        if seat is None or seat.state is not SeatState.PARKED or seat.ending.asked:
            return
        starved = self._count(seat) > before
        cause, why = ("oom", self._oom(pid)) if starved else ("killed", _killed(pid))
        metrics.KILLED_WHILE_PARKED.labels(cause).inc()
        self._node.tell(
            seat,
            "Warning",
            "OutOfMemory" if starved else "KilledWhileParked",
            f"{why}: its state is lost, and the workload is started again",
        )
        seat.history.explained(why)
        self._life.end(seat)

    def _oom(self, pid: int) -> str:
        return (
            f"the kernel killed process {pid} of it for want of memory (OOM) while it was parked; "
            "raise its container's memory limit, or keep others from filling the node's memory"
        )


def _killed(pid: int) -> str:
    return f"somebody killed process {pid} of it while it was parked"
