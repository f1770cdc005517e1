"""Watches the host's memory for the seats whose park would fill it.

Asked before every decision, it answers from what was read last, and
reads again when that is too old. The arithmetic is the core's (`kybernate.core.seat.budget`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.seat.budget import (
    BudgetLimits,
    Candidate,
    HostMemory,
    Load,
    ShortRule,
    pressure,
    refusals,
)
from kybernate.core.swap.swap import takes_turns, wants
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError
from kybernate.lib.rounds import rounds
from kybernate.types import SeatState
from nodeagent import metrics
from nodeagent.seat.node import IN_RAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.core.seat.budget import MemoryLevel, Refusal
    from kybernate.ports import Memory
    from kybernate.types import PodUid
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_FRESH = 0.25
_FRESH_AT_REST = 5.0
"""Limits and usage of a container that isn't about to be parked: they are many small reads."""
_NEWS = 0.05
"""Share of the host's memory by which what is available must change to be published again."""
CONDITION = "HostMemory"
_SHOWN = (SeatState.PARKED, SeatState.DUMPING)
"""Parked seats whose memory the host shows as taken."""
_MAY_PARK = (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)


@dataclass(frozen=True, slots=True)
class _Reading:
    """`parked`: whose memory it already shows as taken."""

    at: float
    host: HostMemory
    parked: frozenset[PodUid]


@dataclass(frozen=True, slots=True)
class _Levels:
    """The limits over one container, by its kyb-init, as seen for so many bytes."""

    at: float
    pid: int
    need: int
    levels: tuple[MemoryLevel, ...]


