"""What pods leave behind that ended while they were parked below RAM: kept for a successor.

For `keep_left_s` it stays where it is. Then it goes, unless a successor has claimed it, or people
asked for it to be kept, or the same pod's container starts anew and outdates it before.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kybernate.core.seat.seats import WITHOUT_TREE
from kybernate.errors import KybernateError, NotFoundError
from kybernate.types import ArtifactId, PodUid, SeatState, Tier, of_record
from nodeagent.artifacts.reports import Kind, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kybernate.ports import Line, Registry
    from nodeagent.app.loop import Loop
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

LEFT = "left/"
"""Journal keys of states that pods have left behind."""

OUTLIVED = "outlived/"
"""Journal keys of states whose successors have gone on, and from where they are to be dropped."""

_SAVED = WITHOUT_TREE | {SeatState.RESTORING}
_DEADLINE = 10.0
_AGAIN = 5.0
_LOOK_AGAIN = 300.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A state, of which pod, its bytes by tier, and until when it is kept (s since 1970).
    `borrowed`: the pod was to go on from it, and ended before; it is kept while that is there."""

    artifact: str
    namespace: str
    uid: str
    places: Mapping[str, int]
    until: float
    borrowed: bool = False


class Left:
    """All of them, as the journal has them."""

    def __init__(self, loop: Loop, registry: Registry) -> None:
        self._loop = loop
        self._node = loop.node
        self._registry = registry
        self._all: dict[str, Leftover] = {}

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """After a restart; what is due goes soon."""
        for key, record in records.items():
            if key.startswith(LEFT):
                one = of_record(Leftover, record)
                self._all[one.artifact] = one
                self._loop.life.aside(self._see_off(one))
            elif key.startswith(OUTLIVED):
                tiers = tuple(Tier(tier) for tier in record["tiers"])
                self._loop.life.aside(self._drop(key.removeprefix(OUTLIVED), tiers))

    def bytes_in(self, tier: Tier) -> int:
        """What all of them take there."""
        return sum(one.places.get(tier.value, 0) for one in self._all.values())

    def __contains__(self, artifact: str) -> bool:
        return artifact in self._all

    def all(self) -> tuple[Leftover, ...]:
        """All that is kept for successors."""
        return tuple(self._all.values())

    def leave(self, seat: Seat, artifact: str) -> bool:
        """The seat's container has ended: whether its state is kept."""
        keep = self._node.settings.keep_left_s
        if seat.state not in _SAVED or not keep:
            return False
        pod, places = seat.identity.pod, {tier.value: seat.saved.size for tier in seat.saved.copies}
        self._keep(
            Leftover(artifact, pod.namespace, pod.uid, places, self._node.world.wall() + keep)
        )
        return True

    def unused(self, seat: Seat, artifact: str, tiers: Iterable[str]) -> None:
        """The seat's container has ended before it went on from another's state, which this node
        has in these tiers for it. If the same seat goes on from it later, it is forgotten then."""
        until = self._node.world.wall() + self._node.settings.keep_left_s
        pod, places = seat.identity.pod, dict.fromkeys(tiers, seat.saved.size)
        if places and artifact not in self._all:
            self._keep(Leftover(artifact, pod.namespace, pod.uid, places, until, borrowed=True))

    def _keep(self, one: Leftover) -> None:
        self._all[one.artifact] = one
        self._node.world.journal.put(LEFT + one.artifact, asdict(one), synced=False)
        self._loop.life.aside(self._see_off(one))

    def outdated(self, uid: PodUid) -> None:
        """The pod itself has gone on, without what it left."""
        for one in [one for one in self._all.values() if one.uid == uid and not one.borrowed]:
            self._loop.dumps.drop_later(one.artifact, "its workload was started anew")
            self._forget(one)

    def drop_from(self, artifact: str, tiers: Iterable[str]) -> None:
        """Its successor has gone on: it is worth nothing any more in these tiers, and whoever has
        it elsewhere is told by the registry."""
        wanted = tuple(Tier(tier) for tier in tiers)
        if Tier.OBJECT not in wanted:
            why = "its successor has gone on since"
            report = Report(Kind.DROPPED, artifact=artifact, tier=Tier.OBJECT.value, why=why)
            self._loop.reports.put(report)
        if wanted and artifact not in self._loop.dumps.kept:
            record = {"tiers": [tier.value for tier in wanted]}
            self._node.world.journal.put(OUTLIVED + artifact, record, synced=False)
            self._loop.life.aside(self._drop(artifact, wanted))
        # Not before there is a record that it is to go: the agent may die in between.
        if (one := self._all.get(artifact)) is not None:
            self._forget(one)

    async def _drop(self, artifact: str, tiers: tuple[Tier, ...]) -> None:
        why = "its successor has gone on since"
        await self._loop.dumps.lazies.all_in(artifact)
        while (below := self._node.world.below) is not None:
            try:
                for tier in tiers:
                    if tier in below.limits:
                        await below.vault.drop(ArtifactId(artifact), tier, forget=why)
                self._node.world.journal.delete(OUTLIVED + artifact)
                break
            except (KybernateError, OSError) as error:
                log.warning("saved state %s can't be dropped yet: %s", artifact, error)
                await asyncio.sleep(_AGAIN)

    async def _see_off(self, one: Leftover) -> None:
        """Once its time is over: drop it, unless somebody goes on from it."""
        await asyncio.sleep(max(0.0, one.until - self._node.world.wall()))
        while self._all.get(one.artifact) is one:
            if one.borrowed:
                if self._is_wanted(one):
                    await asyncio.sleep(_AGAIN)
                else:
                    self.drop_from(one.artifact, one.places)
                continue
            try:
                line = await self._registry.line(one.namespace, PodUid(one.uid), _DEADLINE)
            except (KybernateError, OSError) as error:
                log.info("%s stays until it is known who goes on from it: %s", one.artifact, error)
                await asyncio.sleep(_AGAIN)
                continue
            if line.successor in ("", one.uid):
                if await self._is_ours(one, line):
                    self._expire(one, line)
                else:
                    await asyncio.sleep(_AGAIN)
            elif await self._released(one):
                self._loop.dumps.drop_later(one.artifact, "its successor has gone on since")
                self._forget(one)
            else:
                await asyncio.sleep(_LOOK_AGAIN)

    async def _is_ours(self, one: Leftover, line: Line) -> bool:
        """Whether nobody goes on from it, and nobody can while it goes: its own pod has the claim.
        Where no claim is possible, there is none to have."""
        if not line.stopped or line.ended:
            return True
        uid = PodUid(one.uid)
        try:
            artifact = ArtifactId(one.artifact)
            await self._registry.claim(one.namespace, uid, artifact, uid, _DEADLINE)
        except NotFoundError:
            return True
        except (KybernateError, OSError) as error:
            log.info("%s stays until nobody can claim it: %s", one.artifact, error)
            return False
        return True

    def _expire(self, one: Leftover, line: Line) -> None:
        why = "nobody went on from it in time"
        self._loop.dumps.drop_later(one.artifact, why)
        if line.stopped:
            # Its own claim ends with that; by then it is told that this is none to go on from.
            report = Report(Kind.STOPPED, one.namespace, PodUid(one.uid), why=why)
            self._loop.reports.put(report)
        self._forget(one)

    def _is_wanted(self, one: Leftover) -> bool:
        seats = self._node.seats.values()
        return any(seat.uid == one.uid or seat.saved.artifact == one.artifact for seat in seats)

    async def _released(self, one: Leftover) -> bool:
        """Whether its successor on another node has told the registry that it needs it no more."""
        below = self._node.world.below
        try:
            if below is not None and Tier.NVME in one.places:
                await below.vault.drop(ArtifactId(one.artifact), Tier.NVME)
            newest = await self._registry.newest(one.namespace, PodUid(one.uid), _DEADLINE)
        except NotFoundError:
            return self._node.world.registry is not None
        except (KybernateError, OSError) as error:
            log.info("%s stays for its successor: %s", one.artifact, error)
            return False
        return newest != one.artifact

    def _forget(self, one: Leftover) -> None:
        self._all.pop(one.artifact, None)
        self._node.world.journal.delete(LEFT + one.artifact)
