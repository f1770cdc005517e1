"""How long a model's calls would wait on GPUs that it shares, told from everybody's traffic. Pure.

A seat asks for *turns*: one when demand begins after quiet, and, while another one asks too, a new
one each time that it was switched out in the middle. Before its turn comes it waits for those of
the others, one each at most since turns go round: each with the probability that this other one is
in GPU memory or ahead of it, and for as long as such a turn lasts. To this comes the switch, unless
it was served last. Hours are looked at one by one: models that are busy at different hours don't
meet. With several slots it is a rough estimate: all of them have to be taken.

bench/placement/colocate.py holds the estimate against a simulation of the product's own swap
decision.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.swap.activity import HOURS
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN = 10.0
"""Seconds that a busy seat keeps its turn once another one asks: it ends what is in flight."""

HOT = 0.4
"""Share of an hour. Two such seats leave less than a fifth of it for switching between them."""

PART = 3
"""Hours that are looked at together for a wait: a third of the work, as good an estimate."""

_HOUR = 3600.0
_MOST_CALLS = 1000 * _HOUR
"""Per hour. A node may tell of any number; what follows from it stays finite."""
SELDOM = 1 / 86_400
"""Calls per second: who calls less than once a day counts as calling once."""


@dataclass(frozen=True, slots=True, order=True)
class Traffic:
    """A model's day, by hours of UTC: the share of time in which its requests are in flight, and
    the calls per second that come after quiet."""

    busy: tuple[float, ...]
    calls: tuple[float, ...]
    mean: float = field(init=False, repr=False, compare=False)
    """The busy share over the day."""
    steady: bool = field(init=False, repr=False, compare=False)
    """Whether all hours are alike."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.busy, self.calls)))
        alike = len(set(self.busy)) == len(set(self.calls)) == 1
        object.__setattr__(self, "steady", alike)
        object.__setattr__(self, "mean", sum(self.busy) / len(self.busy))

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
    any hour seen has changed, and the hours not seen are taken to be like now. All is rounded: a
    seat that continues as before looks as before, and what was found of its node stays.
    """
    if len(busy) != HOURS or len(calls) != HOURS:
        raise ValueError(f"a profile has {HOURS} hours, not {len(busy)} and {len(calls)}")
    if min(busy) >= 0 and min(calls) >= 0:
        return Traffic(tuple(map(_share, busy)), tuple(map(_rate, calls)))
    seen = [hour for hour in range(HOURS) if busy[hour] >= 0 and calls[hour] >= 0]
    if not seen:
        return None
    usual = [sum(row[hour] for hour in seen) / len(seen) for row in (busy, calls)]
    if recent[0] > max(busy[hour] for hour in seen):
        usual = list(recent)
    return Traffic(
        tuple(_share(busy[h] if h in seen else usual[0]) for h in range(HOURS)),
        tuple(_rate(calls[h] if h in seen else usual[1]) for h in range(HOURS)),
    )


@lru_cache(maxsize=4096)
def _share(thousandths: float) -> float:
    """Rounded to 5 % of an hour, below 10 % to 1 %. Kept, so that equal numbers of tens of
    thousands of seats are one object."""
    step = 10 if thousandths < 100 else 50
    return min(1.0, step * round(thousandths / step) / 1000)


@lru_cache(maxsize=4096)
def _rate(per_hour: float) -> float:
    """Rounded to steps of a fifth; kept like shares."""
    if per_hour <= 0:
        return 0.0
    return float(1.2 ** round(log(min(per_hour, _MOST_CALLS), 1.2))) / _HOUR


def wait_seconds(present: Sequence[Sharer], newcomer: Sharer, slots: int = 1) -> float:
    """Seconds of waiting that each of the newcomer's calls brings about: its own, and those of the
    others because of it. Over the day, hours weighing as many calls as they have.

    `present` are those that can't be in GPU memory beside it, of which `slots` can at a time. What
    they are together is kept, so that asking for another newcomer is cheap.
    """
    if not present:
        return 0.0
    day, mine = _crowds(frozenset(Counter(present).items()), slots), _parts(newcomer.traffic)
    if len(day) < len(mine):
        day = day * len(mine)
    elif len(mine) < len(day):
        mine = mine * len(day)
    return _added(day, mine, newcomer.switch, slots) / sum([calls for _, calls in mine])


def clash(present: Sequence[Sharer], newcomer: Traffic) -> tuple[int, ...]:
    """The hours in which the newcomer would be hot together with one that is there."""
    mine = newcomer.hot_hours()
    return tuple(sorted(mine & set().union(*(one.traffic.hot_hours() for one in present))))


def worth(wait: float, full: int, half_at: float = 5.0) -> int:
    """A wait as a policy's worth: `full` for none, half of it for `half_at` seconds."""
    return round(full * half_at / (half_at + wait))


Column = list[tuple[float, float, float]]
"""Of each sharer in one part of the day: busy share, calls per second, seconds to switch it in."""


def _rates(traffic: Traffic) -> list[float]:
    return [max(rate, SELDOM) for rate in traffic.calls]


