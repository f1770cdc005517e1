"""When a seat is used: a profile of its day, learned from what is asked of it. Pure.

Two numbers per hour of the day tell who may share a GPU: the share of time in which requests are
in flight, and how often demand begins after quiet, since each time the seat may have to be woken
first. Newer days weigh more. Times are wall-clock seconds since 1970; hours are those of UTC.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

HOURS = 24
UNSEEN = -1.0
"""In a profile: nobody has looked in this hour yet."""

_HOUR = 3600.0
_DAY = HOURS * _HOUR
_NEW_DAY = 0.3
_ENOUGH = 60.0
_RECENTLY = 900.0


def _unseen() -> list[float]:
    return [UNSEEN] * HOURS


@dataclass(slots=True)
class Recorder:
    """What was seen of one seat so far.

    `busy` is the share of each hour of the day in which requests were in flight, `calls` how often
    per hour demand began after quiet; UNSEEN where less than a minute was looked at. `recent_busy`
    and `recent_calls` are the same of about the last quarter of an hour.
    """

    at: float
    busy: list[float] = field(default_factory=_unseen)
    calls: list[float] = field(default_factory=_unseen)
    recent_busy: float = 0.0
    recent_calls: float = 0.0
    _serving: bool = False
    _wanted: bool = False
    _seen: float = 0.0
    _busy_s: float = 0.0
    _calls: int = 0

    def note(self, now: float, *, serving: bool, wanted: bool) -> None:
        """From now on requests are in flight or not (`serving`), or at least wait (`wanted`)."""
        self.advance(now)
        if wanted and not self._wanted:
            self._calls += 1
            self.recent_calls += _HOUR / _RECENTLY
        self._serving, self._wanted = serving, wanted

    def advance(self, now: float) -> None:
        """Count up to now. A clock that was set back, or a day ahead, counts for nothing."""
        if not 0 <= now - self.at <= _DAY:
            self._start_hour(now)
        while self._hour_end() <= now:
            self._count(self._hour_end())
            self._fold()
        self._count(now)

    def profile(self) -> tuple[list[float], list[float]]:
        """`busy` and `calls` with what was seen of the hour that is not over yet."""
        busy, calls, hour = list(self.busy), list(self.calls), _hour_of(self.at)
        busy[hour], calls[hour] = self._blended(hour)
        return busy, calls

    def record(self) -> dict[str, Any]:
        """The journal's form; `from_record` reads it. The hour under way is folded in."""
        busy, calls = self.profile()
        return {
            "at": self.at,
            "busy": [round(share, 4) for share in busy],
            "calls": [round(rate, 3) for rate in calls],
            "recent": [round(self.recent_busy, 4), round(self.recent_calls, 3)],
        }

    @staticmethod
    def from_record(record: Mapping[str, Any], now: float) -> Recorder:
        """The recorder that `record` wrote, continuing from now with what was learned."""
        busy, calls = list(record["busy"]), list(record["calls"])
        if len(busy) != HOURS or len(calls) != HOURS:
            raise ValueError(f"a profile has {HOURS} hours")
        recorder = Recorder(now, busy, calls, *record["recent"])
        fade = math.exp(-max(0.0, now - record["at"]) / _RECENTLY)
        recorder.recent_busy *= fade
        recorder.recent_calls *= fade
        return recorder

    def _hour_end(self) -> float:
        return (math.floor(self.at / _HOUR) + 1) * _HOUR

    def _count(self, until: float) -> None:
        """Count to a time within the present hour, or its end."""
        passed = until - self.at
        fade = math.exp(-passed / _RECENTLY)
        self.recent_busy = self.recent_busy * fade + (1 - fade) * self._serving
        self.recent_calls *= fade
        self._seen += passed
        self._busy_s += passed * self._serving
        self.at = until

    def _fold(self) -> None:
        """The hour that ends at `at` is over."""
        hour = _hour_of(self.at - 1.0)
        self.busy[hour], self.calls[hour] = self._blended(hour)
        self._start_hour(self.at)

    def _start_hour(self, now: float) -> None:
        self.at, self._seen, self._busy_s, self._calls = now, 0.0, 0.0, 0

    def _blended(self, hour: int) -> tuple[float, float]:
        if self._seen < _ENOUGH:
            return self.busy[hour], self.calls[hour]
        share, rate = self._busy_s / self._seen, self._calls * _HOUR / self._seen
        if self.busy[hour] < 0:
            return share, rate
        weight = _NEW_DAY * min(1.0, self._seen / _HOUR)
        return (
            self.busy[hour] + weight * (share - self.busy[hour]),
            self.calls[hour] + weight * (rate - self.calls[hour]),
        )


def _hour_of(at: float) -> int:
    return int(at // _HOUR) % HOURS
