"""Limits of rate: a bucket of tokens. Pure; times in seconds of any steady clock."""

from __future__ import annotations

from kybernate.dataclass import dataclass


@dataclass(slots=True)
class Bucket:
    """`rate` tokens a second, at most `burst` of them at once. Starts full."""

    rate: float
    burst: float
    _tokens: float = -1.0
    _at: float = 0.0

    def take(self, now: float) -> float:
        """Take one: 0.0 if there was one, else the seconds until there is."""
        if self._tokens < 0:
            self._tokens, self._at = self.burst, now
        self._tokens = min(self.burst, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self.rate