class _Crowd(NamedTuple):
    """What those who share are together in one part of the day.

    `rate` of their turns per second, `busy` share of all; `others`: the share of time, switches
    included, in which one of them meets another one served; `holdup`: the seconds that they hold
    up somebody who comes; `switching`: how much of their turns' switching comes from each other;
    `sore`: the waits that more turns would cost.
    """

    rate: float
    busy: float
    others: float
    holdup: float
    switching: float
    sore: float


@lru_cache(maxsize=16_384)
def _crowds(sharers: frozenset[tuple[Sharer, int]], slots: int) -> tuple[_Crowd, ...]:
    """The crowd of each part of the day, or one if all hours are alike."""
    all_of_them = sorted(one for one, count in sharers for _ in range(count))
    days = [_parts(one.traffic) for one in all_of_them]
    length = max(map(len, days))
    switches = [one.switch for one in all_of_them]
    columns = zip(*(day * (length // len(day)) for day in days), strict=True)
    return tuple(
        [
            _crowd([(*cell, switch) for cell, switch in zip(column, switches, strict=True)], slots)
            for column in columns
        ]
    )


@lru_cache(maxsize=4096)
def _parts(traffic: Traffic) -> tuple[tuple[float, float], ...]:
    """Busy share and calls per second of each part of the day; one part if all hours are alike."""
    if traffic.steady:
        return ((traffic.busy[0], max(traffic.calls[0], SELDOM)),)
    busy, calls = traffic.busy, _rates(traffic)
    return tuple(
        [
            (sum(busy[at : at + PART]) / PART, sum(calls[at : at + PART]) / PART)
            for at in range(0, HOURS, PART)
        ]
    )


def _crowd(column: Column, slots: int) -> _Crowd:
    asked = turns(column, slots)
    rate, work = sum([one[_RATE] for one in asked]), sum([one[_WORK] for one in asked])
    sore = switching = met = 0.0
    for one, wait, (busy, _, switch) in zip(asked, waits(asked, slots), column, strict=True):
        sore += busy * wait
        switching += one[_RATE] * one[_RATE] * switch
        met += one[_WORK] * (1 - one[_RATE] / rate)
    everyone = sum([busy for busy, _, _ in column])
    return _Crowd(rate, everyone, met, _holdup(asked, None, work, slots), switching, sore)


def _added(
    day: Sequence[_Crowd], mine: Sequence[tuple[float, float]], switch: float, slots: int
) -> float:
    """How many calls more would wait at a time, summed over the parts of the day.

    `mine` is what the newcomer is in each, `switch` its own. One loop, since it is gone through for
    every group that is rated.
    """
    total = 0.0
    for crowd, (busy, calls) in zip(day, mine, strict=True):
        their, everyone, met, holdup, switching, sore = crowd
        rate = calls + busy * min(1.0, everyone) / TURN
        others = their + everyone * busy / TURN
        lost = (others / (others + rate)) ** slots * switch
        work, free = busy + rate * lost, 1.0 - met / slots
        ahead = work / free if free > work else 1.0
        held = others * ahead * (min(TURN, busy / rate) + lost)
        if slots > 1:
            held = _beside(held, met, slots)
        total += rate * (lost + holdup) + held
        total += switching * (1 / their - 1 / (others + rate)) + sore * busy / TURN
    return total


Turn = tuple[float, float, float, float]
"""What one sharer asks for in one part of the day: turns per second, seconds until it is switched
in and of its turn with that, share of time with all switches."""

_RATE, _LOST, _LENGTH, _WORK = range(4)


def turns(column: Column, slots: int) -> list[Turn]:
    """What each asks for."""
    everyone = sum([busy for busy, _, _ in column])
    rates = [calls + busy * min(1.0, everyone - busy) / TURN for busy, calls, _ in column]
    total = sum(rates)
    found = []
    for rate, (busy, _, switch) in zip(rates, column, strict=True):
        # Who was served last is still in GPU memory; with several slots, the last ones.
        lost = (1 - rate / total) ** slots * switch
        found.append((rate, lost, min(TURN, busy / rate) + lost, busy + rate * lost))
    return found


def waits(asked: Sequence[Turn], slots: int) -> list[float]:
    """Seconds that each waits for a turn."""
    work = sum([one[_WORK] for one in asked])
    return [one[_LOST] + _holdup(asked, one, work - one[_WORK], slots) for one in asked]


def _holdup(turns: Sequence[Turn], but: Turn | None, work: float, slots: int) -> float:
    """Seconds that all but one, of so much work together, hold up somebody who comes. Each does
    for the share of time in which it is being served, or waits while others are."""
    seconds = 0.0
    for one in turns:
        if one is not but:
            mine = one[_WORK]
            free = 1 - (work - mine) / slots
            seconds += mine / free * one[_LENGTH] if free > mine else one[_LENGTH]
    return _beside(seconds, work, slots)


def _beside(seconds: float, work: float, slots: int) -> float:
    """What is left of a hold-up where all slots must be taken for there to be one."""
    if slots == 1:
        return seconds
    return seconds / slots * min(1.0, work / slots) ** (slots - 1)
