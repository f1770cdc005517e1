"""A simulated node's host RAM, with NVMe below it, under the product's own tier decision. Pure.

RAM holds the parked models that it has room for, each from the begin of its park to the end of its
wake. Who leaves it for NVMe, and who comes back when, says `kybernate.core.tiers.tiering.decide`,
as for the node agent; nothing is moved ahead of need. NVMe holds everything; to it and from it are
separate ways, each of them used by one model at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from kybernate.core.tiers.tiering import (
    Parked,
    RamOrder,
    Step,
    TierPolicy,
    TierView,
    decide,
    next_check,
    used,
)
from kybernate.types import PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kybernate.core.swap.activity import Recorder
    from kybernate.core.tiers.tiers import Speed

CALLS_HOLD: Final = 10.0
"""Seconds between two looks at how often models are called, whatever happens meanwhile."""
GB: Final = 10**9
_ALL: Final = 1 << 62
"""Bytes of an NVMe that holds everything."""
_POLICY: Final = TierPolicy()


class Begun(NamedTuple):
    """What a look at RAM began: parks that have room now, and moves between RAM and NVMe with the
    time of their end (s); `again`: when to look again without an event."""

    parks: Sequence[int]
    moves: Sequence[tuple[int, float]]
    again: float


class HostRam:
    """Models by their numbers, all parked at first: in RAM those that it has room for, in their
    order. `sizes` and `limit` in GB; `seen`: when each was asked for."""

    def __init__(
        self, sizes: Sequence[float], limit: float, nvme: Speed, seen: Sequence[Recorder]
    ) -> None:
        self._limit, self._nvme = round(limit * GB), nvme
        self.bytes = [round(size * GB) for size in sizes]
        if max(self.bytes) > self._limit:
            raise ValueError(f"RAM of {limit:g} GB has no room for the largest model")
        self.uids = [PodUid(str(m)) for m in range(len(sizes))]
        self.tier: list[Tier] = []
        self.to: list[Tier | None] = [None] * len(sizes)
        """Where each model is on its way to, between RAM and NVMe."""
        self.order: Callable[[], RamOrder] | None = None
        """Who gets RAM next, where the policy decides that; else see `_oldest_first`."""
        self.restores = 0
        """How often a model came back from NVMe."""
        self._moved_at: list[float | None] = [None] * len(sizes)
        self._used_at = [0.0] * len(sizes)
        self._seen, self._counts_at = seen, 0.0
        self._calls = [0.0] * len(sizes)
        room = self._limit
        for size in self.bytes:
            self.tier.append(Tier.RAM if size <= room else Tier.NVME)
            room -= size if self.tier[-1] is Tier.RAM else 0
        self._resting = set(range(len(sizes)))
        self._parking: set[int] = set()
        self._waking: set[int] = set()
        self._awake: set[int] = set()
        self._asked: set[int] = set()
        """Who was asked for already when its dump began."""
        self._short: list[int] = []
        """Told to be parked; RAM has no room for them yet."""
        self._rising: set[int] = set()
        """Told to be woken; they are not in RAM yet."""
        self._written = self._read = 0.0

    # --- what becomes of models -----------------------------------------------------------------

    def takes(self, model: int) -> bool:
        """It is to be parked; whether it has room at once."""
        self._awake.discard(model)
        if self._short or self.bytes[model] > self.room():
            self._short.append(model)
            return False
        self._parking.add(model)
        return True

    def parked(self, model: int, now: float) -> None:
        """It is in RAM."""
        self._parking.discard(model)
        self._resting.add(model)
        self.tier[model], self._moved_at[model], self._used_at[model] = Tier.RAM, None, now

    def gives(self, model: int) -> bool:
        """It is to be woken; whether it is in RAM."""
        if self.tier[model] is not Tier.RAM or self.to[model] is not None:
            self._rising.add(model)
            return False
        self._resting.discard(model)
        self._waking.add(model)
        return True

    def woken(self, model: int) -> None:
        """It has left RAM."""
        self._waking.discard(model)
        self._awake.add(model)

    def moved(self, model: int, now: float, *, asked: bool) -> bool:
        """It is where it was on its way to; whether it can be woken, as it is to be. As in the
        agent, one that is asked for while it is written stays in RAM, which was in vain."""
        if self.to[model] is Tier.RAM or not asked or model in self._asked:
            self.tier[model], self._moved_at[model] = self.to[model] or self.tier[model], now
        self.to[model] = None
        self._asked.discard(model)
        if model not in self._rising or self.tier[model] is not Tier.RAM:
            return False
        self._rising.discard(model)
        return self.gives(model)

    # --- what is decided ------------------------------------------------------------------------

    def room(self) -> int:
        """Bytes that may be parked now."""
        return self._free() - used(self._those(self._resting), Tier.RAM)

    def view(self) -> TierView:
        """Where models are, whatever their turns."""
        limits = {Tier.RAM: self._free(), Tier.NVME: _ALL}
        awake = self._those(self._awake | self._waking | set(self._short))
        resting, parking = self._those(self._resting), self._those(self._parking)
        return TierView(resting, limits, parking=parking, awake=awake)

    def _oldest_first(self, asking: Iterable[int]) -> RamOrder:
        """Parks, then who has its place on a GPU already, then the others that ask."""
        others = [m for m in asking if m not in self._rising]
        turns = {self.uids[m]: n for n, m in enumerate((*sorted(self._rising), *others))}
        return RamOrder(turns, {self.uids[m]: -1 for m in self._short}, {})

    def look(self, asking: Sequence[int], now: float) -> Begun:
        """Begin what is to be done. `asking`: who wants to be awake, who asked first first."""
        self._count(now)
        parks = []
        while self._short and self.bytes[self._short[0]] <= self.room():
            parks.append(self._short.pop(0))
            self._parking.add(parks[-1])
        order = self.order() if self.order else self._oldest_first(asking)
        view = order.given_to(self.view(), {self.uids[m] for m in asking})
        moves = []
        for action in decide(view, _POLICY, now):
            m, dumps = int(action.uid), action.step is Step.DUMP
            if dumps and m in asking:
                self._asked.add(m)
            moves.append((m, self._dumped_at(m, now) if dumps else self._restored_at(m, now)))
        when = next_check(view, _POLICY, now)
        return Begun(parks, moves, math.inf if when is None else when)

    def _count(self, now: float) -> None:
        """As the agent does: by the clock, and not as it decides."""
        if now < self._counts_at:
            return
        self._counts_at = now + CALLS_HOLD
        for m, seen in enumerate(self._seen):
            seen.advance(now)
            self._calls[m] = seen.recent_calls

    def _dumped_at(self, model: int, now: float) -> float:
        self.to[model] = Tier.NVME
        takes = self._nvme.latency + self.bytes[model] / self._nvme.write
        self._written = max(now, self._written) + takes
        return self._written

    def _restored_at(self, model: int, now: float) -> float:
        self.to[model] = Tier.RAM
        self.restores += 1
        self._read = max(now, self._read) + self.from_nvme(model)
        return self._read

    def from_nvme(self, model: int) -> float:
        """Seconds that it takes from NVMe into RAM."""
        return self._nvme.latency + self.bytes[model] / self._nvme.read

    def _free(self) -> int:
        return self._limit - sum([self.bytes[m] for m in (*self._parking, *self._waking)])

    def _those(self, models: Iterable[int]) -> tuple[Parked, ...]:
        return tuple([self._parked(m) for m in sorted(models)])

    def _parked(self, m: int) -> Parked:
        return Parked(
            self.uids[m],
            self.uids[m],
            self.bytes[m],
            self.tier[m],
            self.to[m],
            used=self._used_at[m],
            calls=self._calls[m],
            moved_at=self._moved_at[m],
        )
