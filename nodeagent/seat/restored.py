"""Seats whose container the runtime restores: they wake without a request, on their own GPUs.

To which GPUs a tree goes back its own memory says, which nobody can read before the driver does. A
container may open no others than its own; what got round that is ended as soon as it is awake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.errors import DeadlineError, DriverError
from kybernate.lib.retry import retry
from kybernate.types import SeatState
from nodeagent.seat.steps import NVML_DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.types import GpuUuid, PodUid
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

_EXPECTED_FOR = 600.0
"""Seconds within which what is restored must have said hello."""


class Restored:
    """Which containers the runtime has announced, and seats whose start nobody saw."""

    def __init__(
        self, node: Node, life: Lifecycle, request_wake: Callable[[PodUid, str], object]
    ) -> None:
        self._node = node
        self._life = life
        self._request_wake = request_wake
        self._expected: dict[str, float] = {}
        self._unseen: set[PodUid] = set()

    def expect(self, container: str) -> None:
        """The runtime is about to restore it."""
        now = self._node.world.now()
        self._expected = {one: until for one, until in self._expected.items() if now < until}
        self._expected[container] = now + _EXPECTED_FOR

    def entered(self, seat: Seat, container: str) -> None:
        """The seat's process 1 is in this container: called for if it is one that was announced."""
        if seat.unverified:
            self._unseen.add(seat.uid)  # it may be one that no agent was there to be told of
        until = self._expected.pop(container, 0.0)
        if self._node.world.now() < until:
            self._unseen.add(seat.uid)
            self._request_wake(seat.uid, "the container runtime has restored it")

    def changed(self, seat: Seat) -> None:
        """Look at it when it is awake for the first time."""
        if seat.uid in self._unseen and seat.state is SeatState.ACTIVE:
            self._unseen.discard(seat.uid)
            self._life.aside(self._see_its_gpus(seat))

    def forget(self, uid: PodUid) -> None:
        """The seat's container has ended, or its pod is gone."""
        self._unseen.discard(uid)

    async def _see_its_gpus(self, seat: Seat) -> None:
        """If it leaves them before that is known, it is looked at when it is awake again."""
        init = seat.tree.init

        async def others() -> set[GpuUuid] | None:
            here = seat.state is SeatState.ACTIVE and seat.tree.init == init
            return await self._others(seat) if here else None

        def say(error: Exception) -> None:
            why = f"whether it woke on another group's GPUs can't be told: {error}"
            self._node.complain(seat, "GpusUnknown", f"{why}; trying again")

        found = await retry(others, say, on=(DriverError, DeadlineError))
        if found and seat.state is SeatState.ACTIVE:
            self._end(seat, found)
        elif found != set() and seat.tree.init is not None and seat.tree.init == init:
            self._unseen.add(seat.uid)

    def _end(self, seat: Seat, others: set[GpuUuid]) -> None:
        why = (
            f"its container was restored onto {', '.join(sorted(others))}, which group "
            f"{seat.identity.group} hasn't got: name the group where its checkpoint was taken in "
            f"{keys.REQUIRE_GROUP} of its pod"
        )
        self._life.fail(seat, why)

    async def _others(self, seat: Seat) -> set[GpuUuid]:
        """GPUs that its tree uses and its group hasn't got. Raises DriverError if none is known
        and not all can be asked, DeadlineError."""
        inventory, read = self._node.inventory, self._node.world.gpus.processes
        known = frozenset(inventory.memory() if inventory else ())
        tree = set(self._node.world.freezer.pids(seat.tree.handle))

        def look() -> set[GpuUuid]:
            found, silent = set(), []
            for gpu in known - set(seat.identity.gpus):
                try:
                    if any(pid in tree and size != 0 for pid, size in read(gpu)):
                        found.add(gpu)
                except DriverError as error:
                    silent.append(error)
            if silent and not found:
                raise silent[0]
            return found

        return await self._node.world.asking(look, NVML_DEADLINE)
