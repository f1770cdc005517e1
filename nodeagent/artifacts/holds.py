"""What becomes of artifacts: the one owner of every hold on one, and the only one who drops any.

`kybernate.core.artifacts.holds` decides. Each event is in the journal before its caller continues;
what follows from it, a task of the artifact's does, for as long as anything is to be done.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Protocol

from kybernate.core.artifacts import holds
from kybernate.core.artifacts.holds import AGAIN_S, Do, Holds, Use
from kybernate.core.seat.seats import AT_GATE, WITHOUT_TREE
from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError, RefusedError
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping

    from kybernate.core.artifacts.holds import PersonHold, SuccessorHold, TransferHold
    from kybernate.ports import Journal, Sealed
    from nodeagent.artifacts.reports import ReportQueue
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_RETRY_S = 1.0
_LIGHTER = "a TierPlacement keeps its copy in the object store"
_NEEDS_IT = (WITHOUT_TREE | AT_GATE) | {
    SeatState.UNVERIFIED,
    SeatState.DUMPING,
    SeatState.RESTORING,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Why nobody needs an artifact any more, empty while somebody may, and what the registry is
    told then; else it is asked again after so many seconds."""

    over: str = ""
    told: tuple[Report, ...] = ()
    again: float = AGAIN_S


class Successors(Protocol):
    """Who knows who continues from an artifact."""

    async def ask(self, hold: SuccessorHold) -> Answer:
        """What becomes of a hold whose time is over. Raises KybernateError, OSError."""
        ...


