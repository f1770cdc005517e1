"""Who wants a seat awake, and since when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Demand:
    """Requests `in_flight` and `waiting` at all proxies, the oldest waiting since `waiting_since`.

    `idle_since`: since when there is none of either. `requests`: answered in all. `asked_since`:
    since when somebody other than a proxy wants the seat awake.
    """

    in_flight: int = 0
    waiting: int = 0
    waiting_since: float | None = None
    idle_since: float | None = None
    requests: int = 0
    asked_since: float | None = None

    @property
    def called(self) -> bool:
        """Whether somebody wants it awake."""
        return self.asked_since is not None or self.waiting > 0
