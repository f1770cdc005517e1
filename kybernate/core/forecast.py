"""How long a model's calls would wait on GPUs that it shares, told from everybody's traffic. Pure.

A seat asks for *turns*: one when demand begins after quiet, and, while another one asks too, a new
one each time that it was switched out in the middle. Before its turn comes it waits for those of
the others, one each at most since turns go round: each with the probability that this other one is
in GPU memory or ahead of it, and for as long as such a turn lasts. To this comes the switch, unless
it was served last. Hours are looked at one by one: models that are busy at different hours don't
meet. With several slots it is a rough estimate: all of them have to be taken.

bench/colocate.py holds the estimate against a simulation of the product's own swap decision.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.activity import HOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN = 10.0
"""Seconds that a busy seat keeps its turn once another one asks: it ends what is in flight."""

HOT = 0.4
"""Share of an hour. Two such seats leave less than a fifth of it for switching between them."""

_HOUR = 3600.0
_SELDOM = 1 / 86_400
"""Calls per second: who calls less than once a day counts as calling once."""


@dataclass(frozen=True, slots=True, order=True)
class Traffic:
    """A model's day, by hours of UTC: the share of time in which its requests are in flight, and
    the calls per second that come after quiet."""

    busy: tuple[float, ...]
    calls: tuple[float, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.busy, self.calls)))

    def __hash__(self) -> int:
        return self._hash

    def hot_hours(self) -> frozenset[int]:
        """The hours in which it needs the GPU for itself."""
        return frozenset(hour for hour, share in enumerate(self.busy) if share >= HOT)


UNKNOWN = Traffic((0.1,) * HOURS, (1 / 600,) * HOURS)
"""Of whom nobody has seen anything yet: a minute of work every ten minutes."""


class Sharer(NamedTuple):
    """One that shares the GPUs: its traffic, and the seconds to switch it in for another one."""

    traffic: Traffic
    switch: float


def observed(
    busy: Sequence[float], calls: Sequence[float], recent: tuple[float, float] = (0.0, 0.0)
) -> Traffic | None:
    """The traffic that a GPUNode tells of: thousandths of each hour, calls per hour, -1 for hours
    not seen yet, which are taken to be like the others. None if no hour was seen.

    `recent` is what the last quarter of an hour was like: a seat that is busier now than it was in
    any hour seen has changed, and the hours not seen are taken to be like now.
    """
    if len(busy) != HOURS or len(calls) != HOURS:
        raise ValueError(f"a profile has {HOURS} hours, not {len(busy)} and {len(calls)}")
    seen = [hour for hour in range(HOURS) if busy[hour] >= 0 and calls[hour] >= 0]
    if not seen:
        return None
    usual = [sum(row[hour] for hour in seen) / len(seen) for row in (busy, calls)]
    if recent[0] > max(busy[hour] for hour in seen):
        usual = list(recent)
    return Traffic(
        tuple(min(1.0, (busy[h] if h in seen else usual[0]) / 1000) for h in range(HOURS)),
        tuple((calls[h] if h in seen else usual[1]) / _HOUR for h in range(HOURS)),
    )


def wait_seconds(present: Sequence[Sharer], newcomer: Sharer, slots: int = 1) -> float:
    """Seconds of waiting that each of the newcomer's calls brings about: its own, and those of the
    others because of it. Over the day, hours weighing as many calls as they have.

    `present` are those that can't be in GPU memory beside it, of which `slots` can at a time.
    """
    if not present:
        return 0.0
    before = _waiting(_counted(present), slots)
    after = _waiting(_counted([*present, newcomer]), slots)
    return max(0.0, sum(after) - sum(before)) / sum(_rates(newcomer.traffic))


def own_wait_seconds(present: Sequence[Sharer], newcomer: Sharer, slots: int = 1) -> float:
    """Seconds that the newcomer's calls themselves would wait, on average over the day."""
    calls = _rates(newcomer.traffic)
    total = 0.0
    for hour in range(HOURS):
        _, wait = _queue(_column([*present, newcomer], hour), slots)[-1]
        total += calls[hour] * wait
    return total / sum(calls)


def clash(present: Sequence[Sharer], newcomer: Traffic) -> tuple[int, ...]:
    """The hours in which the newcomer would be hot together with one that is there."""
    mine = newcomer.hot_hours()
    return tuple(sorted(mine & set().union(*(one.traffic.hot_hours() for one in present))))


def worth(wait: float, full: int, half_at: float = 2.0) -> int:
    """A wait as a policy's worth: `full` for none, half of it for `half_at` seconds."""
    return round(full * half_at / (half_at + wait))


_Column = tuple[tuple[float, float, float], ...]
"""Of each sharer in one hour: busy share, calls per second, seconds to switch it in."""


def _counted(sharers: Sequence[Sharer]) -> frozenset[tuple[Sharer, int]]:
    return frozenset(Counter(sharers).items())


def _rates(traffic: Traffic) -> list[float]:
    return [max(rate, _SELDOM) for rate in traffic.calls]


def _column(sharers: Sequence[Sharer], hour: int) -> _Column:
    return tuple(
        (one.traffic.busy[hour], max(one.traffic.calls[hour], _SELDOM), one.switch)
        for one in sharers
    )


@lru_cache(maxsize=65_536)
def _waiting(sharers: frozenset[tuple[Sharer, int]], slots: int) -> tuple[float, ...]:
    """How many calls wait in each hour, on average. `sharers` with how many there are of each."""
    all_of_them = sorted(one for one, count in sharers for _ in range(count))
    columns = [_column(all_of_them, hour) for hour in range(HOURS)]
    known = {column: _all_waits(column, slots) for column in set(columns)}
    return tuple(known[column] for column in columns)


def _all_waits(column: _Column, slots: int) -> float:
    return sum(rate * wait for rate, wait in _queue(column, slots))


def _queue(column: _Column, slots: int) -> list[tuple[float, float]]:
    """Of each sharer: the turns per second that it asks for, and the wait for one in seconds."""
    everyone = sum(busy for busy, _, _ in column)
    rates = [calls + busy * min(1.0, everyone - busy) / TURN for busy, calls, _ in column]
    total = sum(rates)
    # Who was served last is still in GPU memory; with several slots, the last ones.
    lost = [
        (1 - rate / total) ** slots * switch
        for rate, (_, _, switch) in zip(rates, column, strict=True)
    ]
    work = [
        busy + rate * switch for rate, switch, (busy, _, _) in zip(rates, lost, column, strict=True)
    ]
    all_work, ahead, holdups = sum(work), [], []
    for rate, switch, share, (busy, _, _) in zip(rates, lost, work, column, strict=True):
        free = 1 - (all_work - share) / slots
        ahead.append(min(1.0, share / free) if free > share else 1.0)
        holdups.append(ahead[-1] * (min(TURN, busy / rate) + switch))
    some, all_holdups = sum(ahead), sum(holdups)
    return [
        (rates[i], lost[i] + _held_up(some - ahead[i], all_holdups - holdups[i], slots))
        for i in range(len(column))
    ]


def _held_up(others: float, holdups: float, slots: int) -> float:
    """Seconds behind `others`, a number, who hold up `holdups` seconds if there is one slot."""
    return max(0.0, holdups) / slots * min(1.0, max(0.0, others) / slots) ** (slots - 1)
