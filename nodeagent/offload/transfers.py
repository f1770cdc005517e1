"""Saved states between the tiers below RAM, and what becomes of those that nobody needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from kybernate.core.artifacts.match import machine_of
from kybernate.core.seat.seats import TIER_OF, SeatEvent
from kybernate.errors import (
    CorruptError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.retry import retry
from kybernate.types import ArtifactId, Tier
from nodeagent import metrics
from nodeagent.artifacts.kept import Kept
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.offload.gates import BELOW, GATE_DEADLINE, Gates
from nodeagent.offload.lazies import Lazies
from nodeagent.offload.leavers import Leavers
from nodeagent.offload.retries import pause
from nodeagent.seat.steps import Broken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from pathlib import Path

    from kybernate.core.artifacts.into import Into
    from kybernate.types import PodUid
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat
    from nodeagent.seat.steps import Steps

log = logging.getLogger(__name__)

BELIEVED_AFTER = 30.0
"""Seconds for which a store has to say that a state is not there, or is not whole, before that is
believed and the state given up."""

DROP = "drop/"
"""Journal keys of saved states that nobody needs any more and that are not yet dropped."""


def _spares_none(seat: Seat, artifact: str) -> bool:
    """`Transfers.spares` where no pod goes on from another's state."""
    return False


def _outgrows_none(seat: Seat, artifact: str) -> None:
    """`Transfers.outgrown` where no pod goes on from another's state."""


def _nobodys(artifact: str) -> bool:
    """`Transfers.succeeded` where no pod goes on from another's state."""
    return False


def _tells_none(artifact: str) -> None:
    """`Transfers.dropped` where no state comes for a successor."""


def _nothing_in(tier: Tier) -> int:
    """`Transfers.left_in` where pods leave no states behind, `came_in` where none come."""
    return 0


