"""A limit of bytes per second that several threads keep together. Pure."""

from __future__ import annotations

from kybernate.dataclass import dataclass


@dataclass(slots=True)
class Pace:
    """`rate` bytes a second, 0.0 for no limit; up to `slack` seconds of it may be saved up.

    What is urgent waits only for what is urgent; all else waits for both, so that over time the
    rate of both together is kept.
    """

    rate: float
    slack: float = 0.1
    _free_at: float = 0.0
    _urgent_at: float = 0.0

    def reserve(self, size: int, now: float, *, urgent: bool = False) -> float:
        """How many seconds to wait before `size` bytes may pass, of any steady clock."""
        if self.rate <= 0:
            return 0.0
        earliest, seconds = now - self.slack, size / self.rate
        start = max(self._urgent_at if urgent else self._free_at, earliest)
        if urgent:
            self._urgent_at = start + seconds
        self._free_at = max(self._free_at, earliest) + seconds
        return max(0.0, start - now)
