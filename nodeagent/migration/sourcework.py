"""The work of each state of a migration at its source, up to the event that ends it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.migration.notes import MoveNote
from kybernate.core.migration.protocol import Event, State, takes
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, WITHOUT_TREE
from kybernate.errors import (
    ConflictError,
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodRef, SeatState, Tier
from nodeagent import metrics
from nodeagent.migration.journal import handover_of
from nodeagent.migration.move import is_idle
from nodeagent.offload.departures import Departure, see_there
from nodeagent.operations.record import words

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kybernate.ports import Peers
    from nodeagent.migration.agent import Agent
    from nodeagent.migration.cancel import CallOffs
    from nodeagent.migration.move import Move
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_NO = (RefusedError, ConflictError, CorruptError)


class Happened(NamedTuple):
    """How a state's work ended."""

    event: Event
    note: MoveNote | None = None
    artifact: str = ""
    why: str = ""


class SourceWork:
    """`on` takes what happens while a seat's dump is under way. Lives on the loop."""

    def __init__(
        self,
        agent: Agent,
        peers: Peers,
        offs: CallOffs,
        on: Callable[[Move, Happened], Awaitable[None]],
    ) -> None:
        self._agent = agent
        self._node = agent.node
        self._departures = agent.offload.departures
        self._peers = peers
        self._offs = offs
        self._on = on
        self._patience = agent.node.settings.transfer_deadline_s
        self._works: dict[State, Callable[[Move], Awaitable[Happened]]] = {
            State.SEEKING: self._seek,
            State.ASKING: self._ask,
            State.STAGING: self._stage,
            State.LEAVING: self._leave,
            State.DELIVERED: self._leave,
            State.ENDING: self._end,
            State.RELEASING: self._release,
            State.RECLAIMING: self._reclaim,
            State.CANCELLING: self._cancel,
        }

    async def of(self, one: Move) -> Happened:
        """The work of the state that the migration is in. Raises KybernateError, OSError."""
        return await self._works[one.at.state](one)

    # --- before anything is done about the seat -------------------------------------------------

    async def _seek(self, one: Move) -> Happened:
        wish = one.operation
        pod = PodRef(wish.namespace, wish.pod, wish.uid)
        successor, node = await self._peers.find(pod.namespace, wish.successor, CALL_S)
        if successor.uid == pod.uid:
            raise RefusedError(f"{pod} is the pod that is to be moved; name another as successor")
        return Happened(Event.FOUND, note=MoveNote(wish.name, pod, successor, node))

    async def _ask(self, one: Move) -> Happened:
        to = handover_of(one.note)
        await self._peers.expect(to, CALL_S, size=self._size(one))
        here = self._agent.is_here(one.note.node)
        return Happened(Event.ACCEPTED_HERE if here else Event.ACCEPTED)

    def _size(self, one: Move) -> int:
        """About how many bytes more its node will hold."""
        seat = self._node.seats.get(one.operation.uid)
        if seat is None:
            return 0
        if seat.state in WITHOUT_TREE:
            sent = Tier.NVME in seat.saved.copies and not self._agent.is_here(one.note.node)
            return seat.saved.size if sent else 0
        return sum(self._node.dump_size(seat))

    async def _stage(self, one: Move) -> Happened:
        """The blocks of an earlier artifact go first; without them it only takes longer. Raises
        RefusedError if the seat is gone."""
        seat = self._seat(one)
        try:
            listed = await self._agent.offload.ground.offloading.vault.ls(Tier.NVME)
            mine = [found.id for found in listed if found.uid == seat.uid and found.verified]
            if mine and seat.state not in WITHOUT_TREE:
                newest = max(mine, key=lambda artifact: artifact.rpartition("@")[2])
                one.say(f"the memory of {newest} is sent in advance")
                sent = await self._peers.stage(handover_of(one.note), newest, self._patience)
                metrics.SAVED_BYTES.labels("send").inc(sent)
        except (KybernateError, OSError) as error:
            log.warning("%s: nothing is sent in advance: %s", one.operation, error)
        return Happened(Event.STAGED)

    # --- the tree leaves ------------------------------------------------------------------------

    async def _leave(self, one: Move) -> Happened:
        """Raises RefusedError if the seat stays, and what the target says."""
        seat, operators = self._seat(one), self._agent.operators
        one.served = one.served or seat.state in OCCUPYING

        async def send(images: Path, dumped: asyncio.Event) -> None:
            await self._send(one, images, dumped)

        async def keep(artifact: ArtifactId) -> None:
            await self._deliver(one, artifact)

        departure = self._departures.under_way[seat.uid] = Departure(send, keep)
        one.say(f"it is parked, written down and handed to {one.note.successor} on {_node(one)}")
        operators.send_away(seat.uid, words(one.operation), stays_away=True)
        try:
            if seat.state is not SeatState.PARKED_OBJECT:
                operators.ask_for_tier(seat.uid, Tier.NVME)
                seat.backoff.move_at_once()
                await self._parked(one, departure)
            if one.at.state is State.LEAVING:
                await self._deliver_as_it_lies(one)
        finally:
            if self._departures.under_way.get(seat.uid) is departure:
                del self._departures.under_way[seat.uid]
        return Happened(Event.TREE_ENDED)

    async def _parked(self, one: Move, departure: Departure) -> None:
        """Until it is offloaded. Raises RefusedError if it won't be."""
        while True:
            one.changed.clear()
            if self._is_settled(one, departure):
                await self._end(one)
                return
            seat = self._seat(one)
            if seat.state in WITHOUT_TREE and is_idle(seat):
                return
            if seat.ending.asked or seat.state in {*AT_GATE, SeatState.FAILED}:
                raise RefusedError(
                    f"its workload ended before it was moved ({seat.history.reason})"
                )
            stays = seat.state is SeatState.PARKED and is_idle(seat)
            if stays and not seat.wishes.tier_asked:
                # It was being woken when that was asked for, and whoever wakes is asked no more.
                self._agent.operators.ask_for_tier(seat.uid, Tier.NVME)
            if stays and (departure.problem or seat.saved.undumpable):
                raise RefusedError(departure.problem or seat.saved.undumpable)
            if seat.backoff.unparkable and seat.state in OCCUPYING:
                one.say(f"it can't be parked now: {seat.backoff.unparkable}")
            await one.changed.wait()

    def _is_settled(self, one: Move, departure: Departure) -> bool:
        """Whether its container ends, or has ended, with just the state that the target keeps: as
        for the next agent, which sees no more than that, it continues there."""
        seat, left = self._node.seats.get(one.operation.uid), departure.left
        if seat is not None and seat.ending.asked:
            left = seat.saved.artifact
        return one.at.state is State.DELIVERED and left == one.note.artifact

    async def _deliver_as_it_lies(self, one: Move) -> None:
        """What had no tree before it was asked to move. Raises KybernateError, OSError."""
        saved = self._seat(one).saved
        artifact = ArtifactId(saved.artifact)
        if Tier.NVME in saved.copies and not saved.images:
            await self._deliver(one, artifact)
        else:
            await self._on(one, Happened(Event.VERIFIED, artifact=artifact))

    async def _send(self, one: Move, images: Path, dumped: asyncio.Event) -> None:
        """A dump is sent while it is written. What goes wrong is made good by `_deliver`."""
        try:
            sent = await self._peers.follow(handover_of(one.note), images, dumped, self._patience)
            metrics.SAVED_BYTES.labels("send").inc(sent)
        except (KybernateError, OSError) as error:
            log.warning("%s: is sent once it is sealed: %s", one.operation, error)
        if takes(one.at.state, Event.SENT):
            await self._on(one, Happened(Event.SENT))

    async def _deliver(self, one: Move, artifact: ArtifactId) -> None:
        """It is verified and kept there, and that is noted. Raises KybernateError, OSError."""
        await self._peers.deliver(handover_of(one.note), artifact, self._patience)
        # A registry that is away would leave nobody to continue.
        await self._agent.reports.flush(CALL_S, one.note.pod)
        if not takes(one.at.state, Event.VERIFIED):
            raise RefusedError("its move was cancelled")
        await self._on(one, Happened(Event.VERIFIED, artifact=artifact))

    # --- the successor continues ----------------------------------------------------------------

    async def _end(self, one: Move) -> Happened:
        """Until nothing of its tree is left."""
        while True:
            one.changed.clear()
            seat = self._node.seats.get(one.operation.uid)
            if seat is None or seat.state in AT_GATE:
                break
            if seat.state in WITHOUT_TREE and is_idle(seat):
                break
            await one.changed.wait()
        return Happened(Event.TREE_ENDED)

    async def _release(self, one: Move) -> Happened:
        one.say(f"the successor on {_node(one)} is told to continue")
        to, artifact = handover_of(one.note), ArtifactId(one.note.artifact)
        try:
            await self._agent.reports.flush(CALL_S, one.note.pod)
            try:
                await self._peers.let_continue(to, artifact, self._patience)
            except NotFoundError:
                # What it kept is gone meanwhile: it is here, too.
                await self._peers.deliver(to, artifact, self._patience)
                await self._peers.let_continue(to, artifact, self._patience)
            except (RetryableError, DeadlineError):
                # Of a pod of this node its own journal knows as well who continues.
                if self._node.world.registry is not None or self._agent.is_here(one.note.node):
                    await see_there(self._peers, to, CALL_S)
                raise
        except _NO as error:
            one.why = str(error)
            return Happened(Event.REJECTED)
        return Happened(Event.CONTINUES)

    async def _reclaim(self, one: Move) -> Happened:
        """The pod succeeds itself, unless somebody else did."""
        uid, artifact = one.operation.uid, ArtifactId(one.note.artifact)
        namespace = one.operation.namespace
        try:
            await self._agent.registry.claim(namespace, uid, artifact, uid, CALL_S)
        except (ConflictError, RefusedError) as error:
            one.why = f"{one.why}, and it can't continue here: {error}"
            return Happened(Event.CLAIMED_ELSEWHERE, why=one.why)
        if uid in self._node.seats:
            one.why += "; it continues here"
        else:
            # Its artifact is for others, and its own stop alone ends a claim of its own.
            await self._agent.registry.stop(namespace, uid, "its pod is gone", CALL_S)
            one.why += "; its pod is gone, and another successor may come"
        return Happened(Event.CLAIMED)

    async def _cancel(self, one: Move) -> Happened:
        if one.at.note is not None:
            await self._offs.tell(handover_of(one.at.note))
        return Happened(Event.CANCEL_OWED)

    def _seat(self, one: Move) -> Seat:
        """Raises RefusedError if there is none any more."""
        seat = self._node.seats.get(one.operation.uid)
        if seat is None:
            raise RefusedError("its pod is gone, and with it what the seat held")
        return seat


def _node(one: Move) -> str:
    return f"node {one.note.node}"
