"""What the warden needs of others: of the world, and of whoever decides for the seats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.ports import Culprits, Deaths, Memory
    from nodeagent.guard.announce import Announcer, Roster
    from nodeagent.offload.tiers import Tiers
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.operatorside import OperatorSide
    from nodeagent.seat.steps import Steps


@dataclass(frozen=True, slots=True)
class Outside:
    """What the warden asks of the world, besides the node's own ports.

    `pods_known`: whether the seat of every managed pod of the node is known by now.
    """

    culprits: Culprits
    memory: Memory
    deaths: Deaths
    announcer: Announcer
    roster: Roster
    pods_known: Callable[[], bool]


class Deciding(Protocol):
    """Who decides for the node's seats."""

    node: Node
    life: Lifecycle
    steps: Steps
    operators: OperatorSide
    tiers: Tiers

    def kick(self) -> None:
        """Decide once this round of events is through."""
        ...
