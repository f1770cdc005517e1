"""The one owner of the proxy's decisions: feeds events to `Admission` and carries out its actions.

Everything here runs on the event loop's thread; nothing awaits between a decision and its effect.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Protocol, Self

from proxy.actions import (
    NO_WISH,
    Abort,
    CheckAt,
    Close,
    Drained,
    Reject,
    Report,
    Rouse,
    Serve,
    Verify,
)
from proxy.openai import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from kybernate.types import NodeName, PodUid
    from proxy.actions import Action, Client, SeatInfo, Wish
    from proxy.admission import Admission


_LAST_WORDS = 1.0
"""Seconds, of those that requests have at the end, in which clients hear why theirs is over."""


class Link(Protocol):
    """Carries demand to one agent."""

    def report(self, uid: PodUid, *, urgent: bool) -> None:
        """The seat's demand changed."""

    def drained(self, uid: PodUid, generation: int) -> None:
        """Nothing is in flight on this lease any more."""


class Watching(Protocol):
    """Notes what happens at a desk, for people."""

    def seat(self, info: SeatInfo) -> None:
        """A seat exists or changed."""

    def gone(self, uid: PodUid) -> None:
        """A seat is no more."""

    def touched(self) -> None:
        """Something may have changed, such as who waits."""

    def over(self, model: str, status: int, held: float) -> None:
        """A request for this model (empty for one that no seat serves) was answered, or given up;
        it was held so long (s)."""


class Connections(Protocol):
    """Kept connections to seats."""

    def drop(self, uid: PodUid) -> None:
        """Close all connections to this seat."""


class Flight:
    """One request in flight: an async context that ends early if the lease does.

    Leaving the context says that the request is over. Raises ApiError (503) if it was aborted.
    """

    def __init__(self, serve: Serve, desk: Desk) -> None:
        self.serve = serve
        self.answered = False
        """Set it once the whole answer was passed on."""
        self._desk = desk
        self._aborted: str | None = None
        self._scope: asyncio.Timeout | None = None

    def abort(self, reason: str) -> None:
        """End the request now; the sentence goes to the client."""
        self._aborted = reason
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        if self._aborted is not None:
            self.abort(self._aborted)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scope, self._scope = self._scope, None
        try:
            if scope is not None:
                await scope.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            raise ApiError(503, "seat_revoked", self._aborted or "The seat was lost.") from timeout
        finally:
            self._desk.leave(self.serve.ticket, answered=self.answered)


