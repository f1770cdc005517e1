"""What other nodes' agents call, as it comes: see `receive` for what becomes of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kybernate.errors import ConfigError, DeadlineError, RetryableError
from kybernate.gen import peers_pb2 as pb
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodUid
from nodeagent.migration.protocol import pod_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from nodeagent.migration.target import Target


class PeersApi:
    """The calls, as they come."""

    def __init__(self, receiver: Target) -> None:
        self._receiver = receiver

    async def Expect(  # noqa: N802 - gRPC's name
        self, request: pb.Handover, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Expected:
        """Whether the successor is here and waits, and there is room."""
        try:
            successor = PodUid(request.successor_uid)
            await self._receiver.awaited.meet(pod_of(request), successor, request.bytes)
        except OSError as error:
            raise RetryableError(f"its node's NVMe can't be looked at: {error}") from error
        staged, files = await self._receiver.coming.held(PodUid(request.successor_uid))
        held = [pb.Held(file=name, size=size) for name, size in files.items()]
        return pb.Expected(staged=staged, files=held)

    async def Receive(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[pb.Parts],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.Received:
        """Files of a state."""
        try:
            async with asyncio.timeout(CALL_S):
                first = await anext(aiter(request_iterator), None)
        except TimeoutError as error:
            raise DeadlineError("the opening of the stream did not come in time") from error
        if first is None or not first.HasField("opening"):
            raise ConfigError("opening", "must be the first message of the stream")
        of = first.opening.handover
        came = await self._receiver.coming.receive(
            pod_of(of), PodUid(of.successor_uid), first.opening.staged, request_iterator
        )
        return pb.Received(bytes=came)

    async def Deliver(  # noqa: N802 - gRPC's name
        self, request: pb.Delivery, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Delivered:
        """Keep what arrived."""
        successor = PodUid(request.handover.successor_uid)
        pod = pod_of(request.handover)
        self._receiver.awaited.expect(pod, successor)
        lacking = await self._receiver.deliver(pod, successor, request.artifact, request.manifest)
        return pb.Delivered(lacking=lacking)

    async def TakeOver(  # noqa: N802 - gRPC's name
        self, request: pb.Takeover, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.TakenOver:
        """Continue here."""
        pod, successor = pod_of(request.handover), PodUid(request.handover.successor_uid)
        artifact = ArtifactId(request.artifact)
        sentence = await self._receiver.let_continue(pod, successor, artifact)
        return pb.TakenOver(sentence=sentence)

    async def CallOff(  # noqa: N802 - gRPC's name
        self, request: pb.Handover, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CalledOff:
        """Nothing comes of it."""
        await self._receiver.call_off(pod_of(request), PodUid(request.successor_uid))
        return pb.CalledOff()
