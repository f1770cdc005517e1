"""Who may begin: what the core says of those seen, of which one at a time is given a turn.

Between a turn and the status that tells of it lies the call of an agent. Until then nobody but this
process knows, which alone begins anything: it leads.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.turns import eviction_waits, has_turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.known import Requests
    from kybernate.core.policy.effective import Policy
    from kybernate.core.requests.checkpoint import Request
    from kybernate.core.requests.turns import Limits


class Turns:
    """Of CheckpointRequests; any thread may ask. So many `snapshots` of a namespace at a time, and
    evictions within the `limits` and those of the policies that are `governing`."""

    def __init__(
        self,
        requests: Requests[Request],
        snapshots: int,
        limits: Limits,
        governing: Callable[[Request], Policy | None],
    ) -> None:
        self._requests = requests
        self._snapshots = snapshots
        self._limits = limits
        self._governing = governing
        self._lock = threading.Lock()
        self._given: dict[str, tuple[str, float]] = {}
        """In which namespace and when, by UID: those whose status doesn't tell yet that they have
        begun."""

    def take(self, request: Request, now: float) -> str:
        """Why it may not begin yet, in a sentence; empty if it has the turn now, until its status
        tells that it has begun, or it is given back. `now`: seconds since 1970."""
        whole = request.mode is Mode.EVICT
        with self._lock:
            found = self._requests.all() if whole else self._requests.of(request.namespace)
            every = [self._as_given(one) for one in found]
            open_ = {one.uid for one in every if not one.ended}
            self._given = {
                uid: (namespace, at)
                for uid, (namespace, at) in self._given.items()
                if uid in open_ or not (whole or namespace == request.namespace)
            }
            if why := self._waits(request, every, now):
                return why
            self._given[request.uid] = request.namespace, now
            return ""

    def give_back(self, request: Request) -> None:
        """It has not begun."""
        with self._lock:
            self._given.pop(request.uid, None)

    def _as_given(self, one: Request) -> Request:
        given = self._given.get(one.uid)
        if given is None or one.status.began_at:
            return one
        return replace(one, status=replace(one.status, began_at=given[1]))

    def _waits(self, request: Request, every: list[Request], now: float) -> str:
        if request.mode is Mode.EVICT:
            return eviction_waits(request, every, self._limits, now, self._governing)
        if has_turn(request, every, self._snapshots):
            return ""
        return f"{self._snapshots} snapshots of {request.namespace} come first"