class Desk:
    """Admits requests, one `Flight` each, and obeys agents. `rouse` has a model's Deployment scaled
    up: called as often as somebody new waits for it. `verify` has the registry asked; `verified`
    tells what it said."""

    def __init__(
        self,
        admission: Admission,
        connections: Connections,
        watching: Watching | None = None,
        rouse: Callable[[str], None] = lambda _: None,
        verify: Callable[[Verify], None] = lambda _: None,
    ) -> None:
        self.admission = admission
        self.links: dict[NodeName, Link] = {}
        self._connections = connections
        self._watching = watching
        self._rouse = rouse
        self._verify = verify
        self._held: dict[int, asyncio.Future[Flight]] = {}
        self._flights: dict[int, Flight] = {}
        self._tickets = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    @property
    def now(self) -> float:
        """The time that decisions are made with (s, monotonic)."""
        return self._loop.time()

    def ticket(self) -> int:
        """A number for a new request."""
        return next(self._tickets)

    def announce(self, ticket: int, client: Client, size: int) -> None:
        """The request says that its body has `size` bytes. Raises ApiError if they don't fit."""
        self._refuse(self.admission.announce(ticket, size, client))

    def receive(self, ticket: int, client: Client, more: int) -> None:
        """So many bytes of its body came. Raises ApiError if they must not be kept."""
        self._refuse(self.admission.receive(ticket, more, client))

    @staticmethod
    def _refuse(actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Reject):
                raise _error(action)

    async def admit(self, ticket: int, model: str, client: Client, wish: Wish = NO_WISH) -> Flight:
        """Wait for a seat of the model. Raises ApiError if the request is refused."""
        actions = self.admission.arrive(ticket, model, self.now, client, wish)
        first, rest = actions[0], actions[1:]
        if isinstance(first, Serve):
            flight = self._fly(first)
            self.apply(rest)
            return flight
        if isinstance(first, Reject):
            raise _error(first)
        held: asyncio.Future[Flight] = self._loop.create_future()
        self._held[ticket] = held
        self.apply(actions)
        try:
            return await held
        except asyncio.CancelledError:
            self.leave(ticket)
            raise
        finally:
            self._held.pop(ticket, None)

    def leave(self, ticket: int, *, answered: bool = False) -> None:
        """The request is over, or its client has gone."""
        flight = self._flights.pop(ticket, None)
        self.apply(self.admission.leave(ticket, self.now, answered=answered))
        if flight is not None:
            self._drop_if_gone(flight.serve.seat.uid)

    def end_within(self, seconds: float) -> None:
        """Requests that would take longer are refused, or ended with a sentence."""
        self._loop.call_later(max(0.0, seconds - _LAST_WORDS), self._end)

    def _end(self) -> None:
        self.apply(self.admission.refuse_all("The proxy is being stopped: ask again."))

    def seat(self, info: SeatInfo) -> None:
        """An agent says that a seat exists or changed."""
        if self._watching is not None:
            self._watching.seat(info)
        self.apply(self.admission.seat(info, self.now))

    def seat_gone(self, uid: PodUid) -> None:
        """An agent says that a seat is no more."""
        if self._watching is not None:
            self._watching.gone(uid)
        self.apply(self.admission.gone(uid, self.now))
        self._drop_if_gone(uid)

    def asleep(self, models: Iterable[SeatInfo]) -> None:
        """Which models' Deployments are scaled to zero."""
        self.apply(self.admission.asleep(models, self.now))

    def verified(self, said: Verify, *, confirmed: bool) -> None:
        """The registry says whether that pod has taken the other one's place."""
        told = said.uid, said.predecessor
        self.apply(self.admission.verified(*told, self.now, confirmed=confirmed))
        self._drop_if_gone(said.predecessor)

    def over(self, model: str, status: int, held: float) -> None:
        """A request is over; see `Watching`."""
        if self._watching is not None:
            self._watching.over(model, status, held)

    def apply(self, actions: Iterable[Action]) -> None:
        """Carry out what was decided, in order."""
        if self._watching is not None:
            self._watching.touched()
        for action in actions:
            match action:
                case Report(node, uid, urgent):
                    if link := self.links.get(node):
                        link.report(uid, urgent=urgent)
                case CheckAt(at):
                    self._loop.call_at(at, self._tick, at)
                case Close(uid):
                    self._connections.drop(uid)
                case Drained(node, uid, generation):
                    self._connections.drop(uid)
                    if link := self.links.get(node):
                        link.drained(uid, generation)
                case Serve() | Reject() | Abort() | Rouse() | Verify():
                    self._tell(action)

    def _tell(self, action: Serve | Reject | Abort | Rouse | Verify) -> None:
        if isinstance(action, Rouse):
            self._rouse(action.model)
            return
        if isinstance(action, Verify):
            self._verify(action)
            return
        if isinstance(action, Abort):
            if flight := self._flights.get(action.ticket):
                flight.abort(action.reason)
            return
        held = self._held.get(action.ticket)
        if isinstance(action, Serve):
            flight = self._fly(action)
            if held is not None and not held.done():
                held.set_result(flight)
        elif held is not None and not held.done():
            held.set_exception(_error(action))

    def _fly(self, serve: Serve) -> Flight:
        flight = self._flights[serve.ticket] = Flight(serve, self)
        return flight

    def _tick(self, at: float) -> None:
        # A timer may run a clock tick early.
        self.apply(self.admission.tick(max(at, self.now)))

    def _drop_if_gone(self, uid: PodUid) -> None:
        there = (flight.serve.seat.uid == uid for flight in self._flights.values())
        if not self.admission.knows(uid) and not any(there):
            self._connections.drop(uid)


def _error(refused: Reject) -> ApiError:
    return ApiError(refused.status, refused.code, refused.reason, refused.retry_after)
