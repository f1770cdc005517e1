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
from kybernate.types import ArtifactId, SeatState, Tier
from nodeagent import metrics
from nodeagent.artifacts.store import Sealer
from nodeagent.offload.gates import GATE_DEADLINE, OFFLOADED, Gates
from nodeagent.offload.lazies import Lazies
from nodeagent.offload.retries import pause
from nodeagent.seat.steps import Broken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from kybernate.core.artifacts.into import Into
    from nodeagent.artifacts.holds import Custody
    from nodeagent.artifacts.succession import Succession
    from nodeagent.offload.departures import Departures
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat
    from nodeagent.seat.steps import Steps

log = logging.getLogger(__name__)

BELIEVED_AFTER = 30.0
"""Seconds for which a store has to say that a state is not there, or is not whole, before that is
believed and the state given up."""


class Transfers(Gates):
    """Moves saved states, and lets go of them. `departures`: seats whose workloads go to other
    nodes."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is made once
        self,
        node: Node,
        steps: Steps,
        life: Lifecycle,
        kick: Callable[[], None],
        call_for: Callable[[Seat, str], None],
        custody: Custody,
        succession: Succession,
        departures: Departures,
    ) -> None:
        super().__init__(node, life, call_for)
        self._steps = steps
        self._kick = kick
        self.lazies = Lazies(node, life, kick)
        self.departures = departures
        self.custody = custody
        self.succession = succession
        self.sealer = Sealer(custody)

    def work(self, seat: Seat, what: Coroutine[object, object, None]) -> None:
        """Begin it. While something is under way nothing else is decided for the seat: look when
        it ends."""

        async def to_the_end() -> None:
            await what
            self._kick()

        self._life.work(seat, to_the_end())

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

    def others_in(self, tier: Tier) -> int:
        """Bytes of it that no seat has: what is on its way from other nodes, and what is held."""
        inbox = self._world.below.inbox if self._world.below else None
        coming = inbox.room.taken if inbox is not None and tier is Tier.NVME else 0
        return coming + self.custody.bytes_in(tier)

    def gone(self, seat: Seat) -> None:
        """Its pod no longer exists."""
        self.departures.forget(seat.uid)

    def forget(self, seat: Seat, why: str) -> None:
        """The seat runs on, or has ended: its saved state is worth nothing any more."""
        artifact = seat.saved.artifact
        # Before a record of the seat's says that it no longer is on its way.
        unnoted = self.custody.unnoted.pop(seat.uid, artifact)
        if unnoted != artifact:
            self.custody.void(unnoted, why)
        self.succession.let_go(seat, why)
        seat.saved.forgotten()
        seat.tree.follows_none()
        paging = seat.saved.paging
        if seat.state is SeatState.RESTORING:
            seat.saved.pages("")  # half of a tree is ended with its container
        if artifact or seat.state in TIER_OF:
            self._life.aside(self._abandon(seat, paging))
        if seat.state in OFFLOADED and seat.tree.init is not None:
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

    async def _abandon(self, seat: Seat, paging: str = "") -> None:
        if self._world.below is None:
            # Nothing was ever dumped by an agent that can't.
            return
        await self.lazies.all_in(paging or seat.saved.paging)
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
