"""A seat whose next dump goes to another node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.errors import (
    KybernateError,
    NotFoundError,
    RefusedError,
)
from nodeagent.seat.steps import Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kybernate.ports import Handover, Peers, Phases
    from kybernate.types import ArtifactId


class Departure:
    """What becomes of the seat's next dump. `send` sends what is written into a folder until the
    event is set; `keep` returns once the other node keeps what was sealed. `problem`: why the seat
    stayed."""

    def __init__(
        self,
        send: Callable[[Path, asyncio.Event], Awaitable[None]],
        keep: Callable[[ArtifactId], Awaitable[None]],
    ) -> None:
        self._send, self._keep = send, keep
        self.problem = ""

    async def follow(self, images: Path, dumping: Awaitable[Phases]) -> Phases:
        """The dump, which is sent meanwhile. Raises as the dump does."""
        dumped = asyncio.Event()
        sending = asyncio.ensure_future(self._send(images, dumped))
        try:
            phases = await dumping
            dumped.set()
            await sending
        except BaseException as error:
            self.problem = str(error) or type(error).__name__
            raise
        finally:
            sending.cancel()
        return phases

    async def deliver(self, artifact: ArtifactId) -> None:
        """Its state is sealed: the other node has it when this returns. Raises Reverted."""
        try:
            await self._keep(artifact)
        except (KybernateError, OSError) as error:
            self.problem = str(error)
            raise Reverted(f"it could not be handed over: {error}") from error


async def see_there(peers: Peers, to: Handover, deadline: float) -> None:
    """Raise RefusedError if the successor's pod is gone: nobody will ever answer for it."""
    gone = f"pod {to.successor} is gone from node {to.node}"
    try:
        found, _ = await peers.find(to.successor.namespace, to.successor.name, deadline)
    except (RefusedError, NotFoundError) as error:
        raise RefusedError(f"{gone}: {error}") from error
    if found.uid != to.successor.uid:
        raise RefusedError(f"{gone}: another of its name is there")


def where(to: Handover) -> str:
    """Who goes on, for people."""
    return f"pod {to.successor} on node {to.node} goes on with its state"
