"""Who wants a seat awake, and since when."""

from __future__ import annotations

from kybernate.dataclass import dataclass


@dataclass(slots=True)
class Demand:
    """Requests `in_flight` and `waiting` at all proxies, the oldest waiting since `waiting_since`.

    `idle_since`: since when there is none of either. `requests`: answered in all. `asked_since`:
    since when somebody other than a proxy wants the seat awake. `trace`: `traceparent` of the
    request that has waited longest.
    """

    in_flight: int = 0
    waiting: int = 0
    waiting_since: float | None = None
    idle_since: float | None = None
    requests: int = 0
    asked_since: float | None = None
    trace: str = ""

    @property
    def called(self) -> bool:
        """Whether somebody wants it awake."""
        return self.asked_since is not None or self.waiting > 0

    def answered(self, requests: int) -> None:
        """So many more requests were answered."""
        self.requests += requests

    def counted(
        self, in_flight: int, waiting: int, since: float | None, now: float, trace: str = ""
    ) -> None:
        """What all proxies report together."""
        self.trace = trace
        busy_before = self.in_flight or self.waiting
        self.in_flight, self.waiting, self.waiting_since = in_flight, waiting, since
        if in_flight or waiting:
            self.idle_since = None
        elif busy_before or self.idle_since is None:
            self.idle_since = now

    def awake(self, now: float) -> None:
        """It serves: who asked for that has it, and without requests it is idle from now on."""
        self.asked_since = None
        self.idle_since = None if self.in_flight or self.waiting else now

    def ask(self, now: float) -> None:
        """Somebody other than a proxy wants it awake."""
        self.asked_since = now

    def call_off(self) -> None:
        """Nobody but proxies wants it awake any more."""
        self.asked_since = None
