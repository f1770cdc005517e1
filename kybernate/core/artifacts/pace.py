"""A limit of bytes per second that several threads keep together. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """`rate` bytes a second, 0.0 for no limit; up to `slack` seconds of it may be saved up."""

    rate: float
    slack: float = 0.1
    _free_at: float = 0.0

    def reserve(self, size: int, now: float) -> float:
        """How many seconds to wait before `size` bytes may pass, of any steady clock."""
        if self.rate <= 0:
            return 0.0
        start = max(self._free_at, now - self.slack)
        self._free_at = start + size / self.rate
        return max(0.0, start - now)
