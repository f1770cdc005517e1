"""What lies beyond this node: other nodes' agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from kybernate.types import ArtifactId, NodeName, PodRef


@dataclass(frozen=True, slots=True)
class Handover:
    """`pod`, whose seat is here, leaves this node; `successor`, of the same namespace, waits on
    `node` to go on with its state."""

    pod: PodRef
    successor: PodRef
    node: NodeName


class Peers(Protocol):
    """Agents of other nodes, to which states go.

    Every call may be made again when its answer was lost, also by the next agent here. Errors:
    RefusedError (the successor doesn't take it: the sentence says why), NotFoundError, CorruptError
    (what arrived there is not what was sealed here), RetryableError (no answer, or none that is
    understood), DeadlineError, OSError.
    """

    async def find(self, namespace: str, name: str, deadline: float) -> tuple[PodRef, NodeName]:
        """The pod of this name, and its node. RefusedError if it is on none yet."""
        ...

    async def expect(self, handover: Handover, deadline: float) -> None:
        """Returns if the successor is there, holds a seat and waits for this pod's state."""
        ...

    async def stage(self, handover: Handover, artifact: ArtifactId, deadline: float) -> int:
        """Bring the blocks of a state of before, which is sealed here, to the successor's node, in
        advance; how many bytes travelled. What is there already doesn't travel again."""
        ...

    async def follow(
        self, handover: Handover, images: Path, dumped: asyncio.Event, deadline: float
    ) -> int:
        """Send a dump while it is being written into `images`, and return once all of it is there;
        how many bytes travelled. `dumped` is set when nothing more is written."""
        ...

    async def deliver(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """What was followed is sealed here as `artifact`. Returns once it is verified and sealed
        there, too; what was lost on the way is sent again."""
        ...

    async def take_over(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """Its tree here is ended for good. Returns once the successor is known to go on with it,
        over restarts of its agent; RefusedError: it never will."""
        ...

    async def call_off(self, handover: Handover, deadline: float) -> None:
        """Nothing comes of it, since the pod goes on here: what was received there may go."""
        ...
