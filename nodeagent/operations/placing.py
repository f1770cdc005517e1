"""Copies that TierPlacements want: into the object store, or onto this node's NVMe.

A copy on NVMe comes last: it takes no room that the states of seats want, and goes where they come
to want it. What no TierPlacement asks for any more goes, too. Which those are is theirs to say:
nothing of it is remembered here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from kybernate.core.seat.operations import Progress, Verdict
from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError, RetryableError
from kybernate.lib.deadline import Deadline
from kybernate.lib.rounds import rounds
from kybernate.types import ArtifactId, Tier
from nodeagent import metrics
from nodeagent.artifacts.reports import Kind as Told
from nodeagent.artifacts.reports import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.checkpoint.placed import PlacedCopies
    from kybernate.core.seat.operations import SeatFacts
    from nodeagent.artifacts.reports import ReportQueue
    from nodeagent.offload.offload import Offload
    from nodeagent.operations.record import Ask, Operation

log = logging.getLogger(__name__)

EVERY_S = 5.0
"""Seconds between two looks at what is wanted here, and how much room there is."""
_SHORT_S = 60.0


class Wanted(Protocol):
    """What TierPlacements ask for. `runtime.artifacts.Placements` is one."""

    @property
    def unlisted(self) -> str | None:
        """Why not all are known, in a sentence; None once they are."""
        ...

    def named(self, artifact: str) -> bool:
        """Whether one names the artifact."""
        ...

    def wants(self, artifact: str, node: str) -> bool:
        """Whether one wants it on this node's NVMe."""
        ...


@dataclass(slots=True)
class _Copying:
    task: asyncio.Future[None] | None = None
    waits: bool = False
    why: str = ""