class Pressure:
    """Judges parks, and has them judged again (`judge_parks`, `kick`) as the host's memory changes.

    Where parked seats' states can leave RAM (`makes_room`), a seat is not refused: the swap
    decision has it wait for as long as that takes."""

    def __init__(
        self,
        node: Node,
        memory: Memory,
        makes_room: Callable[[Seat, int], bool],
        judge_parks: Callable[[], object],
        kick: Callable[[], None],
    ) -> None:
        self._node = node
        self._kick = kick
        self._memory = memory
        self._makes_room = makes_room
        self._judge_parks = judge_parks
        self._reading: _Reading | None = None
        self._levels: dict[PodUid, _Levels] = {}
        self._refused: Mapping[PodUid, Refusal] = {}
        self._passing: frozenset[PodUid] = frozenset()
        self._told: dict[PodUid, str] = {}

    def __call__(self, seats: Iterable[Seat]) -> Mapping[PodUid, str]:
        """Which of these can't be parked now, and why. A seat that is PARKING counts as parked
        already. Under `memory_short: restart` such seats are given up instead. Quick."""
        known = list(seats)
        candidates = [seat for seat in known if seat.state in _MAY_PARK and not seat.ending.asked]
        refused = self._judge(known, candidates)
        self._refused = refused
        self._passing = frozenset(
            seat.uid
            for seat in candidates
            if seat.uid in refused
            and refused[seat.uid].lack.shared
            and self._makes_room(seat, self._node.park_size(seat))
        )
        forfeits = self._forfeits()
        for seat in known:
            if (why := forfeits.get(seat.uid, "")) != seat.ending.forfeit:
                seat.ending.judged(why)
        if refused or self._told:
            self._tell(known)
        there = self._node.seats
        if not self._levels.keys() <= there.keys():
            self._levels = {uid: one for uid, one in self._levels.items() if uid in there}
        mended = self._passing | forfeits.keys()
        return {uid: one.sentence for uid, one in refused.items() if uid not in mended}

    def _forfeits(self) -> Mapping[PodUid, str]:
        """Who is given up rather than waited for. A node that is short just now has room soon."""
        if ShortRule(self._node.settings.memory_short) is ShortRule.WAIT:
            return {}
        return {
            uid: one.sentence
            for uid, one in self._refused.items()
            if not one.lack.passes
            and uid not in self._passing
            and not self._is_wanted_for_turns_only(self._node.seats[uid])
        }

    def _is_wanted_for_turns_only(self, seat: Seat) -> bool:
        """Among those who always want their GPUs nobody's work is lost for another's turn."""
        if seat.turn is None or seat.wishes.leave or self._node.draining:
            return False
        gpus, node = frozenset(seat.identity.gpus), self._node.swap_view()
        others = (one for one in node.seats if one.uid != seat.uid and gpus & one.gpus)
        return not any(wants(one) and not takes_turns(one, node) for one in others)

    def _judge(self, known: list[Seat], candidates: list[Seat]) -> Mapping[PodUid, Refusal]:
        host = self._host()
        if host is None or self._reading is None:
            return {}
        kept = [s for s in known if s.state is SeatState.PARKING or s.state in IN_RAM]
        load = Load(
            parked=sum(self._node.park_size(seat) for seat in kept),
            underway=sum(
                self._node.park_size(s) for s in kept if s.uid not in self._reading.parked
            ),
        )
        free = max(0, host.available - load.underway - self._node.settings.host_reserve_bytes)
        self._node.ram_seen(free=free, room=min(max(0, self._node.park_budget - load.parked), free))
        return refusals((self._candidate(seat) for seat in candidates), load, host, self._limits())

    def _limits(self) -> BudgetLimits:
        settings = self._node.settings
        return BudgetLimits(
            self._node.park_budget, settings.host_reserve_bytes, settings.stalled_percent
        )

    def _candidate(self, seat: Seat) -> Candidate:
        need = self._node.park_size(seat)
        return Candidate(seat.uid, need, self._levels_over(seat, need))

    def _levels_over(self, seat: Seat, need: int) -> tuple[MemoryLevel, ...]:
        if seat.tree.init is None:
            return ()
        now, pid, known = self._node.world.now(), seat.tree.init.pid, self._levels.get(seat.uid)
        pressing = seat.state is SeatState.DRAINING or seat.uid in self._refused
        age = _FRESH if pressing else _FRESH_AT_REST
        if known is None or known.pid != pid or known.need < need or now >= known.at + age:
            try:
                known = _Levels(now, pid, need, self._memory.levels(pid, need))
            except (NotFoundError, OSError):
                return ()
            self._levels[seat.uid] = known
        return known.levels

    def _host(self) -> HostMemory | None:
        now, known = self._node.world.now(), self._reading
        stale = known is None or known.at <= self._node.ram_freed_at
        if stale or known is None or now >= known.at + _FRESH:
            try:
                host = self._memory.host()
            except OSError as error:
                log.warning("the host's memory can't be read: %s", error)
                return None
            parked = frozenset(uid for uid, s in self._node.seats.items() if s.state in _SHOWN)
            self._reading = _Reading(now, host, parked)
            return host
        return known.host

    # --- telling ------------------------------------------------------------------------------

    def _tell(self, known: list[Seat]) -> None:
        """Once for each seat and lack, and only when somebody needs its GPUs."""
        for seat in known:
            why = self._refused.get(seat.uid)
            if why is None or seat.state not in _MAY_PARK:
                self._told.pop(seat.uid, None)
            elif seat.uid in self._passing:
                continue
            elif self._told.get(seat.uid) != why.lack and self._needed(seat, known):
                self._told[seat.uid] = why.lack
                metrics.PARKS_REFUSED.labels(why.lack.value).inc()
                if not seat.ending.forfeit:
                    self._node.tell(seat, "Warning", "ParkRefused", why.sentence)
        seats = self._node.seats
        self._told = {uid: lack for uid, lack in self._told.items() if uid in seats}

    def _needed(self, seat: Seat, known: list[Seat]) -> bool:
        if seat.wishes.leave or self._node.draining:
            return True
        gpus = frozenset(seat.identity.gpus)
        return any(
            gpus & frozenset(other.identity.gpus) and wants(other.view(drained=False))
            for other in known
            if other is not seat
        )

    async def run(self) -> None:
        """Look regularly: what was refused may go now, and people want to know."""
        every = self._node.settings.guard_interval_s
        await rounds(self.look, every, "looking at the host's memory")

    def look(self) -> None:
        """Read, publish, and have the loop decide again if something else may be parked now."""
        host = self._host()
        if host is None:
            return
        metrics.HOST_AVAILABLE.set(host.available)
        metrics.HOST_STALLED.set(host.stalled or 0.0)
        refused, room = self._refused.keys(), self._node.park_room
        self._judge_parks()
        grown = room is not None and (self._node.park_room or 0) > room
        if refused != self._refused.keys() or grown:
            self._kick()
        self._note(host)
        if abs(host.available - self._node.host_available) > host.total * _NEWS:
            self._node.host_seen(host.available)

    def _note(self, host: HostMemory) -> None:
        short = pressure(host, self._limits())
        stuck = [u for u in self._refused if u in self._node.seats and u not in self._passing]
        names = sorted(str(self._node.seats[uid]) for uid in stuck)
        if short is not None:
            ok, reason, message = (
                False,
                "NodeShort",
                "the node is short of memory: it parks nothing",
            )
        elif names:
            ok, reason = False, "ParksRefused"
            message = f"host memory does not allow to park {', '.join(names)}"
        else:
            ok, reason, message = True, "Enough", "what is active could be parked"
        self._node.notice(CONDITION, reason, message, ok=ok)