class Transfers(Gates):
    """Moves saved states, and forgets them. `spares` is told that a seat needs its state no more,
    or that it has none, and says whether it is left where it is; `outgrown` is told that a seat
    which has another's state is written down itself; `succeeded` says whether a state is that of a
    successor on this node, and `dropped` is told that one goes all the same; `left_in` says how
    many bytes of a tier left states take, `came_in` what came for seats and is no seat's yet.

    `leavers`: seats whose workloads go to other nodes; `dropping`: states that nobody may go on
    from any more, though they may be there yet; `unnoted`: states that are sealed and that no
    record of their seats names yet; `sealing`: whose states are being sealed; `made`: states that
    were sealed since this agent started.
    """

    def __init__(
        self,
        node: Node,
        steps: Steps,
        life: Lifecycle,
        kick: Callable[[], None],
        call_for: Callable[[Seat, str], None],
    ) -> None:
        super().__init__(node, life, call_for)
        self._steps = steps
        self._kick = kick
        self.kept = Kept(node.world.journal)
        self.lazies = Lazies(node, life, kick)
        self.leavers = Leavers()
        self.dropping: set[str] = set()
        self.unnoted: dict[PodUid, ArtifactId] = {}
        self.sealing: dict[asyncio.Future[ArtifactId], PodUid] = {}
        self.made: set[str] = set()
        self.spares: Callable[[Seat, str], bool] = _spares_none
        self.outgrown: Callable[[Seat, str], None] = _outgrows_none
        self.succeeded: Callable[[str], bool] = _nobodys
        self.dropped: Callable[[str], None] = _tells_none
        self.left_in: Callable[[Tier], int] = _nothing_in
        self.came_in: Callable[[Tier], int] = _nothing_in

    def work(self, seat: Seat, what: Coroutine[object, object, None]) -> None:
        """Begin it. While something is under way nothing else is decided for the seat: look when
        it ends."""

        async def to_the_end() -> None:
            await what
            self._kick()

        self._life.work(seat, to_the_end())

    # --- NVMe ---------------------------------------------------------------------------------

    def begin_seal(
        self, uid: PodUid, images: Path, facts: Mapping[str, object], deadline: float
    ) -> asyncio.Future[ArtifactId]:
        """What was written down of this pod becomes a state, of which is known who made it."""
        sealing = asyncio.ensure_future(self.below.vault.seal(images, facts, deadline))
        self.sealing[sealing] = uid
        sealing.add_done_callback(self._sealed)
        return sealing

    def _sealed(self, sealing: asyncio.Future[ArtifactId]) -> None:
        self.sealing.pop(sealing)
        if not sealing.cancelled() and sealing.exception() is None:
            self.made.add(sealing.result())

    async def seal(
        self, uid: PodUid, images: Path, facts: Mapping[str, object], deadline: float
    ) -> ArtifactId:
        """Once begun it may come to its end also if nobody wants it any more."""
        sealing = self.begin_seal(uid, images, facts, deadline)
        try:
            return await asyncio.shield(sealing)
        except asyncio.CancelledError:
            sealing.add_done_callback(self._drop_sealed)
            raise

    def _drop_sealed(self, sealing: asyncio.Future[ArtifactId]) -> None:
        if not sealing.cancelled() and sealing.exception() is None:
            self.drop_later(sealing.result(), "its container ended while it was sealed")

    # --- the object store -----------------------------------------------------------------------

    def begin_pack(self, seat: Seat, why: str) -> None:
        """A verified copy goes into the object store; the seat stays as it is."""
        seat.saved.sinks(Tier.OBJECT)
        self.work(seat, self._pack(seat, why))

    async def _pack(self, seat: Seat, why: str) -> None:
        log.info("%s: its saved state is copied to the object store: %s", seat, why)
        try:
            deadline, began = self._node.settings.transfer_deadline_s, self._world.now()
            await self.below.vault.pack(ArtifactId(seat.saved.artifact), Tier.OBJECT, deadline)
            metrics.observe_move("pack", {"all": self._world.now() - began}, seat.saved.size)
            seat.saved.packed(whole=True)
            await self._node.save(seat, synced=True)
            metrics.TIER_MOVES.labels("pack", "done").inc()
        except (KybernateError, OSError) as error:
            seat.saved.packed(whole=False)
            self._transfer_failed(seat, "pack", error)
        except asyncio.CancelledError:
            self._transferred(seat)
            raise
        self._transferred(seat)

    def begin_drop(self, seat: Seat, why: str) -> None:
        """From PARKED_NVME to PARKED_OBJECT: the verified copy there is all that stays."""
        written = self._node.move(seat, SeatEvent.UPLOADED, why, synced=True)
        self.work(seat, self._drop(seat, written))

    async def _drop(self, seat: Seat, written: Awaitable[None]) -> None:
        try:
            await written
            await self.drop_local(seat)
        except (KybernateError, OSError) as error:
            log.warning("%s: its copy on NVMe stays for now: %s", seat, error)

    async def drop_local(self, seat: Seat) -> None:
        """Remove what of a seat that is parked in the object store is still on NVMe."""
        if not seat.saved.borrowed:
            await self.below.vault.drop(ArtifactId(seat.saved.artifact), Tier.NVME)
        await self.below.vault.abandon(seat.uid)
        seat.saved.dropped_here()
        self._moved(seat)
        await self._node.save(seat)

    def begin_fetch(self, seat: Seat, why: str) -> None:
        """From PARKED_OBJECT: its images come back to NVMe."""
        seat.saved.sinks(Tier.NVME)
        self.work(seat, self._fetch(seat, why))

    async def _fetch(self, seat: Seat, why: str) -> None:
        log.info("%s: its saved state is fetched: %s", seat, why)
        try:
            if (into := await self._into(seat)) is None:
                return
            await self.bring(seat, into)
            self._moved(seat)
            self._node.move(seat, SeatEvent.FETCHED, why)
            metrics.TIER_MOVES.labels("fetch", "done").inc()
        except (NotFoundError, CorruptError, RefusedError) as error:
            seat.saved.sank()
            raise Broken(f"its saved state can't be used: {error}") from error
        except (KybernateError, OSError) as error:
            self._transfer_failed(seat, "fetch", error)
        self._transferred(seat)

    async def _into(self, seat: Seat) -> Into | None:
        """None if its container has ended, and then it is seen to its end."""
        try:
            return await self.below.into(seat)
        except NotFoundError as error:
            self.is_gone(seat, error)
            return None

    async def bring(self, seat: Seat, into: Into) -> None:
        """Its images into a folder of its own, and what they need: the place where that is written
        may be away when they are restored. Raises like `Vault.begin` and `Vault.fetch`."""
        vault, deadline = self.below.vault, self._node.settings.transfer_deadline_s
        images = await vault.begin(seat.uid)
        try:
            manifest = await vault.fetch(ArtifactId(seat.saved.artifact), images, deadline, into)
        except (NotFoundError, CorruptError) as error:
            self._see_lacking(seat, error)
            raise
        seat.backoff.fetched()
        seat.saved.fetched(str(images), machine_of(manifest.facts))

    def _see_lacking(self, seat: Seat, error: KybernateError) -> None:
        """Raise RetryableError, unless it has been so for a while: of what was put, or put anew, a
        store may show the state of before."""
        if seat.backoff.lacks(self._world.now()) < BELIEVED_AFTER:
            raise RetryableError(f"{error}; the store is asked again") from error

    def _transferred(self, seat: Seat) -> None:
        seat.saved.sank()
        self._kick()

    def _transfer_failed(self, seat: Seat, step: str, error: Exception) -> None:
        metrics.failed(step)
        metrics.TIER_MOVES.labels(step, "failed").inc()
        until = self._world.now() + pause(error, 0)
        seat.backoff.settle(until, asleep=seat.demand.called)
        self._life.complain(seat, "TransferFailed", f"{error}; trying again")

    # --- what nobody needs any more -------------------------------------------------------------

    def drop_later(self, artifact: str, why: str) -> None:
        """Forget a saved state that isn't kept for people, also over a restart of the agent."""
        if artifact in self.kept:
            return
        self._world.journal.put(DROP + artifact, {"why": why}, synced=False)
        self.dropping.add(artifact)
        self.dropped(artifact)
        self._tell_dropped(artifact, why)
        self._life.aside(self._forget(artifact, why))

    def _tell_dropped(self, artifact: str, why: str) -> None:
        """Before it is told that its pod has stopped: then nobody goes on from it who asks."""
        below, reports = self._world.below, self._world.reports
        if below is None or reports is None:
            return
        for place in below.limits:
            reports.put(Report(Kind.DROPPED, artifact=artifact, tier=place.value, why=why))

    async def _forget(self, artifact: str, why: str) -> None:
        await self.lazies.all_in(artifact)
        if self._world.below is None:
            return

        async def dropped() -> None:
            for place in (Tier.NVME, Tier.OBJECT):
                if place in self.below.limits:
                    await self.below.vault.drop(ArtifactId(artifact), place, forget=why)

        await retry(
            dropped, lambda error: log.warning("%s can't be dropped yet: %s", artifact, error)
        )
        self._world.journal.delete(DROP + artifact)
        self.dropping.discard(artifact)
        self.made.discard(artifact)

    def gone(self, seat: Seat) -> None:
        """Its pod no longer exists."""
        self.leavers.forget(seat.uid)

    def forget(self, seat: Seat, why: str) -> None:
        """The seat runs on, or has ended: its saved state is worth nothing any more."""
        spared = self.spares(seat, seat.saved.artifact)
        artifact = seat.saved.forgotten()
        seat.tree.follows_none()
        # Before a record of the seat's says that it no longer is on its way.
        unnoted = self.unnoted.pop(seat.uid, artifact)
        if unnoted != artifact:
            self.drop_later(unnoted, why)
        if artifact and not spared:
            self.drop_later(artifact, why)
        if artifact or seat.state in TIER_OF:
            self._life.aside(self._abandon(seat))
        if seat.state in BELOW and seat.tree.init is not None:
            self._life.aside(self._hang_up(seat.tree.init.pid))

    def let_go(self, seat: Seat) -> None:
        """It stays without a tree, and its saved state is its successor's."""
        seat.saved.forgotten()
        self._node.save(seat)
        self._life.aside(self._abandon(seat))

    async def _hang_up(self, init: int) -> None:
        """Nobody needs to hear any more of who calls a container that has ended."""
        if self._world.below is not None:
            with contextlib.suppress(OSError, KybernateError):
                await self._world.below.gatekeeper.open(init, GATE_DEADLINE)

    async def _abandon(self, seat: Seat) -> None:
        if self._world.below is None:
            # Nothing was ever dumped by an agent that can't.
            return
        await self.lazies.all_in(seat.saved.paging)
        try:
            await self.below.vault.abandon(seat.uid)
        except (KybernateError, OSError) as error:
            log.warning("%s: what was dumped can't be removed yet: %s", seat, error)

    def _moved(self, seat: Seat) -> None:
        seat.saved.moved(self._world.now())

    def is_gone(self, seat: Seat, error: Exception) -> None:
        """Its container has ended, as `error` says: see it to its end."""
        log.info("%s: its container ended meanwhile: %s", seat, error)
        self._life.watch_end(seat)
