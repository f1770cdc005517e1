"""Whether pods are kept from their GPUs until their turn, told where administrators look."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nodeagent import metrics

if TYPE_CHECKING:
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

CONDITION = "DevicesShut"


def tell(node: Node, seat: Seat, why: str) -> None:
    """Note that the seat's pod is kept from its GPUs, or (`why`) why it is not. The GPUNode's
    condition is of the last pod; a node that has kept all of them has none."""
    if why:
        metrics.OPEN_DEVICES.inc()
        message = (
            f"pod {seat.identity.pod} can open its GPUs before its turn: {why}; what uses a GPU "
            "without a turn is found and ended as an intruder (see the log for other pods)"
        )
        log.warning("%s", message)
        node.notice(CONDITION, "OpenBeforeTurn", message, ok=False)
    elif CONDITION in node.notices:
        node.notice(CONDITION, "ShutUntilTurn", "pods open their GPUs at their turn", ok=True)