class Placing:
    """All copies that are under way, and what becomes of those that are here. Implements
    `carrier.Carrier`. `noted` is told of what has changed about an operation; `reports`: what tells
    the registry, None without one."""

    def __init__(
        self,
        offload: Offload,
        copies: PlacedCopies | None,
        wanted: Wanted,
        reports: ReportQueue | None,
        noted: Callable[[Operation], None],
    ) -> None:
        self._offload = offload
        self._node = offload.ground.node
        self._copies = copies
        self._wanted = wanted
        self._reports = reports
        self._noted = noted
        self._all: dict[str, _Copying] = {}
        # One after the other: a tenant may want any number, each takes memory while it is copied,
        # and only the one before says how much room it has left.
        self._turns = {tier: asyncio.Semaphore(1) for tier in (Tier.NVME, Tier.OBJECT)}
        self._swept = False

    # --- operations -----------------------------------------------------------------------------

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """Why this can't be asked, whatever happens; empty if it can. Raises RetryableError for
        what no TierPlacement asks for: not as far as this agent knows by now."""
        if self._copies is None:
            return "this node has no object store to copy artifacts to or from (object_store)"
        if ask.tier not in (Tier.NVME, Tier.OBJECT) or not ask.artifact:
            return "name an artifact, and nvme or object as its tier"
        node = self._node.settings.node
        asked = self._wanted.wants(ask.artifact, node) if ask.tier is Tier.NVME else False
        if not (asked or (ask.tier is Tier.OBJECT and self._wanted.named(ask.artifact))):
            raise RetryableError(
                f"node {node} knows of no TierPlacement that wants {ask.artifact} in {ask.tier}"
            )
        return ""

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """What it would do, in order."""
        where = "this node's NVMe" if ask.tier is Tier.NVME else "the object store"
        return (f"{ask.artifact} is copied to {where}.",)

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """Begin it, or continue from where the last agent was."""
        copying = self._all[operation.name] = _Copying()
        copying.task = asyncio.ensure_future(self._carry(operation, copying))

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """How far it is."""
        copying = self._all.get(operation.name)
        if copying is None or copying.task is None:
            return Verdict(Progress.PENDING, "it begins")
        if not copying.task.done() and copying.waits:
            return Verdict(Progress.PENDING, "it waits for other copies of this node")
        if not copying.task.done():
            return Verdict(Progress.RUNNING, f"it is copied to {operation.tier}")
        if copying.why:
            return Verdict(Progress.FAILED, copying.why)
        return Verdict(Progress.SUCCEEDED, f"it is in {operation.tier}")

    def drop(self, operation: Operation) -> None:
        """Take the wish back: what has come by then goes with the next look."""
        copying = self._all.pop(operation.name, None)
        if copying is not None and copying.task is not None:
            copying.task.cancel()

    def ended(self, operation: Operation) -> None:
        """Nothing more becomes of it."""
        self._all.pop(operation.name, None)

    def look(self) -> None:
        """Nothing is waited for."""

    async def _carry(self, operation: Operation, copying: _Copying) -> None:
        artifact = ArtifactId(operation.artifact)
        of_store = operation.tier is Tier.OBJECT
        carry = self._pack if of_store else self._bring
        turn = self._turns[Tier.OBJECT if of_store else Tier.NVME]
        copying.waits = turn.locked()
        try:
            async with turn:
                if copying.waits:
                    copying.waits = False
                    self._noted(operation)
                await carry(artifact, operation)
        except (KybernateError, OSError) as error:
            copying.why = f"it is not copied: {error}"
            metrics.failed("place")
        except Exception as error:
            copying.why = f"it is not copied: {error}"
            log.exception("%s is not placed", artifact)
        finally:
            self._noted(operation)

    async def _pack(self, artifact: ArtifactId, operation: Operation) -> None:
        vault = self._offload.ground.offloading.vault
        deadline = self._node.settings.transfer_deadline_s
        operation.bytes_total = (await vault.manifest(artifact, _SHORT_S)).total
        advance = self._advancing(operation)
        await vault.pack(
            artifact, Tier.OBJECT, deadline, lambda done: advance(done, operation.bytes_total)
        )
        operation.bytes_done = operation.bytes_total
        self._offload.custody.packed(artifact)

    async def _bring(self, artifact: ArtifactId, operation: Operation) -> None:
        copies = self._copies
        if copies is None:
            raise RetryableError("this node has no object store any more (object_store)")
        limit = self._node.settings.transfer_deadline_s
        until, room, advance = Deadline(limit), await self.room(), self._advancing(operation)
        try:
            await self._node.world.blocking(
                lambda: copies.bring(artifact, room, until, advance), limit + _SHORT_S
            )
        finally:
            # Its thread ends soon after its caller was cancelled.
            until.cancel()
        self._tell(Told.COPIED, artifact)

    def _advancing(self, operation: Operation) -> Callable[[int, int], None]:
        loop = asyncio.get_running_loop()

        def copied(done: int, total: int) -> None:
            operation.bytes_total = total
            operation.bytes_done = min(done, total)

        def advance(done: int, total: int) -> None:
            # The thread that copies tells it, and the loop alone writes it.
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(copied, done, total)

        return advance

    # --- what is here ---------------------------------------------------------------------------

    async def room(self) -> int:
        """Bytes of NVMe that no state of a seat has or waits for, and no placed copy. Raises
        KybernateError, OSError."""
        copies, blocking = self._copies, self._node.world.blocking
        taken = await blocking(copies.used, _SHORT_S) if copies is not None else 0
        return self._offload.free() - taken

    async def run(self) -> None:
        """Let go what is not wanted here, or has no room any more, for ever."""
        await rounds(self.tidy, EVERY_S, "placed copies that are wanted no more")

    async def tidy(self) -> None:
        """Look once. Raises KybernateError, OSError."""
        copies, node = self._copies, self._node.settings.node
        if copies is None or self._wanted.unlisted is not None:
            return
        blocking = self._node.world.blocking
        here = await blocking(copies.here, _SHORT_S)
        surplus = {one: _UNWANTED for one in here if not self._wanted.wants(one, node)}
        wanted = [one for one in here if one not in surplus]
        cut = [one for one in copies.cut_short() if not self._wanted.wants(one, node)]
        if not (surplus or cut) and await self.room() < 0:
            # One at a time: what they share shows only then. What isn't whole comes first.
            cut = [*copies.cut_short()]
            surplus = {wanted[-1]: _NO_ROOM} if wanted and not cut else {}
        for artifact, why in surplus.items():
            log.info("the placed copy of %s goes: %s", artifact, why)
            self._tell(Told.DROPPED, artifact, why)
        if surplus or cut or not self._swept:
            # The last agent, too, may have left packs of a copy that never was whole.
            await blocking(lambda: copies.drop(tuple(surplus)), _SHORT_S)
            self._swept = True

    def _tell(self, kind: Told, artifact: str, why: str = "") -> None:
        if self._reports is not None:
            self._reports.put(Report(kind, artifact=artifact, tier=Tier.NVME.value, why=why))


_UNWANTED = "no TierPlacement wants it on this node"
_NO_ROOM = "states of seats need its room on NVMe"
