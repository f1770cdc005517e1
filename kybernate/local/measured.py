"""How much GPU memory models take whose file does not say it: what they held at their parks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.local.folders import Numbers
    from kybernate.types import PodUid
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_STEP = 1 << 20


class Measured:
    """Implements `node.Observer`. `numbers` has the bytes by the names of models' seats: a model
    that is started otherwise has another one, and is measured again."""

    def __init__(self, numbers: Numbers, node: Node) -> None:
        self._numbers, self._node = numbers, node
        self._known = numbers.read()
        self._unsaid: frozenset[PodUid] = frozenset()

    def of(self, uid: PodUid) -> int | None:
        """Bytes on each of its GPUs; None before its first park."""
        return self._known.get(uid)

    def only(self, unsaid: Iterable[PodUid]) -> None:
        """The file says nothing of these; all others are forgotten with the next measurement."""
        self._unsaid = frozenset(unsaid)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`. The most that a park has put away counts; one that fills its GPUs
        keeps them to itself."""
        if seat.uid not in self._unsaid or seat.state is not SeatState.PARKED:
            return
        most = -(-max(seat.tree.held.values(), default=0) // _STEP) * _STEP
        if not most or most <= self._known.get(seat.uid, 0) or most > self._room(seat):
            return
        seat.measured(most)
        self._node.save(seat)
        self._known = {uid: size for uid, size in self._known.items() if uid in self._unsaid}
        self._known[seat.uid] = most
        log.info("%s takes %d MiB of each of its GPUs: measured", seat, most >> 20)
        try:
            self._numbers.write(self._known)
        except OSError as error:
            log.warning("%s can't be written: %s", self._numbers.path, error)

    def _room(self, seat: Seat) -> int:
        inventory, reserve = self._node.inventory, self._node.settings.reserve_bytes
        memory = inventory.memory() if inventory else {}
        return min((memory.get(gpu, 0) for gpu in seat.identity.gpus), default=0) - reserve

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""
