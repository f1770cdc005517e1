"""The agents of other nodes, by gRPC with mutual TLS: implements `ports.Peers`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import grpc

from kybernate import keys
from kybernate.api import pods
from kybernate.api.watched.nodefacts import agent_address
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    KybernateError,
    RefusedError,
    RetryableError,
)
from kybernate.gen import peers_pb2 as pb
from kybernate.lib import rpc
from kybernate.lib.deadline import Deadline
from kybernate.lib.retry import quietly, retry, steadily
from kybernate.runtime.agents import options, translated
from kybernate.types import NodeName, PodRef
from nodeagent.api.doorkeeper import MESSAGE_LIMIT, STATES_LIMIT
from nodeagent.migration.protocol import Pump, handover_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from pathlib import Path

    from kybernate.checkpoint.delivery.outbox import Outbox
    from kybernate.checkpoint.raw.stream import Part
    from kybernate.ports import Handover, KubeApi
    from kybernate.runtime.identity import Identity
    from kybernate.types import ArtifactId
    from nodeagent.migration.protocol import Pacer

_API_TIMEOUT = 5.0
_PAUSES = steadily(1.0)
_PING_S = 2.0
_MANIFEST_LIMIT = MESSAGE_LIMIT - 4096


class GrpcPeers:
    """See `ports.Peers`. `identity` is this node's; `revoked` says why a node isn't called, in a
    sentence, and may raise RetryableError where nobody knows yet."""

    def __init__(
        self,
        identity: Identity,
        outbox: Outbox,
        api: Callable[[], Awaitable[KubeApi]],
        pacer: Pacer,
        revoked: Callable[[str], str] = lambda _node: "",
    ) -> None:
        self._node = identity.node
        self._identity = identity
        self._revoked = revoked
        self._outbox = outbox
        self._api = api
        self._pacer = pacer
        self._channels: dict[str, tuple[tuple[str, object], grpc.Channel]] = {}

    async def find(self, namespace: str, name: str, deadline: float) -> tuple[PodRef, NodeName]:
        """See `ports.Peers.find`."""
        pod = pods.read_pod(await self._get(pods.path(namespace, name), deadline))
        node = pod.node
        if node is None:
            raise RefusedError(f"pod {namespace}/{name} is on no node yet; wait until it is bound")
        return PodRef(namespace, name, pod.ref.uid), node

    async def expect(self, handover: Handover, deadline: float, *, size: int = 0) -> None:
        """See `ports.Peers.expect`."""
        await self._call(handover, "Expect", handover_message(handover, size), deadline)

    async def stage(self, handover: Handover, artifact: ArtifactId, deadline: float) -> int:
        """See `ports.Peers.stage`."""
        there = await self._call(handover, "Expect", handover_message(handover), deadline)
        of_it = there.files if there.staged == artifact else ()
        have = {held.file: held.size for held in of_it}
        until = Deadline(deadline)
        parts = self._outbox.staging(handover.successor.uid, artifact, have, until)
        return await self._send(handover, parts, until, staged=artifact)

    async def follow(
        self, handover: Handover, images: Path, dumped: asyncio.Event, deadline: float
    ) -> int:
        """See `ports.Peers.follow`."""
        done, until = threading.Event(), Deadline(deadline)

        async def tell() -> None:
            await dumped.wait()
            done.set()

        telling = asyncio.create_task(tell())
        parts = self._outbox.following(handover.successor.uid, images, done, until)
        try:
            return await self._send(handover, parts, until)
        finally:
            telling.cancel()
            until.cancel()

    async def deliver(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """See `ports.Peers.deliver`."""
        until = Deadline(deadline)
        signed = await asyncio.to_thread(self._outbox.signed, artifact)
        if len(signed) > _MANIFEST_LIMIT:
            raise RefusedError(f"the manifest of {artifact} is too large to be sent")
        lacking = await self._offer(handover, artifact, signed, until)
        if lacking:
            names = iter(lacking)
            parts = self._outbox.whole(artifact, names, until)
            await self._send(handover, parts, until)
            lacking = await self._offer(handover, artifact, signed, until)
        if lacking:
            raise CorruptError(f"{', '.join(lacking)} of {artifact} arrived otherwise, twice")
        self._outbox.forget(handover.successor.uid)

    async def _offer(
        self, handover: Handover, artifact: ArtifactId, signed: bytes, until: Deadline
    ) -> list[str]:
        delivery = pb.Delivery(
            handover=handover_message(handover), artifact=artifact, manifest=signed
        )

        async def offered() -> list[str]:
            answer = await self._call(handover, "Deliver", delivery, until.left)
            return list(answer.lacking)

        # Its door answers within seconds; to read a large state takes longer. It is read on all the
        # same, and whoever asks again hears how that ended.
        ends = asyncio.get_running_loop().time() + until.left
        return await retry(offered, quietly, on=DeadlineError, pauses=_PAUSES, until=ends)

    async def let_continue(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """See `ports.Peers.let_continue`."""
        message = pb.Takeover(handover=handover_message(handover), artifact=artifact)
        await self._call(handover, "TakeOver", message, deadline)

    async def call_off(self, handover: Handover, deadline: float) -> None:
        """See `ports.Peers.call_off`."""
        self._outbox.forget(handover.successor.uid)
        await self._call(handover, "CallOff", handover_message(handover), deadline)

    def drop(self, nodes: Iterable[str]) -> None:
        """End the connections to these nodes, and with them what is under way there."""
        for node in nodes:
            known = self._channels.pop(node, None)
            if known is not None:
                known[1].close()

    def close(self) -> None:
        """End all connections."""
        for _, channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # --- calls ----------------------------------------------------------------------------------

    async def _send(
        self, handover: Handover, parts: Iterator[Part], until: Deadline, staged: str = ""
    ) -> int:
        opening = pb.Opening(handover=handover_message(handover), staged=staged)
        pump = Pump(opening, parts, self._pacer)
        stub = await self._stub(handover.node, until.left)
        call = stub.Receive.future(pump.messages(), timeout=until.left)
        try:
            await _answer(call, handover.node)
        except KybernateError:
            if pump.problem is not None:
                raise pump.problem from None
            raise
        return pump.sent

    async def _call(self, handover: Handover, method: str, message: Any, deadline: float) -> Any:
        stub = await self._stub(handover.node, deadline)
        return await _answer(getattr(stub, method).future(message, timeout=deadline), handover.node)

    async def _stub(self, node: str, deadline: float) -> Any:
        if why := self._revoked(node):
            raise RefusedError(why)
        found = await self._get(f"{keys.GPU_NODES_PATH}/{node}", deadline)
        address = agent_address(found)
        if not address:
            raise RetryableError(f"node {node} tells no address of its agent yet")
        known, like = self._channels.get(node), (address, self._identity.stamp())
        if known is None or known[0] != like:
            # One of before ends with its last call: this node may have a new certificate by now.
            if known is not None and known[0][0] != address:
                known[1].close()
            channel = await asyncio.to_thread(self._connect, node, address)
            known = self._channels[node] = (like, channel)
        return rpc.Stub(known[1], pb.DESCRIPTOR, "Peers")

    def _connect(self, node: str, address: str) -> grpc.Channel:
        shown = self._identity.shown()
        believed = grpc.ssl_channel_credentials(
            self._identity.agents(), shown.key, shown.certificate
        )
        more = [
            *options(node, _PING_S),
            ("grpc.max_send_message_length", STATES_LIMIT),
            ("grpc.max_receive_message_length", STATES_LIMIT),
        ]
        return grpc.secure_channel(address, believed, more)

    async def _get(self, path: str, deadline: float) -> Any:
        try:
            api = await asyncio.wait_for(asyncio.ensure_future(self._api()), deadline)
            call = asyncio.to_thread(lambda: api.get(path, timeout=_API_TIMEOUT))
            return await asyncio.wait_for(call, deadline)
        except TimeoutError as error:
            raise DeadlineError("the API server doesn't answer") from error


async def _answer(call: Any, node: str) -> Any:
    """What a call answers, as ours or an error of ours; it is ended with whoever waits for it.

    No thread waits: calls take minutes, and the agent has a few threads for all that it does.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the agent has ended
            loop.call_soon_threadsafe(ended.set)

    call.add_done_callback(tell)
    try:
        await ended.wait()
        return call.result()
    except grpc.RpcError as error:
        raise translated(error, node) from error
    except grpc.FutureCancelledError as error:
        raise RetryableError(f"a call of the agent of node {node} was ended") from error
    finally:
        with contextlib.suppress(Exception):
            call.cancel()
