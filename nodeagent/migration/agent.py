"""What migrations and evacuations use of the rest of the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kybernate.ports import Registry
    from kybernate.types import PodUid, Tier
    from nodeagent.artifacts.adopted import Adopted
    from nodeagent.artifacts.arrived import Arrived
    from nodeagent.artifacts.reports import Reports
    from nodeagent.offload.dumps import Dumps
    from nodeagent.seat.node import Node


class Decider(Protocol):
    """Who decides where the node's seats are; each says whether there is such a seat."""

    def send_away(self, uid: PodUid, why: str, *, stays_away: bool = False) -> bool:
        """It must leave its GPUs; with `stays_away` it wakes only after `let_stay`."""
        ...

    def let_stay(self, uid: PodUid) -> bool:
        """Take `send_away` back."""
        ...

    def ask_for_tier(self, uid: PodUid, tier: Tier | None) -> bool:
        """Where its state should be while it is parked; None takes that back."""
        ...

    def drain_node(self, why: str) -> None:
        """Nothing starts or wakes any more."""
        ...

    def undrain_node(self) -> None:
        """Take `drain_node` back."""
        ...

    def kick(self) -> None:
        """Decide once this round of events is through."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """`wake` has a seat woken, and `aside` runs what nobody waits for; `registry` knows who may
    continue with what."""

    node: Node
    decider: Decider
    dumps: Dumps
    deliveries: Arrived
    adopted: Adopted
    reports: Reports
    registry: Registry
    wake: Callable[[PodUid, str], object]
    aside: Callable[[Coroutine[object, object, None]], None]

    def is_here(self, node: str) -> bool:
        """Whether this is the node of that name."""
        return node == self.node.settings.node