class Custody:
    """All holds of the node. `unnoted`: artifacts that are sealed, by the pod whose seat is about
    to note it. Lives on the loop."""

    def __init__(
        self,
        node: Node,
        aside: Callable[[Coroutine[object, object, None]], None],
        reports: ReportQueue,
        successors: Successors,
    ) -> None:
        self._node = node
        self._aside = aside
        self._reports = reports
        self._successors = successors
        self._all: dict[str, Holds] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._locks: KeyedLocks[str, asyncio.Lock] = KeyedLocks(asyncio.Lock)
        self.unnoted: dict[PodUid, str] = {}

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """After a restart, before anything is held or dropped. What an agent that died had no time
        to delete must not come back with the next one."""
        self._all = holds.of_records(records)
        recorded = {key for one in self._all.values() for key in holds.records(one)}
        for key in [
            key for key in records if key.startswith(holds.PREFIXES) and key not in recorded
        ]:
            self._journal.delete(key)

    def begin(self) -> None:
        """After a restart, when the seats are known: continue with what was begun."""
        for person in holds.newest_kept(self.persons(), self._node.seats):
            self._tell_kept(person)
        for one in tuple(self._all.values()):
            if one.drop is not None:
                self._tell_dropped(one)
            hold = one.transfer
            if hold is not None and not hold.until and hold.successor not in self._node.seats:
                self.abandon(PodUid(hold.successor))
            self._look_soon(one.artifact)

    def of(self, artifact: str) -> Holds:
        """What holds this artifact."""
        return self._all.get(artifact, Holds(artifact))

    def all(self) -> tuple[Holds, ...]:
        """Of all artifacts that anything but a seat holds, or that are being dropped."""
        return tuple(self._all.values())

    def persons(self) -> tuple[PersonHold, ...]:
        """All that people hold."""
        return tuple(one.person for one in self._all.values() if one.person is not None)

    def kept_by(self, operation: str) -> PersonHold | None:
        """What this operation has kept."""
        return next((one for one in self.persons() if one.operation == operation), None)

    def is_dropping(self, artifact: str) -> bool:
        """Whether nobody may continue from it any more."""
        return self.of(artifact).drop is not None

    def bytes_in(self, tier: Tier) -> int:
        """What is held takes there, without what a transfer alone holds and a seat has."""
        there = self._all.values()
        return sum(one.bytes_in(tier) for one in there if not self._is_a_seats(one))

    def _is_a_seats(self, one: Holds) -> bool:
        handed = one.transfer is not None and not (one.person or one.successor)
        return handed and not (one.transfer and one.transfer.spare) and self._use(one).had

    def lock(self, artifact: str) -> asyncio.Lock:
        """Held by whoever takes this artifact in, continues from it or drops it."""
        return self._locks[artifact]

    # --- people ---------------------------------------------------------------------------------

    def keep(self, hold: PersonHold) -> Awaitable[None]:
        """It is kept from now on; await it, and it is over a restart, too. Raises NotFoundError if
        it is being dropped, and when awaited OSError: then keep it again."""
        before = self.of(hold.artifact)
        after = holds.keep(before, hold)
        self._all[hold.artifact] = after
        record = holds.records(after)[holds.SAVED + hold.artifact]
        written = self._journal.put(holds.SAVED + hold.artifact, record, synced=True)
        if Tier.OBJECT in hold.places and not before.keeps(Tier.OBJECT):
            self._tell_kept(hold)
        return written

    def forget(self, operation: str, why: str) -> str:
        """What this operation has kept is not kept any more: the artifact, empty for none."""
        hold = self.kept_by(operation)
        if hold is None:
            return ""
        one = self.of(hold.artifact)
        self._become(holds.forget(one, self._use(one), why))
        return hold.artifact

    def listed(self, tier: Tier, found: Iterable[Sealed]) -> None:
        """What is in the tier: people may have deleted some of what was kept for them."""
        there = {one.id for one in found}
        for one in tuple(self._all.values()):
            if one.artifact not in there:
                self._become(holds.lost(one, tier))

    def packed(self, artifact: str) -> None:
        """A copy has come into the object store: what is pinned may leave NVMe."""
        one = self.of(artifact)
        if one.pin is not None:
            self._all[artifact] = holds.looked(one, -math.inf)
            self._look_soon(artifact)

    # --- seats and their pods -------------------------------------------------------------------

    def release(self, artifact: str, seat: Seat, why: str) -> None:
        """The seat, whose pod's own it is, needs it no more."""
        one = self.of(artifact)
        self._become(holds.release(one, self._use(one, but=seat), why))

    def void(self, artifact: str, why: str, *told: Report) -> None:
        """Nobody may continue from it any more: it goes, unless a person holds it. What else is
        `told` comes after that."""
        one = self.of(artifact)
        self._become(holds.void(one, self._use(one), why), *told)

    def see_held(self, artifact: str, why: str) -> None:
        """Found here: it goes unless somebody has or holds it."""
        one = self.of(artifact)
        use = self._use(one)
        if not use.had:
            self._become(holds.release(one, use, why))

    def outdate(self, uid: PodUid) -> None:
        """The pod itself has continued, without its artifact."""
        for one in tuple(self._all.values()):
            hold = one.successor
            if hold is not None and hold.uid == uid and not hold.borrowed:
                self.void(one.artifact, "its workload was started again")

    def orphan(self, hold: SuccessorHold) -> None:
        """Its pod has ended, and a successor may come."""
        self._become(holds.orphan(self.of(hold.artifact), hold))

    def outlive(self, artifact: str, tiers: Iterable[str]) -> None:
        """Its successor has continued: it is worth nothing any more in these tiers, and whoever has
        it elsewhere is told by the registry."""
        wanted, one = tuple(Tier(tier) for tier in tiers), self.of(artifact)
        stays = one.keeps(Tier.OBJECT) or self._node.world.pinned(artifact)
        if Tier.OBJECT not in wanted and not stays:
            self._tell(artifact, Tier.OBJECT, "its successor has continued since")
        self._become(holds.outlive(one, self._use(one), wanted))

    # --- transfers ------------------------------------------------------------------------------

    def hand(self, hold: TransferHold) -> None:
        """It comes, or is set aside, for a seat: noted before it is there, so that no agent's death
        leaves it. Raises RetryableError if it is being dropped."""
        self._become(holds.hand(self.of(hold.artifact), hold))

    def withdraw(self, artifact: str, before: Holds | None = None) -> None:
        """What was to come is not here as a whole; with `before` it is handed as it was then."""
        self._become(holds.withdraw(self.of(artifact), before or Holds(artifact)))

    def lacks(self, artifact: str) -> None:
        """What this node had of it on NVMe was not whole: the registry is told."""
        self._tell(artifact, Tier.NVME, "what this node had of it was not whole")

    def taken_by(self, seat: Seat) -> str:
        """The seat has changed: the artifact from another node that is its own from now on; empty
        for none. Of one that continues from the object store, what came is not needed."""
        saved, one = seat.saved, self.of(seat.saved.claimed)
        if one.transfer is None or saved.begins is not Begins.ADOPTED or not saved.predecessor:
            return ""
        here = Tier.NVME in saved.copies and saved.artifact == one.artifact
        self._become(holds.take(one, here=here))
        return one.artifact if here and not one.transfer.home else ""

    def call_off(self, uid: PodUid, successor: PodUid, *, but: str = "") -> None:
        """Nothing comes of what came of that pod for the successor, since the pod continues where
        it was; or since a newer artifact of it, `but`, has come."""
        for one in self._handed_to(successor):
            if one.artifact != but and one.transfer and one.transfer.uid == uid:
                self._become(holds.call_off(one, self._use(one)))

    def came_from(self, uid: PodUid, successor: PodUid) -> str:
        """The node from which came what is here of that pod for the successor; empty if nothing
        says it."""
        found = (one.transfer for one in self._handed_to(successor) if one.transfer)
        return next((hold.source for hold in found if hold.uid == uid and hold.source), "")

    def abandon(self, successor: PodUid) -> None:
        """Its pod is gone, and nobody took over what came for it."""
        keep = max(AGAIN_S, self._node.settings.keep_left_s)
        for one in self._handed_to(successor):
            self._become(holds.abandon(one, self._node.world.wall() + keep))

    def _handed_to(self, successor: PodUid) -> list[Holds]:
        found = self._all.values()
        return [one for one in found if one.transfer and one.transfer.successor == successor]

    # --- what the seats want --------------------------------------------------------------------

    def _use(self, one: Holds, but: Seat | None = None) -> Use:
        seats = [seat for seat in self._node.seats.values() if seat is not but]
        mine = [seat for seat in seats if seat.saved.artifact == one.artifact]
        known = [s for s in self._node.seats.values() if s.saved.artifact == one.artifact]
        paged = any(seat.saved.paging == one.artifact for seat in seats)
        hold, transfer = one.successor, one.transfer
        uid, handed_to = (transfer.uid, transfer.successor) if transfer else ("", "")
        waiting = [seat.wishes.restore for seat in seats if seat.awaits_state]
        wishes = [wish for wish in waiting if wish is not None]
        return Use(
            had=bool(mine) or one.artifact in self.unnoted.values(),
            taken=any(seat.uid == handed_to for seat in mine),
            needed=paged or any(seat.state in _NEEDS_IT for seat in mine),
            claimed=any(s.saved.borrowed and s.saved.claimed == one.artifact for s in seats),
            awaited=any(one.artifact == wish.artifact or wish.uid == uid for wish in wishes),
            owned=hold is not None and PodUid(hold.uid) in self._node.seats,
            pinned=self._node.world.pinned(one.artifact),
            # Also that of a seat which needs it no more: what it leaves takes room.
            size=max((s.saved.size for s in known if Tier.NVME in s.saved.copies), default=0),
        )

    # --- what follows ---------------------------------------------------------------------------

    @property
    def _journal(self) -> Journal:
        return self._node.world.journal

    def _become(self, after: Holds, *told: Report) -> None:
        """Note what has changed: what is new before what it outdates."""
        artifact, before = after.artifact, self.of(after.artifact)
        was, now = holds.records(before), holds.records(after)
        if after:
            self._all[artifact] = after
        else:
            self._all.pop(artifact, None)
        for key, record in now.items():
            if was.get(key) != record:
                self._journal.put(key, record, synced=False)
        if after.drop != before.drop:
            self._tell_dropped(after)
        for report in told:
            self._reports.put(report)
        for key in was.keys() - now.keys():
            self._journal.delete(key)
        if was != now:
            self._look_soon(artifact)

    def _tell_dropped(self, one: Holds) -> None:
        """Report the drop before the pod's stop, so that no successor can claim it."""
        offloading = self._node.world.offloading
        if offloading is not None and one.drop is not None and one.drop.everywhere:
            for place in offloading.limits:
                self._tell(one.artifact, place, one.drop.why)

    def _tell_kept(self, hold: PersonHold) -> None:
        """Report what outlasts its successor's need of it: its pod's own node alone may, and no
        more once it is claimed. Of what a seat continues from it says nothing: that is another
        pod's."""
        seat = self._node.seats.get(hold.uid)
        saved = seat.saved if seat is not None else None
        if saved and hold.artifact in (saved.claimed, saved.artifact if saved.borrowed else ""):
            return
        if self._node.world.registry is not None:
            place = Tier.OBJECT.value
            self._reports.put(
                Report(Kind.SEALED, artifact=hold.artifact, tier=place, person_hold=True)
            )

    def _tell(self, artifact: str, tier: Tier, why: str) -> None:
        if self._node.world.registry is not None:
            report = Report(Kind.DROPPED, artifact=artifact, tier=tier.value, why=why)
            self._reports.put(report)

    def _look_soon(self, artifact: str) -> None:
        if artifact in self._news:
            self._news[artifact].set()
        elif artifact in self._all and self._node.world.offloading is not None:
            self._news[artifact] = asyncio.Event()
            self._aside(self._tend(artifact))

    async def _tend(self, artifact: str) -> None:
        """Until nothing is to be done before the next event."""
        news = self._news[artifact]
        try:
            while artifact in self._all:
                news.clear()
                at = await self._look(artifact)
                if at is None and not news.is_set():
                    break
                await _either(news, (at or 0.0) - self._node.world.wall())
        finally:
            del self._news[artifact]

    async def _look(self, artifact: str) -> float | None:
        """Do what is to be done; when to look again."""
        now, one = self._node.world.wall(), self.of(artifact)
        after, step = holds.look(one, self._use(one), now)
        self._become(after)
        try:
            match step.do:
                case Do.REST:
                    return step.at
                case Do.DROP:
                    await self._drop(artifact)
                    return now
                case Do.LIGHTEN:
                    await self._lighten(artifact)
                    return now
                case Do.ASK:
                    return now + await self._ask(after.successor)
        except (KybernateError, OSError) as error:
            log.warning("what becomes of %s is not settled yet: %s", artifact, error)
        except Exception:  # a fault of ours must not leave the artifact without its owner
            log.exception("what becomes of %s is not settled yet", artifact)
        return self._node.world.wall() + _RETRY_S

    async def _drop(self, artifact: str) -> None:
        offloading = self._node.world.offloading
        async with self.lock(artifact):
            one = self.of(artifact)
            if offloading is None or one.drop is None or self._use(one).needed:
                return  # it has come again, or is needed again, meanwhile
            for tier in one.drop.tiers:
                if tier in offloading.limits:
                    await offloading.vault.drop(ArtifactId(artifact), tier, forget=one.drop.why)
            if self.of(artifact).drop == one.drop:
                self._become(holds.gone(one))

    async def _lighten(self, artifact: str) -> None:
        offloading = self._node.world.offloading
        async with self.lock(artifact):
            one = self.of(artifact)
            if offloading is None or not holds.lightens(one, self._use(one)):
                return
            self._all[artifact] = holds.looked(one, self._node.world.wall())
            try:
                await offloading.vault.drop(ArtifactId(artifact), Tier.NVME)
            except RefusedError as error:
                log.debug("what is pinned stays on NVMe: %s", error)
                return
            self._tell(artifact, Tier.NVME, _LIGHTER)
            self._become(holds.lightened(self.of(artifact)))

    async def _ask(self, hold: SuccessorHold | None) -> float:
        """Seconds until it is to be asked again."""
        if hold is None:
            return 0.0
        answer = await self._successors.ask(holds.without_kept(hold, self.of(hold.artifact).person))
        if answer.over and self.of(hold.artifact).successor == hold:
            self.void(hold.artifact, answer.over, *answer.told)
        return answer.again


async def _either(news: asyncio.Event, seconds: float) -> None:
    """Until there is news, or so many seconds have passed."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await news.wait()
    except TimeoutError:
        pass
