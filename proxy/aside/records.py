"""What the registry's records say: asked aside, never while a request waits for the answer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters.registry import wire
from kybernate.core.tiers.tiers import SPEEDS, Artifact
from kybernate.errors import KybernateError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.registry.client import Registry
    from kybernate.types import NodeName, PodUid
    from proxy.actions import Verify
    from proxy.desk import Desk

T = TypeVar("T")

log = logging.getLogger(__name__)

_CALL_S = 3.0
_AWAY_S = 2.0
"""Seconds until it is asked again what nobody answered."""
_DENIED_S = 60.0
"""Seconds until it is asked again what was denied: a registry that lost its database learns of
claims again."""


class Records:
    """Asks the registry. `open_registry` gives a client by the certificates of now; `failed` hears
    what was asked for by each call without an answer."""

    def __init__(
        self, open_registry: Callable[[], Registry], failed: Callable[[str], None]
    ) -> None:
        self._open, self._failed = open_registry, failed
        self._client: Registry | None = None
        self._away = False

    async def successor(self, namespace: str, uid: PodUid) -> str:
        """The pod that holds the claim on this one's artifact; empty if none does.

        Raises KybernateError or OSError if nobody can say, also as the database was lost.
        """

        def ask(registry: Registry) -> str:
            found = registry.pod(namespace, uid, _CALL_S)
            if not (found.successor or found.settled):
                raise KybernateError(f"claims on pod {namespace}/{uid} may exist that aren't known")
            return found.successor

        return await self._call("pod", ask) or ""

    async def copies(self, namespace: str, uid: PodUid) -> tuple[Artifact, ...]:
        """Where the newest artifact of a pod lies that can be restored once its pod is gone; none
        if it has none. A node's copy counts as if the pod came there, as it does where it can.

        Raises KybernateError or OSError if nobody can say.
        """

        def ask(registry: Registry) -> tuple[Artifact, ...]:
            wanted = wire.Latest(namespace=namespace, pod_uid=uid)
            found = registry.latest(wanted, _CALL_S)
            there = (one.place for one in found.copies if one.state is wire.CopyState.VERIFIED)
            return tuple(Artifact(tier, found.size) for tier in there if SPEEDS[tier].outlives_pod)

        return await self._call("artifact", ask) or ()

    async def _call(self, what: str, ask: Callable[[Registry], T]) -> T | None:
        """None if it knows nothing of that name."""
        try:
            found = await asyncio.to_thread(self._ask, ask)
        except NotFoundError:
            found = None
        except (KybernateError, OSError) as error:
            self._failed(what)
            if not self._away:
                log.warning("the registry can't say: %s", error)
            self._away, self._client = True, None
            raise
        self._away = False
        return found

    def _ask(self, ask: Callable[[Registry], T]) -> T:
        client = self._client = self._client or self._open()
        return ask(client)


class Words:
    """Asks whether pods have taken others' places, one word at a time and of each node in its turn,
    so that one which says much delays the others little. Lives on the event loop."""

    def __init__(self, records: Records, desk: Desk) -> None:
        self._records, self._desk = records, desk
        self._loop = asyncio.get_running_loop()
        self._said: dict[NodeName, dict[Verify, None]] = {}
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask what is to be asked from now on."""
        self._task = self._loop.create_task(self._run(), name="words")

    async def stop(self) -> None:
        """Ask nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def verify(self, said: Verify) -> None:
        """Have it asked, and the desk told."""
        self._said.setdefault(said.node, {})[said] = None
        self._more.set()

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            await self._ask(self._next())

    async def _ask(self, said: Verify) -> None:
        """Whether the word is true; asked again later if nobody answers, or if it is denied."""
        if not self._desk.admission.says(said.uid, said.predecessor):
            return
        try:
            found = await self._records.successor(said.namespace, said.predecessor)
        except (KybernateError, OSError):
            self._loop.call_later(_AWAY_S, self.verify, said)
            return
        confirmed = found == said.uid
        self._desk.verified(said, confirmed=confirmed)
        if not confirmed:
            log.warning(
                "the agent of node %s says that pod %s/%s has taken the place of %s, and the "
                "registry denies it",
                *(said.node, said.namespace, said.uid, said.predecessor),
            )
            self._loop.call_later(_DENIED_S, self.verify, said)

    def _next(self) -> Verify:
        """The oldest word of the node whose turn it is."""
        node = next(iter(self._said))
        mine = self._said.pop(node)
        said = next(iter(mine))
        del mine[said]
        if mine:
            self._said[node] = mine
        if not self._said:
            self._more.clear()
        return said
