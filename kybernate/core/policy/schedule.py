"""Times of a schedule: they begin by a cron expression in a time zone and last so long. Pure.

Expressions are read as Debian's cron reads them, also where a zone's clocks are put forward or
back: what would begin in the hour that is left out begins at its end, what begins at a time of day
in the hour that comes twice begins once.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from datetime import tzinfo

LONGEST_S = 366 * 86_400.0
_LONGEST_GAP = timedelta(days=366)
_A_LEAP_YEAR = datetime(2024, 1, 1)  # noqa: DTZ001 - the zone is added
_FIELDS = 5
_NEVER = "it does not begin within a year; name a day that each year has"


class Span(NamedTuple):
    """When a time began last, and begins next, in seconds since 1970; infinite for not at all."""

    began: float
    begins: float


@dataclass(frozen=True, slots=True)
class Times:
    """They begin by `cron`, by the clocks of `zone`, and last `lasts` seconds each."""

    cron: str
    zone: tzinfo
    lasts: float

    def around(self, now: float) -> Span:
        """The beginnings before and after `now`, which itself counts as before."""
        after = _first(self.cron, datetime.fromtimestamp(now, self.zone))
        # One second on: a beginning at this very second is one before.
        upto = datetime.fromtimestamp(math.floor(now) + 1, self.zone)
        return Span(_first(self.cron, upto, reverse=True), after)

    def now(self, now: float) -> tuple[bool, float]:
        """Whether one of them is now, and when that may change next, in seconds since 1970."""
        began, begins = self.around(now)
        if now < began + self.lasts:
            return True, min(began + self.lasts, begins)
        return False, begins


def read_times(cron: str, zone: str, lasts: float) -> Times:
    """Raises ValueError, in a sentence without a subject, for what begins never, or in no zone."""
    if len(cron.split()) != _FIELDS:
        raise ValueError(
            f"cron is {cron[:100]!r}; write minute, hour, day of month, month and day of week, "
            'such as "0 8 * * 1-5"'
        )
    if not 0 < lasts <= LONGEST_S:
        raise ValueError("duration is not above 0 and at most 8784h (a year)")
    found = Times(cron, _zone(zone), lasts)
    try:
        start = _A_LEAP_YEAR.replace(tzinfo=found.zone)
        begins = next(CronSim(cron, start), None)
    except CronSimError as error:
        raise ValueError(f"cron is {cron[:100]!r}: {error}") from error
    if begins is None or begins > start + _LONGEST_GAP:
        raise ValueError(f"cron is {cron[:100]!r}: {_NEVER}")
    return found


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"timeZone is {name[:100]!r}, which no time zone is called; write for example "
            "Europe/Berlin, or UTC"
        ) from error


def _first(cron: str, at: datetime, *, reverse: bool = False) -> float:
    """The first beginning after `at`, or the last one before it."""
    found = next(CronSim(cron, at, reverse=reverse), None)
    if found is None:
        return -math.inf if reverse else math.inf
    return found.timestamp()
