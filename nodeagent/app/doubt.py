"""A journal of which lines are lost: the newest record of any seat may be missing, or an older one.

A seat that waits at the gate by its record may have been started since: its GPUs go to nobody until
its kyb-init says where it is. What such records say together may be impossible. Seats that could
not all be in GPU memory are treated as if they had no record: each is asked where it is. Nothing is
dropped because no record names it, since the record that named it may be the one that is lost.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import AT_GATE, OCCUPYING, SeatEvent
from kybernate.core.swap.swap import fits
from kybernate.types import SeatState
from nodeagent import metrics

if TYPE_CHECKING:
    from kybernate.core.swap.swapview import SwapView
    from kybernate.types import PodUid
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

CONDITION = "JournalIntact"

_SURE_ON_GPUS = (SeatState.ACTIVE, SeatState.DRAINING)


def doubt(node: Node) -> None:
    """Once the seats were read: if `load` told of damage, tell of it, and forget what can't be."""
    damage = node.world.journal.damage
    if not damage:
        return
    log.warning("%s; what no record names stays where it is", damage)
    metrics.JOURNAL_DAMAGED.inc()
    message = (
        f"{damage}; the agent continued without them, asked the driver where they left it in "
        "doubt, "
        "and drops no artifact that only they may name; kybernate artifacts ls shows all"
    )
    node.notice(CONDITION, "LinesLost", message, ok=False)
    for seat in impossible(node):
        log.warning("%s: its record says %s, which can't be; it is asked", seat, seat.state)
        seat.tree.unknown()
        why = "its record can't be true; it is asked where it is"
        node.transition(seat, SeatEvent.DISBELIEVED, why)
    for seat in node.seats.values():
        if seat.state in AT_GATE and _lives(node, seat):
            seat.contact.doubted()


def _lives(node: Node, seat: Seat) -> bool:
    init = seat.tree.init
    return init is not None and node.world.procs.alive(init.pid, init.start)


def impossible(node: Node) -> tuple[Seat, ...]:
    """Seats that can't all be where their records have them. Of two that clash, the one that was
    on its way is less sure than one that rests there; those that rest there are among them only if
    they clash with each other. Without an inventory nobody can tell."""
    if node.inventory is None:
        return ()
    view = node.swap_view()
    on_their_way = {uid for uid in _clashing(view) if node.seats[uid].state not in _SURE_ON_GPUS}
    others = tuple(one for one in view.seats if one.uid not in on_their_way)
    found = on_their_way | _clashing(replace(view, seats=others))
    return tuple(seat for uid, seat in node.seats.items() if uid in found)


def _clashing(view: SwapView) -> set[PodUid]:
    """Seats in GPU memory, by their records, that don't fit beside all others that are."""
    there = (one.uid for one in view.seats if one.state in OCCUPYING)
    return {uid for uid in there if not fits(view, uid)}
