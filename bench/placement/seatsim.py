"""Seats of one GPU in virtual time: the product's swap decision, with traffic instead of a machine.

Requests for an active seat run side by side, each for its own time; those for a parked one wait
until the decision has parked another seat and woken theirs. Parking and waking take the time that
the tiers' table says. Nothing is random.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kybernate.core.swap.swap import ActionKind, decided, next_check
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

GPU = GpuUuid("GPU-0")
GROUP = GroupName("G0")


@dataclass(frozen=True, slots=True)
class Request:
    """Arrival and length in seconds."""

    at: float
    length: float


@dataclass(slots=True)
class Outcome:
    """What became of one seat's requests: the wait of each in seconds, and how often it woke.

    `calls` are the waits of those that came after quiet, when nothing was in flight or waiting.
    """

    waits: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    wakes: int = 0


@dataclass(slots=True)
class _Seat:
    view: SeatView
    switch: float
    outcome: Outcome = field(default_factory=Outcome)
    waiting: list[Request] = field(default_factory=list)
    in_flight: int = 0
    call: Request | None = None


def simulate(
    traffic: Sequence[Iterable[Request]],
    switch: Sequence[float],
    policy: SwapPolicy | None = None,
    watch: Callable[[float, int, int, int], None] | None = None,
) -> list[Outcome]:
    """Play the requests of several seats that share one GPU, in the order of their arrival.

    `switch` are the seconds that each takes out of GPU memory and in again, half for each way.
    `watch` is told time, seat, requests in flight and requests waiting after each change of them.
    """
    return _Gpu(switch, policy or SwapPolicy(), watch).run(traffic)


class _Gpu:
    def __init__(
        self,
        switch: Sequence[float],
        policy: SwapPolicy,
        watch: Callable[[float, int, int, int], None] | None,
    ) -> None:
        self._policy = policy
        self._watch = watch
        self._seats = [_Seat(_parked(number), each) for number, each in enumerate(switch)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._now = 0.0
        self._check_at = float("inf")

    def run(self, traffic: Sequence[Iterable[Request]]) -> list[Outcome]:
        for number, requests in enumerate(traffic):
            self._next(number, iter(requests))
        while self._events:
            self._now, _, call = heapq.heappop(self._events)
            call()
            self._decide()
        return [seat.outcome for seat in self._seats]

    def _at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), call))

    def _next(self, number: int, requests: Iterable[Request]) -> None:
        """Schedule the next arrival; one at a time, so that the heap stays small."""
        rest = iter(requests)
        request = next(rest, None)
        if request is None:
            return

        def arrive() -> None:
            self._arrive(number, request)
            self._next(number, rest)

        self._at(request.at, arrive)

    def _arrive(self, number: int, request: Request) -> None:
        seat = self._seats[number]
        if not seat.in_flight and not seat.waiting:
            seat.call = request
        seat.waiting.append(request)
        if seat.view.state is SeatState.ACTIVE:
            self._begin(number)
        else:
            self._told(number)

    def _begin(self, number: int) -> None:
        seat = self._seats[number]
        for request in seat.waiting:
            seat.outcome.waits.append(self._now - request.at)
            if request is seat.call:
                seat.outcome.calls.append(self._now - request.at)
            self._at(self._now + request.length, lambda: self._finish(number))
        seat.in_flight += len(seat.waiting)
        seat.waiting.clear()
        self._told(number)

    def _finish(self, number: int) -> None:
        self._seats[number].in_flight -= 1
        self._told(number)

    def _told(self, number: int) -> None:
        seat = self._seats[number]
        busy = seat.in_flight or seat.waiting
        seat.view = replace(
            seat.view,
            in_flight=seat.in_flight,
            waiting=len(seat.waiting),
            waiting_since=seat.waiting[0].at if seat.waiting else None,
            idle_since=None if busy else self._now,
            drained=not seat.in_flight,
        )
        if self._watch is not None:
            self._watch(self._now, number, seat.in_flight, len(seat.waiting))

    def _decide(self) -> None:
        acted = True
        while acted:
            view = SwapView(tuple(s.view for s in self._seats), {GPU: 1 << 30}, {GROUP: 1})
            found = decided(view, self._policy, self._now)
            acted = bool(found.actions)
            for action in found.actions:
                self._act(action.kind, int(action.uid))
        when = next_check(view, self._policy, self._now, found)
        if when is not None and (when < self._check_at or self._check_at <= self._now):
            self._check_at = when
            self._at(when + 1e-6, lambda: None)

    def _act(self, kind: ActionKind, number: int) -> None:
        seat = self._seats[number]
        match kind:
            case ActionKind.DRAIN:
                self._set(number, SeatState.DRAINING)
            case ActionKind.UNDRAIN:
                self._activate(number)
            case ActionKind.PARK:
                self._set(number, SeatState.PARKING)
                self._at(self._now + seat.switch / 2, lambda: self._set(number, SeatState.PARKED))
            case ActionKind.WAKE:
                self._set(number, SeatState.WAKING)
                self._at(self._now + seat.switch / 2, lambda: self._activate(number))
                seat.outcome.wakes += 1
            case _:  # REVOKE would end requests; here they end by themselves
                self._set(number, SeatState.DRAINING)
                seat.view = replace(seat.view, drained=True)

    def _activate(self, number: int) -> None:
        self._set(number, SeatState.ACTIVE)
        self._begin(number)

    def _set(self, number: int, state: SeatState) -> None:
        seat, serving = self._seats[number], (SeatState.ACTIVE, SeatState.DRAINING)
        came = state is SeatState.ACTIVE and seat.view.state not in serving
        seat.view = replace(
            seat.view,
            state=state,
            active_since=self._now if came else seat.view.active_since,
            drain_since=self._now if state is SeatState.DRAINING else None,
        )


def _parked(number: int) -> SeatView:
    return SeatView(
        uid=PodUid(str(number)),
        name=SeatName(f"G0-seat-{number}"),
        group=GROUP,
        gpus=frozenset({GPU}),
        vram=None,
        state=SeatState.PARKED,
        bound_at=0.0,
        idle_since=0.0,
        drained=True,
    )
