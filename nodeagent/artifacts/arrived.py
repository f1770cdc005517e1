"""States that were handed over to seats here, until they go on from them, or nobody will.

Other nodes' agents delivered them, or a seat of this node left them: it lets go of its own then.
`arrived/<artifact>` in the journal says for which successor it came. A seat that goes on from it
has it for its own then, with the rules for all that seats have. Else it goes: at once where the
sender calls its move off, since the pod goes on over there, or has delivered a newer one; and
`keep_left_s` after the successor is gone, where the sender says nothing any more: it may be all
that is left of that pod.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from kybernate.errors import KybernateError
from kybernate.types import ArtifactId, PodUid, Tier, of_record
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nodeagent.app.loop import Loop
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

ARRIVED = "arrived/"
"""Journal keys of states that were handed over and that no seat has gone on from."""

_AGAIN = 5.0
_OFF = "its move was called off"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A state of the pod `uid`, for a successor that is here. `off`: nothing comes of it. `spare`:
    the successor goes on from another copy. `size`: its bytes. `home`: that pod's seat is, or was,
    on this node, too, and its state has come from nowhere."""

    artifact: str
    uid: str
    successor: str
    off: bool = False
    spare: bool = False
    size: int = 0
    home: bool = False


class Arrived:
    """All of them, as the journal has them. Lives on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._node = loop.node
        self._all: dict[str, Arrival] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """After a restart, before anything is dropped."""
        for key, record in records.items():
            if key.startswith(ARRIVED):
                one = of_record(Arrival, record)
                self._all[one.artifact] = one

    def begin(self) -> None:
        """After a restart, when the seats are known: see off what nobody will go on from."""
        for one in tuple(self._all.values()):
            if one.off:
                self._loop.life.aside(self._drop(one, _OFF))
            elif one.spare:
                self._loop.life.aside(self._drop_spare(one))
            elif PodUid(one.successor) not in self._node.seats:
                self._loop.life.aside(self._see_off(one))

    def one(self, artifact: str) -> asyncio.Lock:
        """Held by whoever keeps this state, goes on from it or drops it."""
        lock = self._locks.get(artifact)
        if lock is None:
            lock = self._locks[artifact] = asyncio.Lock()
        return lock

    def __contains__(self, artifact: str) -> bool:
        return artifact in self._all

    def is_home(self, artifact: str) -> bool:
        """Whether it is a state of a pod of this node."""
        one = self._all.get(artifact)
        return one is not None and one.home

    def size(self, artifact: str) -> int:
        """Its bytes, 0 if it isn't here."""
        one = self._all.get(artifact)
        return one.size if one is not None else 0

    def bytes(self, but: Collection[str]) -> int:
        """Of all of them but these, and but what is a seat's."""
        found = (one for one in self._all.values() if one.artifact not in but)
        return sum(one.size for one in found if one.spare or not self._is_used(one))

    def put(self, one: Arrival) -> None:
        """It is being kept: noted before it is there, so that no agent's death leaves it."""
        self._all[one.artifact] = one
        self._node.world.journal.put(ARRIVED + one.artifact, asdict(one), synced=False)

    def forget(self, artifact: str) -> None:
        """It isn't here, or is a seat's."""
        if self._all.pop(artifact, None) is not None:
            self._node.world.journal.delete(ARRIVED + artifact)

    def taken_by(self, seat: Seat) -> str:
        """The seat has changed: which state it goes on from that is here for it; empty for none.
        Of one that goes on from the copy in the object store, what came is not needed."""
        one = self._all.get(seat.saved.claimed)
        if one is None or seat.saved.begins is not Begins.ADOPTED or not seat.saved.predecessor:
            return ""
        if Tier.NVME in seat.saved.copies:
            return one.artifact
        if not one.spare:
            self.put(spare := replace(one, spare=True))
            self._loop.life.aside(self._drop_spare(spare))
        return ""

    def call_off(self, uid: PodUid, successor: PodUid, *, but: str = "") -> None:
        """Nothing comes of what came of that pod for the successor, since the pod goes on where it
        was; or since a newer state of it, `but`, has come."""
        for one in self._of(successor):
            if one.uid != uid or one.artifact == but or one.off:
                continue
            if one.home:
                self._give_back(one)
            elif not self._is_used(one):
                off = replace(one, off=True)
                self.put(off)
                self._loop.life.aside(self._drop(off, _OFF))

    def _give_back(self, one: Arrival) -> None:
        """It is its own pod's again, if that one's seat still has it. If nobody has, it goes, and
        from now on nobody goes on from it."""
        if self._is_kept(one):
            self.forget(one.artifact)
        else:
            self._loop.dumps.drop_later(one.artifact, _OFF)

    def gone(self, successor: PodUid) -> None:
        """Its pod is gone, and nobody took over what came for it."""
        for one in self._of(successor):
            self._loop.life.aside(self._see_off(one))

    def _of(self, successor: PodUid) -> list[Arrival]:
        return [one for one in self._all.values() if one.successor == successor]

    async def _see_off(self, one: Arrival) -> None:
        await asyncio.sleep(max(_AGAIN, self._node.settings.keep_left_s))
        if self._all.get(one.artifact) is not one:
            return
        if not self._is_wanted(one):
            await self._drop(one, "nobody took it over in time")
            return
        self._loop.life.aside(self._see_off(one))

    async def _drop_spare(self, one: Arrival) -> None:
        """Once the seat has gone on: till then it may be read from here, too."""
        while self._all.get(one.artifact) is one and self._is_used(one):  # noqa: ASYNC110 - rare
            await asyncio.sleep(_AGAIN)
        await self._drop(one, "its successor went on from another copy")

    def _is_used(self, one: Arrival) -> bool:
        return any(seat.saved.artifact == one.artifact for seat in self._node.seats.values())

    def _is_kept(self, one: Arrival) -> bool:
        dumps, artifact = self._loop.dumps, one.artifact
        # Its own seat may be about to note it, at the end of its dump.
        used = self._is_used(one) or artifact in dumps.unnoted.values()
        return used or artifact in dumps.kept or artifact in self._loop.left

    def _is_wanted(self, one: Arrival) -> bool:
        wishes = [
            s.wishes.restore
            for s in self._node.seats.values()
            if s.wishes.restore and s.awaits_state
        ]
        named = any(one.uid == wish.uid or one.artifact == wish.artifact for wish in wishes)
        return named or self._is_used(one)

    async def _drop(self, one: Arrival, why: str) -> None:
        """Unless it was delivered again meanwhile, a seat has it, or it is kept for people or as
        what a pod has left."""
        while (below := self._node.world.below) is not None:
            try:
                async with self.one(one.artifact):
                    if self._all.get(one.artifact) is one:
                        if one.home:
                            self._give_back(one)
                        elif not self._is_kept(one):
                            await below.vault.drop(ArtifactId(one.artifact), Tier.NVME, forget=why)
                        self.forget(one.artifact)
                break
            except (KybernateError, OSError) as error:
                log.warning("%s, which arrived, can't be dropped yet: %s", one.artifact, error)
                await asyncio.sleep(_AGAIN)
