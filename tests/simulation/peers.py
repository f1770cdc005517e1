"""Calls between the nodes of a storm: each arrives in the other's event loop, if an agent lives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kybernate.errors import (
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.types import NodeName, PodRef, PodUid, Tier
from tests.kit.machine import Keeping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kybernate.ports import Handover
    from kybernate.types import ArtifactId
    from nodeagent.migration.target import Target
    from nodeagent.seat.node import Node
    from tests.simulation.actors import StormProxy, StormyMachine
    from tests.simulation.cluster import Cluster
    from tests.simulation.plan import Plan

_LATENCY = 0.001


class Around(Protocol):
    """The node of a storm, as its parts know it: see `life.Life`."""

    plan: Plan
    machine: StormyMachine
    cluster: Cluster
    proxies: list[StormProxy]
    found: list[str]
    node: Node | None
    inbox: StormInbox
    receiver: Target | None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """That of the agent that lives now."""
        ...

    @property
    def other(self) -> Around | None:
        """The node that its pods move to."""
        ...

    def at(self, when: float, what: Callable[[], None]) -> None:
        """From another node: have it happen here then."""

    def note(self, what: str) -> None:
        """For a trace."""


class StormRoom:
    """What states of other nodes take here. In place of `checkpoint.room.Room`: all of a state
    comes at once."""

    taken = 0

    def __init__(self) -> None:
        self.limit = 0
        self.came: dict[PodUid, int] = {}

    def left(self, successor: PodUid) -> int:
        """Bytes that may come for it."""
        return self.limit

    def of(self, successor: PodUid) -> int:
        """Bytes that came for it and were not yet delivered."""
        return self.came.pop(successor, 0)


class StormInbox:
    """What came from other nodes for pods of this one. In place of `checkpoint.inbox.Inbox`."""

    def __init__(self, life: Around) -> None:
        self._life = life
        self.room = StormRoom()

    def accept(
        self, pod: PodRef, successor: PodUid, artifact: ArtifactId, signed: bytes
    ) -> tuple[str, ...]:
        """It lies here now, as it lies there."""
        machine, folder = self._life.machine, f"/artifacts/{artifact}"
        there = self._life.other.machine.vault.get(artifact) if self._life.other else None
        if there is None:
            return ("pages-1.img",)
        machine.folders[folder] = there.snapshot
        machine.vault[artifact] = Keeping(there.snapshot, folder, {Tier.NVME}, there.facts)
        return ()

    def see_signed(self, pod: PodRef, artifact: ArtifactId, signed: bytes) -> None:
        """It is the pod's own."""

    def waiting(self) -> tuple[PodUid, ...]:
        """Nothing of what came is only half here."""
        return ()

    def is_here(self, artifact: ArtifactId) -> bool:
        """Whether it is on this node's NVMe."""
        found = self._life.machine.vault.get(artifact)
        return found is not None and Tier.NVME in found.places

    def see_whole(self, artifact: ArtifactId) -> None:
        """Nothing is ever damaged on its way."""

    def sync(self, artifact: ArtifactId) -> None:
        """It is on the disk."""

    def drop(self, successor: PodUid) -> None:
        """See `waiting`."""


class StormPeers:
    """Implements `ports.Peers`. Faults: peer-down, and peer-unheard (done, and no answer comes)."""

    def __init__(self, here: Around, other: Around) -> None:
        self._here = here
        self._other = other

    async def find(self, namespace: str, name: str, deadline: float) -> tuple[PodRef, NodeName]:
        """On the other node, or on this one."""
        await asyncio.sleep(_LATENCY)
        for life in (self._other, self._here):
            for pod in life.cluster.pods.values():
                if pod.plan.name == name and not pod.gone:
                    return PodRef(namespace, name, pod.uid), NodeName(life.plan.node)
        raise RefusedError(f"pod {namespace}/{name} is on no node")

    async def expect(self, handover: Handover, deadline: float, *, size: int = 0) -> None:
        """As its receiver says."""

        async def expected(receiver: Target) -> None:
            await receiver.awaited.meet(handover.pod, handover.successor.uid, size)

        await self._call(expected, deadline)

    async def stage(self, handover: Handover, artifact: ArtifactId, deadline: float) -> int:
        """Only takes its time."""
        await asyncio.sleep(self._here.machine.step())
        return 1

    async def follow(
        self, handover: Handover, images: Path, dumped: asyncio.Event, deadline: float
    ) -> int:
        """Only takes its time."""
        await dumped.wait()
        await asyncio.sleep(self._here.machine.step())
        return 1

    async def deliver(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """It is there, too."""
        pod, successor = handover.pod, handover.successor.uid

        async def accepted(receiver: Target) -> None:
            receiver.awaited.expect(pod, successor)
            sent = self._here.machine.vault.get(artifact)
            self._other.inbox.room.came[successor] = sent.snapshot.size if sent else 0
            if await receiver.deliver(pod, successor, artifact, b""):
                raise NotFoundError(f"{artifact} is not on node {self._here.plan.node}")

        await self._call(accepted, deadline)

    async def let_continue(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """As its receiver says."""

        async def taken(receiver: Target) -> None:
            await receiver.let_continue(handover.pod, handover.successor.uid, artifact)

        await self._call(taken, deadline)

    async def call_off(self, handover: Handover, deadline: float) -> None:
        """As its receiver says."""
        await self._call(partial(_call_off, handover=handover), deadline)

    async def _call(self, what: Callable[[Target], Awaitable[None]], deadline: float) -> None:
        here, other, loop = self._here, self._other, asyncio.get_running_loop()
        if here.machine.fault("peer-down"):
            raise RetryableError(f"node {other.plan.node} does not answer")
        answer: asyncio.Future[None] = loop.create_future()
        other.at(loop.time() + _LATENCY, partial(self._arrive, what, answer))
        try:
            await asyncio.wait_for(answer, deadline)
        except TimeoutError as error:
            raise DeadlineError(f"node {other.plan.node} did not answer in time") from error

    def _arrive(
        self, what: Callable[[Target], Awaitable[None]], answer: asyncio.Future[None]
    ) -> None:
        """On the other node."""
        agent, receiver = self._other.cluster.agent, self._other.receiver
        if agent is None or receiver is None:
            self._reply(answer, RetryableError(f"no agent is on node {self._other.plan.node}"))
        else:
            agent.life.aside(self._serve(what(receiver), answer))

    async def _serve(self, work: Awaitable[None], answer: asyncio.Future[None]) -> None:
        try:
            await work
        except (KybernateError, OSError) as error:
            self._reply(answer, error)
        else:
            self._reply(answer, None)

    def _reply(self, answer: asyncio.Future[None], error: Exception | None) -> None:
        here, other = self._here, self._other
        if not other.machine.fault("peer-unheard"):
            here.at(other.loop.time() + _LATENCY, partial(self._answered, answer, error))

    def _answered(self, answer: asyncio.Future[None], error: Exception | None) -> None:
        """Back here, if it is still the same agent that waits."""
        if answer.get_loop() is not self._here.loop or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)


async def _call_off(receiver: Target, *, handover: Handover) -> None:
    await receiver.call_off(handover.pod, handover.successor.uid)
