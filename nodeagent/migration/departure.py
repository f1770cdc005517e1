"""The middle of a move: its tree is parked, written down and sent, up to where the other node keeps
its state, and the tree is ended here, or will be."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.migration.notes import kept
from kybernate.core.seat.seats import OCCUPYING, WITHOUT_TREE
from kybernate.errors import KybernateError, RefusedError
from kybernate.types import ArtifactId, SeatState, Tier
from nodeagent import metrics
from nodeagent.migration.journal import handover_of
from nodeagent.migration.move import seat_of
from nodeagent.offload.leaving import Going
from nodeagent.operations.record import words

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from kybernate.core.migration.notes import MoveNote
    from kybernate.ports import Handover, Peers
    from nodeagent.app.loop import Loop
    from nodeagent.migration.journal import MoveJournal
    from nodeagent.migration.move import Move

log = logging.getLogger(__name__)

_DEADLINE = 10.0
_FOR_GOOD = 10 * 365 * 86_400.0
"""Seconds. What must come to its end has no deadline any more."""


class Departure:
    """Of this node's seats. Lives on the loop."""

    def __init__(self, loop: Loop, peers: Peers, journal: MoveJournal) -> None:
        self._loop = loop
        self._node = loop.node
        self._leavers = loop.dumps.leavers
        self._peers = peers
        self._journal = journal
        self._patience = loop.node.settings.transfer_deadline_s

    async def leave(self, one: Move, note: MoveNote) -> None:
        """Returns once the successor may go on. Raises RefusedError if the seat stays, and what the
        other node says."""
        seat = seat_of(one, self._node)
        one.served = seat.state in OCCUPYING

        async def send(images: Path, dumped: asyncio.Event) -> None:
            await self._sent(one, handover_of(note), images, dumped)

        async def keep(artifact: ArtifactId) -> None:
            await self._delivered(one, note, artifact)

        going = self._leavers.going[seat.uid] = Going(send, keep)
        why = words(one.operation)
        one.say(f"it is parked, written down and handed to {note.successor} on node {note.node}")
        self._loop.send_away(seat.uid, why, stays_away=True)
        try:
            if seat.state is not SeatState.PARKED_OBJECT:
                self._loop.ask_for_tier(seat.uid, Tier.NVME)
                seat.backoff.move_at_once()
                await self._parked(one, going)
            await self._passed_on(one, note, going)
        finally:
            self._leavers.going.pop(seat.uid, None)
        one.reached("ended", self._node.world.now())

    async def _parked(self, one: Move, going: Going) -> None:
        """Until it is parked below RAM. Raises RefusedError if it won't be."""
        while True:
            one.changed.clear()
            seat = seat_of(one, self._node)
            idle = seat.tasks.work is None or seat.tasks.work.done()
            if seat.state in WITHOUT_TREE and idle:
                return
            if seat.ending.asked or seat.state in (SeatState.WAITING, SeatState.FAILED):
                raise RefusedError(
                    f"its workload ended before it was moved ({seat.history.reason})"
                )
            stays = seat.state is SeatState.PARKED and idle
            if stays and not seat.wishes.tier_asked:
                # It was being woken when that was asked for, and whoever wakes is asked no more.
                self._loop.ask_for_tier(seat.uid, Tier.NVME)
            if stays and (going.problem or seat.saved.undumpable):
                raise RefusedError(going.problem or seat.saved.undumpable)
            if seat.backoff.unparkable and seat.state in OCCUPYING:
                one.say(f"it can't be parked now: {seat.backoff.unparkable}")
            await one.changed.wait()

    async def _passed_on(self, one: Move, note: MoveNote, going: Going) -> None:
        """What lay below RAM already is sent now."""
        seat = seat_of(one, self._node)
        if not one.artifact:
            artifact = ArtifactId(seat.saved.artifact)
            if Tier.NVME in seat.saved.copies and not seat.saved.images:
                await going.deliver(artifact)
            else:
                await self._kept(one, note, artifact)
        one.gone = True

    async def _sent(self, one: Move, to: Handover, images: Path, dumped: asyncio.Event) -> None:
        """A dump is sent while it is written. What goes wrong is made good by `_delivered`."""
        try:
            sent = await self._peers.follow(to, images, dumped, self._patience)
            metrics.SAVED_BYTES.labels("send").inc(sent)
        except (KybernateError, OSError) as error:
            log.warning("%s: is sent once it is sealed: %s", one.operation, error)
        one.reached("sent", self._node.world.now())

    async def _delivered(self, one: Move, note: MoveNote, artifact: ArtifactId) -> None:
        """It is verified and kept there, and that is noted. Raises KybernateError, OSError."""
        await self._peers.deliver(handover_of(note), artifact, self._patience)
        # A registry that is away would leave nobody to go on.
        await self._loop.reports.flush(_DEADLINE)
        await self._kept(one, note, artifact)
        one.reached("delivered", self._node.world.now())

    async def _kept(self, one: Move, note: MoveNote, artifact: ArtifactId) -> None:
        """From here on it must come to its end, also under the next agent: no deadline ends it."""
        one.note = kept(note, artifact)
        one.operation.due_at = self._node.world.wall() + _FOR_GOOD
        one.noted(one.operation)
        await self._journal.write(one.note)
