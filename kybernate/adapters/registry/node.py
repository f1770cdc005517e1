"""The registry as one node's agent calls it: `ports.Registry`, in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

from kybernate.adapters.registry import wire
from kybernate.adapters.registry.client import Registry as Client
from kybernate.adapters.registry.describe import describe, digest
from kybernate.errors import DeadlineError, NotFoundError
from kybernate.ports import Line
from kybernate.types import ArtifactId, Tier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import PodUid

R = TypeVar("R")

_THREADS = 4
_LATE = 1.0
"""Seconds that a thread has to notice its call's deadline before it is left alone."""


class Identity(Protocol):
    """Whom the agent says it is. Safe to use from several threads."""

    @property
    def node(self) -> str:
        """Whose agent it is."""
        ...

    def stamp(self) -> object:
        """Another one whenever one of the files is another."""
        ...

    def files(self) -> tuple[Path, Path, Path]:
        """The registry's authority, and certificate and key to show to it. Raises RetryableError
        while there is nothing to show."""
        ...


class OwnClient:
    """The registry as this node's agent calls it, by the certificate that it has now. Any thread
    may ask."""

    def __init__(self, url: str, identity: Identity) -> None:
        self._url, self._identity = url, identity
        self._lock = threading.Lock()
        self._made: tuple[object, Client] | None = None

    def __call__(self) -> Client:
        """The client; its first call reads certificates, which takes a moment. Raises ConfigError,
        RetryableError while there is none."""
        with self._lock:
            stamp = self._identity.stamp()
            if self._made is None:
                self._made = None, Client(self._url)
            if self._made[0] != stamp:
                self._made[1].show(*self._identity.files())
                self._made = stamp, self._made[1]
            return self._made[1]


class NodeRegistry:
    """Implements `ports.Registry` for the agent that `identity` names.

    `store` is the URL of the node's object store, or empty.
    """

    def __init__(self, url: str, identity: Identity, store: str) -> None:
        self._store = store
        self._node = identity.node
        self._open = OwnClient(url, identity)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="registry")

    @property
    def _client(self) -> Client:
        return self._open()

    async def lease(self, namespace: str, uid: PodUid, seconds: float, deadline: float) -> int:
        """See `ports.Registry.lease`."""
        wish = wire.LeaseWish(seconds=seconds)
        found = await self._run(
            lambda: self._client.lease((namespace, uid), wish, deadline), deadline
        )
        return found.token

    async def record(
        self,
        manifest: Manifest,
        tier: Tier,
        token: int,
        deadline: float,
        *,
        person_hold: bool = False,
    ) -> None:
        """See `ports.Registry.record`."""
        held = self._copy(manifest, tier, wire.CopyState.VERIFIED)
        described = describe(manifest, person_hold=tier if person_hold else None)
        said = wire.Recording(artifact=described, held=held, token=token)
        await self._run(lambda: self._client.record(manifest.id, said, deadline), deadline)

    async def report(
        self, manifest: Manifest, tier: Tier, deadline: float, *, verified: bool = True
    ) -> None:
        """See `ports.Registry.report`."""
        state = wire.CopyState.VERIFIED if verified else wire.CopyState.PENDING
        told = wire.CopyReport(digest=digest(manifest), held=self._copy(manifest, tier, state))
        await self._run(lambda: self._client.report(manifest.id, told, deadline), deadline)

    async def drop(
        self, artifact: ArtifactId, tier: Tier, deadline: float, *, forget: str = ""
    ) -> None:
        """See `ports.Registry.drop`."""
        node, store = self._spot(tier)
        spot = wire.Spot(place=tier, node=node, store=store)
        await self._run(lambda: self._client.drop(artifact, spot, forget, deadline), deadline)

    async def stop(self, namespace: str, uid: PodUid, why: str, deadline: float) -> None:
        """See `ports.Registry.stop`."""
        told = wire.Stop(proof=wire.Proof.AGENT, why=why)
        await self._run(lambda: self._client.stopped(namespace, uid, told, deadline), deadline)

    async def claim(
        self,
        namespace: str,
        uid: PodUid,
        artifact: ArtifactId,
        successor: PodUid,
        deadline: float,
        *,
        again: bool = False,
    ) -> None:
        """See `ports.Registry.claim`."""
        wanted = wire.Claim(artifact=artifact, successor=successor, node=self._node, again=again)
        await self._run(lambda: self._client.claim(namespace, uid, wanted, deadline), deadline)

    async def hand_back(
        self, namespace: str, uid: PodUid, successor: PodUid, deadline: float
    ) -> None:
        """See `ports.Registry.hand_back`."""
        await self._run(lambda: self._client.release(namespace, uid, successor, deadline), deadline)

    async def line(self, namespace: str, uid: PodUid, deadline: float) -> Line:
        """See `ports.Registry.line`. A pod that nobody wrote for has an empty one."""
        try:
            found = await self._run(lambda: self._client.pod(namespace, uid, deadline), deadline)
        except NotFoundError:
            return Line()
        stopped = found.stopped.value if found.stopped else ""
        return Line(
            found.node, stopped, found.successor, found.artifact, found.ended, found.settled
        )

    async def newest(self, namespace: str, uid: PodUid, deadline: float) -> ArtifactId:
        """See `ports.Registry.newest`."""
        wanted = wire.Latest(namespace=namespace, pod_uid=uid)
        found = await self._run(lambda: self._client.latest(wanted, deadline), deadline)
        return ArtifactId(found.id)

    def _spot(self, tier: Tier) -> tuple[str, str]:
        """Node and store of a copy in this tier, of which one is empty."""
        return ("", self._store) if tier is Tier.OBJECT else (self._node, "")

    def _copy(self, manifest: Manifest, tier: Tier, state: wire.CopyState) -> wire.Copy:
        node, store = self._spot(tier)
        return wire.Copy(place=tier, node=node, store=store, state=state, size=manifest.stored)

    async def _run(self, call: Callable[[], R], deadline: float) -> R:
        running = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            return await asyncio.wait_for(running, deadline + _LATE)
        except TimeoutError as error:
            raise DeadlineError(f"the registry did not answer within {deadline:g} s") from error
