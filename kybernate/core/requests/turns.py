"""Which snapshots of a namespace are under way, and which wait for one of them to end. Pure.

A snapshot stops its workload for a while and writes all of its memory to disks and an object store
that all namespaces share: a namespace has so many of them at a time as the controller is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.core.requests.checkpoint import Request

STUCK = frozenset({Reason.POD_NOT_BOUND, Reason.SEAT_NOT_READY, Reason.SEAT_BUSY})
"""Before it has begun, such a request takes nobody's turn: it may be long until it can begin."""


def has_turn(request: Request, every: Iterable[Request], most: int) -> bool:
    """Whether the request may begin, of `every` one of its namespace, of which `most` snapshots may
    be under way. Those that have begun come first, then the oldest: whoever asks at the same time
    about another one counts alike, so that there are never more."""
    if request.mode is not Mode.SNAPSHOT:
        return True
    before = (one for one in every if one.uid != request.uid and _counts(one, request))
    return sum(_order(one) < _order(request) for one in before) < most


def _counts(one: Request, request: Request) -> bool:
    status = one.status
    if one.mode is not Mode.SNAPSHOT or one.ended or not status.operation:
        return False
    if status.began_at:
        return True
    if status.reason is Reason.AGENT_UNREACHABLE:
        # Once that agent is back, all that waited for it can begin.
        return status.node == request.status.node
    return status.reason not in STUCK


def _order(one: Request) -> tuple[bool, float, str]:
    return not one.status.began_at, one.created_at, one.uid
