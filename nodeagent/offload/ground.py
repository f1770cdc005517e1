"""What all of a seat's ways between the tiers use, and do alike."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError, NotFoundError
from kybernate.lib.retry import retry
from nodeagent.seat.steps import Broken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node, World
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat
    from nodeagent.seat.steps import Steps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ground:
    """The node, its seats' steps and lives. `kick` has the loop decide again."""

    node: Node
    steps: Steps
    life: Lifecycle
    kick: Callable[[], None]

    @property
    def world(self) -> World:
        """What the agent works with."""
        return self.node.world

    @property
    def offloading(self) -> Offloading:
        """What it takes to leave RAM. Raises Broken."""
        offloading = self.world.offloading
        if offloading is None:
            raise Broken("this agent has no CRIU: it can neither offload seats nor wake such seats")
        return offloading

    def work(self, seat: Seat, what: Coroutine[object, object, None]) -> None:
        """Begin it. While something is under way nothing else is decided for the seat: look when
        it ends."""

        async def to_the_end() -> None:
            await what
            self.kick()

        self.life.work(seat, to_the_end())

    def is_gone(self, seat: Seat, error: Exception) -> None:
        """Its container has ended, as `error` says: see it to its end."""
        log.info("%s: its container ended meanwhile: %s", seat, error)
        self.life.watch_end(seat)

    async def end(self, seat: Seat) -> bool:
        """End what there is of the tree, all or half of it, however long it takes; whether its
        container is left."""
        deadline = self.node.settings.confirm_deadline_s
        try:
            await retry(
                lambda: self.offloading.dumper.end(init_of(seat), seat.tree.handle, deadline),
                self.complains(seat, "EndIncomplete"),
                on=KybernateError,
                but=NotFoundError,
            )
        except NotFoundError as error:
            self.is_gone(seat, error)
            return False
        return True

    def complains(self, seat: Seat, event: str) -> Callable[[Exception], None]:
        """What tells people of a step that is tried again."""
        return lambda error: self.node.complain(seat, event, f"{error}; trying again")


def init_of(seat: Seat) -> int:
    """PID 1 of its container. Raises NotFoundError."""
    if seat.tree.init is None:
        raise NotFoundError("its container has ended")
    return seat.tree.init.pid
