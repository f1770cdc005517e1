"""What other nodes' agents call, as it comes: see `receive` for what becomes of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, DeadlineError, RetryableError
from kybernate.gen import peers_pb2 as pb
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodUid
from nodeagent.api.guests import certificate_of
from nodeagent.migration.protocol import pod_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kybernate.types import PodRef
    from nodeagent.api.guests import Context
    from nodeagent.migration.target import Target


class PeersApi:
    """The calls, as they come."""

    def __init__(self, receiver: Target) -> None:
        self._receiver = receiver

    async def Expect(  # noqa: N802 - gRPC's name
        self, request: pb.Handover, context: Context
    ) -> pb.Expected:
        """Whether the successor is here and waits, and there is room."""
        pod, successor = await self._of(request, context)
        try:
            await self._receiver.awaited.meet(pod, successor, request.bytes)
        except OSError as error:
            raise RetryableError(f"its node's NVMe can't be looked at: {error}") from error
        staged, files = await self._receiver.coming.held(successor)
        held = [pb.Held(file=name, size=size) for name, size in files.items()]
        return pb.Expected(staged=staged, files=held)

    async def Receive(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[pb.Parts],
        context: Context,
    ) -> pb.Received:
        """Files of a state."""
        try:
            async with asyncio.timeout(CALL_S):
                first = await anext(aiter(request_iterator), None)
        except TimeoutError as error:
            raise DeadlineError("the opening of the stream did not come in time") from error
        if first is None or not first.HasField("opening"):
            raise ConfigError("opening", "must be the first message of the stream")
        pod, successor = await self._of(first.opening.handover, context)
        came = await self._receiver.coming.receive(
            pod, successor, first.opening.staged, request_iterator
        )
        return pb.Received(bytes=came)

    async def Deliver(  # noqa: N802 - gRPC's name
        self, request: pb.Delivery, context: Context
    ) -> pb.Delivered:
        """Keep what arrived."""
        pod, successor = await self._of(request.handover, context)
        self._receiver.awaited.expect(pod, successor)
        lacking = await self._receiver.deliver(pod, successor, request.artifact, request.manifest)
        return pb.Delivered(lacking=lacking)

    async def TakeOver(  # noqa: N802 - gRPC's name
        self, request: pb.Takeover, context: Context
    ) -> pb.TakenOver:
        """Continue here."""
        pod, successor = await self._of(request.handover, context)
        artifact = ArtifactId(request.artifact)
        sentence = await self._receiver.let_continue(pod, successor, artifact)
        return pb.TakenOver(sentence=sentence)

    async def CallOff(  # noqa: N802 - gRPC's name
        self, request: pb.Handover, context: Context
    ) -> pb.CalledOff:
        """Nothing comes of it."""
        pod, successor = await self._of(request, context, begins=False)
        await self._receiver.call_off(pod, successor)
        return pb.CalledOff()

    async def _of(
        self, handover: pb.Handover, context: Context, *, begins: bool = True
    ) -> tuple[PodRef, PodUid]:
        """Whose state it is, and whose it is to be. Raises as `Target.see_from`, ConfigError."""
        pod, successor = pod_of(handover), PodUid(handover.successor_uid)
        shown = certificate_of(context)
        nodes = shown.nodes if shown is not None else ()
        await self._receiver.see_from(pod, successor, nodes, begins=begins)
        return pod, successor
