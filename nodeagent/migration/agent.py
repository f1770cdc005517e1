"""What migrations and evacuations use of the rest of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kybernate.ports import Registry
    from nodeagent.artifacts.holds import Custody
    from nodeagent.artifacts.reports import ReportQueue
    from nodeagent.artifacts.succession import Succession
    from nodeagent.offload.offload import Offload
    from nodeagent.seat.node import Node
    from nodeagent.seat.operatorside import OperatorSide


@dataclass(frozen=True, slots=True)
class Agent:
    """`aside` runs what nobody waits for; `registry` knows who may continue with what."""

    node: Node
    operators: OperatorSide
    offload: Offload
    custody: Custody
    succession: Succession
    reports: ReportQueue
    registry: Registry
    aside: Callable[[Coroutine[object, object, None]], None]

    def is_here(self, node: str) -> bool:
        """Whether this is the node of that name."""
        return node == self.node.settings.node
