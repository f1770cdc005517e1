"""The beginning of a move, while the workload serves on: its successor is found, asked whether it
waits, and sent the memory of a state of before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.migration.notes import MoveNote
from kybernate.core.seat.seats import WITHOUT_TREE
from kybernate.errors import KybernateError, RefusedError
from kybernate.types import PodRef, Tier
from nodeagent import metrics
from nodeagent.migration.journal import handover_of
from nodeagent.migration.move import seat_of
from nodeagent.offload.leaving import persistently
from nodeagent.operations.record import words
from nodeagent.seat.below import weight

if TYPE_CHECKING:
    from kybernate.ports import Peers
    from kybernate.types import PodUid
    from nodeagent.app.loop import Loop
    from nodeagent.migration.cancel import CallOffs
    from nodeagent.migration.journal import MoveJournal
    from nodeagent.migration.move import Move

log = logging.getLogger(__name__)

_DEADLINE = 10.0


class Meeting:
    """Of this node's seats with their successors. Lives on the loop."""

    def __init__(self, loop: Loop, peers: Peers, journal: MoveJournal, offs: CallOffs) -> None:
        self._loop = loop
        self._node = loop.node
        self._peers = peers
        self._journal = journal
        self._offs = offs

    async def meet(self, one: Move) -> MoveNote:
        """Who takes the seat, once it waits and its node has room, however long that takes. Raises
        RefusedError, ConflictError, CorruptError, OSError."""

        def waits(why: str) -> None:
            one.say(why)
            self._serve_on(one.operation.uid, words(one.operation))

        note = await persistently(lambda: self._asked(one), waits)
        # From here on something may come there, and somebody must call it off.
        self._journal.put(note)
        one.reached("met", self._node.world.now())
        return note

    async def _asked(self, one: Move) -> MoveNote:
        wish = one.operation
        pod = PodRef(wish.namespace, wish.pod, wish.uid)
        successor, node = await self._peers.find(pod.namespace, wish.successor, _DEADLINE)
        if successor.uid == pod.uid:
            raise RefusedError(f"{pod} is the pod that is to be moved; name another as successor")
        one.note = note = MoveNote(wish.name, pod, successor, node)
        to = handover_of(note)
        await self._offs.withdraw(to)
        await self._peers.expect(to, _DEADLINE, size=self._size(note))
        return note

    def _serve_on(self, uid: PodUid, why: str) -> None:
        """An agent that died may have sent it away for this already: while its successor is waited
        for, its requests are answered here."""
        seat = self._node.seats.get(uid)
        if seat is not None and seat.wishes.leave == why:
            self._loop.ask_for_tier(uid, None)
            self._loop.let_stay(uid)

    def _size(self, note: MoveNote) -> int:
        """About how many bytes more its node will hold."""
        seat = self._node.seats.get(note.pod.uid)
        if seat is None:
            return 0
        if seat.state in WITHOUT_TREE:
            sent = Tier.NVME in seat.saved.copies and not self._is_here(note)
            return seat.saved.size if sent else 0
        return sum(weight(self._node, seat))

    def _is_here(self, note: MoveNote) -> bool:
        return note.node == self._node.settings.node

    async def stage(self, one: Move, note: MoveNote) -> None:
        """The blocks of a state of before go first; without them it only takes longer. Raises
        RefusedError if the seat is gone."""
        seat, patience = seat_of(one, self._node), self._node.settings.transfer_deadline_s
        if self._is_here(note):
            return
        try:
            listed = await self._loop.dumps.below.vault.ls(Tier.NVME)
            mine = [found.id for found in listed if found.uid == seat.uid and found.verified]
            if mine and seat.state not in WITHOUT_TREE:
                newest = max(mine, key=lambda artifact: artifact.rpartition("@")[2])
                one.say(f"the memory of {newest} is sent in advance")
                sent = await self._peers.stage(handover_of(note), newest, patience)
                metrics.SAVED_BYTES.labels("send").inc(sent)
        except (KybernateError, OSError) as error:
            log.warning("%s: nothing is sent in advance: %s", one.operation, error)
        one.reached("staged", self._node.world.now())
