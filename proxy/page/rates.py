"""How many requests each model answers, and how long they waited, of the last minute. Pure.

Waits are counted in classes of a fixed ratio, so that a minute of any number of requests costs the
same memory; a percentile is off by 5 % at most.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Container

ALL = ""
KEPT_S = 60
RATE_S = 10
_STEP = math.log(1.1)
_LEAST = 0.001


@dataclass(slots=True)
class _Second:
    """What was answered in one second; `waits` by model and class."""

    at: int
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    waits: Counter[tuple[str, int]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a second of the last RATE_S; of the last KEPT_S how many failed (500 and above), and
    the waits (s) that half and all but a hundredth of them stayed below, None without requests."""

    rate: float = 0.0
    failed: int = 0
    p50: float | None = None
    p99: float | None = None


class Rates:
    """Told of each request that is over. Models are known by their full names."""

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque()

    def count(self, model: str, status: int, held: float, now: float) -> None:
        """A request is over; it was held so long (s)."""
        if not model:
            return
        at = int(now)
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(_Second(at))
            self._forget(at)
        second = self._seconds[-1]
        second.answered[model] += 1
        second.waits[model, _class_of(held)] += 1
        if status >= 500:
            second.failed[model] += 1

    def now(self, now: float, models: Container[str]) -> dict[str, Rate]:
        """Of each of these models that answered lately, and under ALL of them together."""
        self._forget(int(now))
        answered: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        waits: dict[str, Counter[int]] = {}
        for second in self._seconds:
            lately = second.at > now - RATE_S
            for model, number in second.answered.items():
                for name in (model, ALL) if model in models else ():
                    answered[name] += number if lately else 0
                    failed[name] += second.failed[model]
            for (model, one), number in second.waits.items():
                for name in (model, ALL) if model in models else ():
                    waits.setdefault(name, Counter())[one] += number
        return {
            model: Rate(
                round(answered[model] / RATE_S, 1),
                failed[model],
                _percentile(found, 0.5),
                _percentile(found, 0.99),
            )
            for model, found in waits.items()
        }

    def _forget(self, at: int) -> None:
        while self._seconds and self._seconds[0].at <= at - KEPT_S:
            self._seconds.popleft()


def _class_of(held: float) -> int:
    return 0 if held <= _LEAST else 1 + int(math.log(held / _LEAST) / _STEP)


def _percentile(waits: Counter[int], share: float) -> float:
    """The middle of the class that it lies in, 0.0 for the one of those that hardly waited."""
    least, seen = math.ceil(share * waits.total()), 0
    for one in sorted(waits):
        seen += waits[one]
        if seen >= least:
            return round(_LEAST * math.exp((one - 0.5) * _STEP), 4) if one else 0.0
    return 0.0
