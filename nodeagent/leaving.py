"""A seat whose next dump goes to another node, and the journal's form of a move."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.operations import ENDED
from kybernate.errors import (
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.ports import Handover
from kybernate.types import NodeName, PodRef, PodUid
from nodeagent.operation import OPERATION
from nodeagent.steps import Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from kybernate.ports import Peers, Phases
    from kybernate.types import ArtifactId

MOVE = "move/"
"""Journal keys of moves of seats, by the pod's UID."""

_AGAIN = 1.0
"""Seconds after which what failed is tried again."""


class Going:
    """What becomes of the seat's next dump; see `Dumps.going`. `send` sends what is written into a
    folder until the event is set; `keep` returns once the other node keeps what was sealed.
    `problem`: why the seat stayed."""

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


async def persistently(call: Callable[[], Awaitable[None]], say: Callable[[str], None]) -> None:
    """Again and again, while it may yet succeed. Raises RefusedError, ConflictError, CorruptError,
    OSError."""
    while True:
        try:
            await call()
        except (RetryableError, DeadlineError, NotFoundError) as error:
            say(f"{error}; trying again")
            await asyncio.sleep(_AGAIN)
        else:
            return


async def see_there(peers: Peers, to: Handover, deadline: float) -> None:
    """Raise RefusedError if the successor's pod is gone: nobody will ever answer for it."""
    gone = f"pod {to.successor} is gone from node {to.node}"
    try:
        found, _ = await peers.find(to.successor.namespace, to.successor.name, deadline)
    except (RefusedError, NotFoundError) as error:
        raise RefusedError(f"{gone}: {error}") from error
    if found.uid != to.successor.uid:
        raise RefusedError(f"{gone}: another of its name is there")


def record_of(to: Handover, operation: str, artifact: str, *, done: bool) -> dict[str, object]:
    """A move as the journal has it. `artifact`: what the other node keeps; `done`: the successor
    goes on."""
    return {
        "operation": operation,
        "artifact": artifact,
        "done": done,
        "namespace": to.pod.namespace,
        "pod": to.pod.name,
        "uid": to.pod.uid,
        "successor": to.successor.name,
        "successor_uid": to.successor.uid,
        "node": to.node,
    }


def handed_over(records: Mapping[str, Mapping[str, object]]) -> set[PodUid]:
    """The seats whose successors may go on, by the journal: of moves that have not ended."""
    moves = {key: one for key, one in records.items() if key.startswith(MOVE) and one["artifact"]}
    live = (key for key, one in moves.items() if not has_ended(records, one))
    return {PodUid(key.removeprefix(MOVE)) for key in live}


def has_ended(records: Mapping[str, Mapping[str, object]], record: Mapping[str, object]) -> bool:
    """Whether nobody goes on with the move of which this is the record."""
    operation = records.get(f"{OPERATION}{record['operation']}")
    return operation is None or operation["state"] in ENDED


def handover_of(record: Mapping[str, object]) -> Handover:
    """Who goes where, of what `record_of` wrote."""
    namespace = str(record["namespace"])
    return Handover(
        PodRef(namespace, str(record["pod"]), PodUid(str(record["uid"]))),
        PodRef(namespace, str(record["successor"]), PodUid(str(record["successor_uid"]))),
        NodeName(str(record["node"])),
    )


def where(to: Handover) -> str:
    """Who goes on, for people."""
    return f"pod {to.successor} on node {to.node} goes on with its state"
