"""Who is served, who is held and who is refused: the proxy's decisions, without I/O or clock.

`Admission` is told what happened (a request came or left, an agent's order, a broken stream) and
answers with actions for its owner, the event loop. What it promises, whatever the order of events:

- a request is served only by a seat whose lease is granted, under that lease's generation;
- `Drained` is said only when nothing is in flight on the seat, and nothing new starts after it
  until the next grant;
- clients that wait for a model take turns; requests of one client are served in the order in which
  they came, those of a higher priority first;
- a seat in whose place another one may be gets nothing new, and one that is replaced is dropped:
  that is so once the registry confirms it, where there is one;
- a request waits no longer than it may, and is refused at once if by what was measured it would,
  unless nobody has been let in for `REFUSED_AT_MOST`;
- a request that left is counted nowhere, so that it can't wake a seat;
- the bodies of all requests that wait or are being sent stay within their budgets, and the wakes
  that clients cause within their quotas.

Times are seconds of the owner's monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median_low
from typing import TYPE_CHECKING

from kybernate.core.fairqueue import FairQueue, Place
from kybernate.types import SeatState
from proxy import routing
from proxy.actions import (
    ANYONE,
    NO_WISH,
    Abort,
    CheckAt,
    Close,
    DemandView,
    Drained,
    Outlook,
    Reject,
    Report,
    Rouse,
    SeatView,
    Serve,
    Verify,
)
from proxy.quotas import Bodies, Usage, Wakes
from proxy.seats import NO_LEASE, Queue, Seat, Seats, Wait, Word, end, load, newer, order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.types import NodeName, PodUid
    from proxy.actions import Action, Client, Limits, SeatInfo, Wish


_NOBODY = FairQueue()

REFUSED_AT_MOST = 600.0
"""Who is refused by a measured time wakes nothing, so that the next one is never measured: after so
many seconds of refusals one waits all the same."""


class Admission:
    """Seats, leases and waiting requests of one proxy. Single owner, not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seats = Seats()
        self._queues: dict[str, Queue] = {}
        self._in_flight: dict[int, Seat] = {}
        self._waiting: dict[int, tuple[str, Place]] = {}
        self._away = routing.Away(limits.name_memory)
        self._asleep: dict[str, SeatInfo] = {}
        self._asleep_as: dict[str, list[SeatInfo]] = {}
        self._start: float | None = None  # of a pod from zero, beyond what its bytes take (s)
        self._from_zero: dict[str, float] = {}  # by model: what its wakes from zero took (s)
        self._refused: dict[str, float] = {}  # by model: since when nobody woke it, by a figure
        self._bodies = Bodies(limits.bodies, limits.client_bodies)
        self._wakes = Wakes(limits.client_wakes, limits.namespace_wakes)
        self._proxies: dict[NodeName, int] = {}
        self._given_back: dict[NodeName, dict[PodUid, int]] = {}
        self._denied: set[NodeName] = set()  # whose agents' words were
        self.usage = Usage()
        self._resigned = False

    # --- requests -----------------------------------------------------------------------------

    def announce(self, ticket: int, size: int, client: Client = ANYONE) -> list[Action]:
        """A request says that its body has this size: Reject if there is no room for it now."""
        refusal = self._bodies.refuses(ticket, client.name, size)
        return [Reject(ticket, *refusal)] if refusal else []

    def receive(self, ticket: int, more: int, client: Client = ANYONE) -> list[Action]:
        """So many bytes of a request's body came, and are kept until `release`; or Reject."""
        refusal = self._bodies.take(ticket, client.name, more)
        return [Reject(ticket, *refusal)] if refusal else []

    def release(self, ticket: int) -> None:
        """The request's body is no more in memory, as it was sent or the request is over."""
        self._bodies.give_back(ticket)

    def arrive(
        self, ticket: int, model: str, now: float, client: Client = ANYONE, wish: Wish = NO_WISH
    ) -> list[Action]:
        """A request came whole: Serve or Reject, or it is held (CheckAt)."""
        routes = self.routes(model, now, client)
        if len(routes) != 1:
            return [Reject(ticket, *routing.refusal(model, routes))]
        if client.known:
            self.usage.saw(client.name)
        best = self._free(routes[0])
        if best is not None:
            return self._serve(ticket, client.name, best, now, now)
        return self._hold(ticket, routes[0], now, client, wish)

    def routes(self, name: str, now: float, client: Client = ANYONE) -> list[str]:
        """The full names of models that this name may stand for; see `routing`."""
        here = [info for info in self._named(name) if client.may(info.namespace)]
        left = [info for info in self._away.named(name, now) if client.may(info.namespace)]
        return routing.routes(here, name, self._limits.first_namespaces, left)

    def leave(self, ticket: int, now: float, *, answered: bool = False) -> list[Action]:
        """The request is over, or its client has gone. Unknown tickets are ignored."""
        seat = self._in_flight.pop(ticket, None)
        if seat is not None:
            self.usage.ends(ticket, seat.exit(ticket, now))
            seat.requests += answered
            ended = [*self._report(seat, urgent=False), *self._if_drained(seat)]
            return ended + (self._settle(seat.info.route, now) if self._limits.at_seat else [])
        return self._remove(ticket, now) if ticket in self._waiting else []

    def tick(self, now: float) -> list[Action]:
        """Refuse what waited too long, and end what a broken stream no longer covers."""
        actions: list[Action] = []
        for model in list(self._queues):
            actions += self._expire(model, now)
        for seat in self._seats:
            if seat.ends_at is not None and seat.ends_at <= now:
                seat.ends_at = None
                actions += end(seat, f"The connection to node {seat.info.node} was lost.")
        return actions

    # --- orders of an agent -------------------------------------------------------------------

    def connected(self, node: NodeName) -> list[Action]:
        """A new stream: the agent will name its seats and leases again; repeat our demand."""
        actions: list[Action] = []
        for seat in self._seats.on(node):
            seat.connected, seat.confirmed, seat.lease = True, False, NO_LEASE
            actions += self._report(seat, urgent=True)
        return actions

    def seat(self, info: SeatInfo, now: float) -> list[Action]:
        """A seat exists or changed. One in whose place another one is gets nothing more: its agent
        may be the last to hear of that, as when it was cut off."""
        if self._seats.is_replaced(info):
            return self._replaced(info.uid, now)
        seat = self._seats.get(info.uid)
        heard = seat is None or seat.info.predecessor != info.predecessor
        if seat is None:
            seat = self._add(info)
        if seat.info.route != info.route:
            self._away.left(seat.info, now)
        old, seat.confirmed = seat.info.route, True
        self._seats.change(seat, info)
        actions = self._hear(seat) if heard and info.predecessor else []
        actions += self._settle(info.route, now)
        if info.predecessor and seat.word is Word.CONFIRMED:
            actions += self._drop_predecessor(seat, now)
        return actions + (self._settle(old, now) if old != info.route else [])

    def _hear(self, seat: Seat) -> list[Action]:
        seat.word = Word.HEARD if self._limits.registry else Word.CONFIRMED
        info = seat.info
        verify = Verify(info.node, info.namespace, info.uid, info.predecessor)
        return [verify] if self._limits.registry else []

    def says(self, uid: PodUid, predecessor: PodUid) -> bool:
        """Whether it is still said that this seat's pod has taken that one's place."""
        seat = self._seats.get(uid)
        return seat is not None and seat.info.predecessor == predecessor

    def verified(
        self, uid: PodUid, predecessor: PodUid, now: float, *, confirmed: bool
    ) -> list[Action]:
        """The registry says whether this seat's pod has taken that one's place. An agent whose word
        it denies holds no other seat back by the next one."""
        seat = self._seats.get(uid)
        if seat is None or seat.info.predecessor != predecessor:
            return []
        seat.word = Word.CONFIRMED if confirmed else Word.DENIED
        if confirmed:
            return self._drop_predecessor(seat, now)
        self._denied.add(seat.info.node)
        return self._settle(seat.info.route, now)

    def _drop_predecessor(self, seat: Seat, now: float) -> list[Action]:
        before = self._seats.get(seat.info.predecessor)
        if before is None or not self._seats.is_replaced(before.info):
            return []
        return self._replaced(before.info.uid, now)

    def _may_be_replaced(self, seat: Seat) -> bool:
        """Whether another one may be in its place, as far as anybody who may be right says."""
        words = self._seats.words(seat.info)
        if not words:
            return False
        return any(word is Word.HEARD and node not in self._denied for word, node in words)

    def _replaced(self, uid: PodUid, now: float) -> list[Action]:
        seat = self._seats.get(uid)
        if seat is None:
            return []
        reason = f"Another pod continues with what the seat {seat.info.name} had."
        return [*end(seat, reason), *self.gone(uid, now)]

    def gone(self, uid: PodUid, now: float) -> list[Action]:
        """A seat is no more. What is in flight there ends by itself, with its connection."""
        seat = self._seats.remove(uid)
        if seat is None:
            return []
        self._away.left(seat.info, now)
        return self._settle(seat.info.route, now)

    def asleep(self, models: Iterable[SeatInfo], now: float) -> list[Action]:
        """These models, and no others, have Deployments that are scaled to zero, or were and have
        no pod on a node yet: who asks for one is held, and it is scaled up (Rouse). Of several of a
        model the soonest counts."""
        latest_first = sorted(models, key=lambda info: -info.wake)
        before, self._asleep = self._asleep, {info.route: info for info in latest_first}
        self._asleep_as = routing.by_model(self._asleep.values())
        for figures in (self._from_zero, self._refused):
            for model in [*figures]:
                if model not in self._asleep and not self._seats.of_route(model):
                    del figures[model]
        new = self._asleep.keys() - before.keys()
        return [action for model in sorted(new) for action in self._settle(model, now)]

    def grant(self, uid: PodUid, generation: int, now: float) -> list[Action]:
        """Requests may go to the seat. Also takes back a drain that is under way."""
        seat = self._seats.get(uid)
        if seat is None:
            return []
        lease, seat.ends_at = seat.lease.grant(generation), None
        seat.lease = lease.resign() if self._resigned else lease
        return [*self._if_drained(seat), *self._settle(seat.info.route, now)]

    def drain(self, node: NodeName, uid: PodUid, generation: int, now: float) -> list[Action]:
        """Start nothing new; Drained follows when nothing is in flight."""
        seat = self._seats.get(uid)
        if seat is None:
            idle = all(old.info.uid != uid for old in self._in_flight.values())
            return [Drained(node, uid, generation)] if idle else []
        if not seat.lease.is_meant(generation):
            return []
        seat.lease, seat.ends_at = seat.lease.drain(generation), None
        return [*self._if_drained(seat), *self._settle(seat.info.route, now)]

    def revoke(self, uid: PodUid, generation: int, now: float) -> list[Action]:
        """The lease is over: what is in flight is ended. A lease of another generation stays."""
        seat = self._seats.get(uid)
        if seat is None or not seat.lease.is_meant(generation):
            return []
        seat.lease = seat.lease.revoke(generation)
        reason = f"The seat of {seat.info.route} had to be given up before the answer was complete."
        return [*end(seat, reason), *self._settle(seat.info.route, now)]

    def disconnected(self, node: NodeName, now: float) -> list[Action]:
        """The stream broke: nothing new starts, what is in flight has `lease_break` seconds."""
        self._proxies.pop(node, None)
        self._given_back.pop(node, None)
        self._share()
        ends_at = now + self._limits.lease_break
        models = []
        for seat in self._seats.on(node):
            seat.connected, seat.lease, seat.ends_at = False, NO_LEASE, ends_at
            models.append(seat.info.route)
        actions: list[Action] = [CheckAt(ends_at)] if models else []
        for model in dict.fromkeys(models):
            actions += self._settle(model, now)
        return actions

    def replicas(self, node: NodeName, connected: int) -> None:
        """So many proxies have a stream to this node's agent.

        The middle one of all agents' words counts, so that no single one takes away what wakes
        clients may cause.
        """
        self._proxies[node] = max(1, connected)
        self._share()

    def takes_back(self, node: NodeName, *, yes: bool) -> None:
        """Whether this node's agent takes leases back that it hasn't asked for."""
        if yes:
            self._given_back.setdefault(node, {})
        else:
            self._given_back.pop(node, None)

    def given_back(self, node: NodeName) -> list[tuple[PodUid, int]]:
        """Leases that go back with the next demand, once; none that was granted again since, and
        none of a seat that is gone, where something may be in flight."""
        given = self._given_back.get(node, {})
        known = [(uid, lease) for uid, lease in given.items() if self._seats.get(uid)]
        still = [(uid, lease) for uid, lease in known if self.is_drained(uid, lease)]
        given.clear()
        return still

    def _share(self) -> None:
        self._wakes.share = 1.0 / (median_low(self._proxies.values()) if self._proxies else 1)

    def forget_unconfirmed(self, node: NodeName, now: float) -> list[Action]:
        """Drop seats that the agent did not name again on its new stream."""
        here = self._seats.on(node)
        gone = [seat.info.uid for seat in here if seat.connected and not seat.confirmed]
        return [action for uid in gone for action in self.gone(uid, now)]

    def forget_node(self, node: NodeName, now: float) -> list[Action]:
        """The node has left the cluster; all its seats are gone."""
        self._denied.discard(node)
        gone = [seat.info.uid for seat in self._seats.on(node)]
        return [action for uid in gone for action in self.gone(uid, now)]

    def refuse(self, uid: PodUid, reason: str, now: float) -> list[Action]:
        """This seat can't serve: who waits for its model is told so, unless another seat of it is
        asked."""
        seat = self._seats.get(uid)
        queue = self._queues.get(seat.info.route) if seat else None
        if seat is None or queue is None or queue.target != uid:
            return []
        tickets = [one for one, (model, _) in self._waiting.items() if model == seat.info.route]
        actions: list[Action] = [Reject(one, 502, "model_ended", reason) for one in tickets]
        for one in tickets:
            actions += self._remove(one, now)
        return actions

    # --- this proxy's end ---------------------------------------------------------------------

    def refuse_all(self, reason: str) -> list[Action]:
        """Refuse who waits and end what is in flight: their clients ask another proxy."""
        actions: list[Action] = [
            Reject(ticket, 503, "proxy_ends", reason, 1.0) for ticket in self._waiting
        ]
        self._waiting.clear()
        self._queues.clear()
        return actions + [Abort(ticket, reason) for ticket in sorted(self._in_flight)]

    def resign(self) -> list[Action]:
        """Give all leases back, also those that are still to come: nothing is served any more.

        Else agents would have to believe until `lease_break_s` that something may be in flight.
        """
        self._resigned = True
        actions: list[Action] = []
        for seat in self._seats:
            seat.lease = seat.lease.resign()
            actions += self._if_drained(seat)
        return actions

    # --- views --------------------------------------------------------------------------------

    def knows(self, uid: PodUid) -> bool:
        """Whether there is such a seat."""
        return self._seats.get(uid) is not None

    def owner(self, uid: PodUid) -> NodeName | None:
        """The node whose agent has named this seat; None of an unknown one."""
        seat = self._seats.get(uid)
        return seat.info.node if seat else None

    def demand(self, uid: PodUid, now: float) -> DemandView | None:
        """What to tell the agent about a seat; None if the seat is unknown."""
        seat = self._seats.get(uid)
        if seat is None:
            return None
        waiting = self._waiting_for(seat)
        oldest = waiting.oldest
        waited, trace = (max(0.0, now - oldest.came), oldest.trace) if oldest else (0.0, "")
        return DemandView(len(seat.in_flight), len(waiting), waited, seat.requests, trace)

    def outlook(self, ticket: int, now: float) -> Outlook | None:
        """How it stands with a request that waits; None if it doesn't."""
        if ticket not in self._waiting:
            return None
        model, place = self._waiting[ticket]
        target = self._queues[model].target
        seat = self._seats.get(target) if target else None
        nobody = "scaled to zero" if self._sleeps(model) else "no seat can wake now"
        told = seat.info.told if seat else nobody
        return Outlook(now - place.came, self.left(model, now), told)

    def is_drained(self, uid: PodUid, generation: int) -> bool:
        """Whether `Drained` for this lease is still true."""
        seat = self._seats.get(uid)
        if seat is None:
            return True
        ends = seat.lease.ends and seat.lease.generation == generation
        return ends and not seat.in_flight

    def seats(self) -> Iterator[SeatView]:
        """All seats, by model, node and name."""
        for seat in sorted(self._seats, key=order):
            yield SeatView(
                seat.info,
                seat.connected,
                seat.open,
                len(seat.in_flight),
                len(self._waiting_for(seat)),
            )

    def waiting(self) -> dict[str, int]:
        """Requests held, by model."""
        return {model: len(queue.waiting) for model, queue in self._queues.items()}

    @property
    def body_bytes(self) -> int:
        """Bytes of requests in memory."""
        return self._bodies.total

    def left(self, model: str, now: float) -> float | None:
        """How long a request that waits for the model, or would from now on, is expected to (s)."""
        left = self._left(model, now)
        return left.seconds if left else None

    def models(self, now: float, client: Client = ANYONE) -> dict[str, str]:
        """All models that have a seat, whatever its state: full name → the shortest for it."""
        return routing.names(
            self._open_to(client), self._limits.first_namespaces, self._left_of(client, now)
        )

    def wait_at_most(self, seconds: float) -> None:
        """Requests that come from now on."""
        self._limits = replace(self._limits, wait=seconds)

    # --- inside -------------------------------------------------------------------------------

    def _left(self, model: str, now: float) -> Wait | None:
        queue = self._queues.get(model)
        if queue is not None and queue.asked:
            return queue.left(now)
        seat = self._cheapest(model, None)
        if seat is not None:
            return seat.expected
        return self._wake_from_zero(model) if self._sleeps(model) else None

    def _wake_from_zero(self, model: str) -> Wait | None:
        """What the model's own ones took, else a guess by its bytes and by others' starts."""
        if model in self._from_zero:
            return Wait(self._from_zero[model], measured=True)
        takes = self._asleep[model].wake
        return Wait(takes + (self._start or 0.0), measured=False) if takes else None

    def _named(self, name: str) -> Iterator[SeatInfo]:
        """What a request for this name may mean: a full name, or a plain one."""
        for seat in (*self._seats.of_route(name), *self._seats.of_model(name)):
            yield seat.info
        if name in self._asleep:
            yield self._asleep[name]
        yield from self._asleep_as.get(name, ())

    def _open_to(self, client: Client) -> list[SeatInfo]:
        every = (*(seat.info for seat in self._seats), *self._asleep.values())
        return [info for info in every if client.may(info.namespace)]

    def _left_of(self, client: Client, now: float) -> list[SeatInfo]:
        return [info for info in self._away.seats(now) if client.may(info.namespace)]

    def _add(self, info: SeatInfo) -> Seat:
        """A new seat; what is still in flight on a forgotten one of the same pod counts on."""
        tickets = {t for t, old in self._in_flight.items() if old.info.uid == info.uid}
        seat = Seat(info, in_flight=tickets)
        for old in (self._in_flight[ticket] for ticket in tickets):
            seat.share, seat.shared_at = old.share, old.shared_at
        self._in_flight.update(dict.fromkeys(tickets, seat))
        self._seats.add(seat)
        return seat

    def _serve(self, ticket: int, client: str, seat: Seat, came: float, now: float) -> list[Action]:
        if not seat.open:
            raise AssertionError("a seat without a lease was chosen")
        self.usage.begins(ticket, client, seat.info.namespace, seat.enter(ticket, now))
        self._in_flight[ticket] = seat
        return [
            Serve(ticket, seat.info, seat.lease.generation, max(0.0, now - came)),
            *self._report(seat, urgent=False),
        ]

    def _free(self, model: str) -> Seat | None:
        """The seat that the next request goes to, the one with the least."""
        most = self._limits.at_seat
        known = self._seats.of_route(model)
        free = [s for s in known if s.open and not 0 < most <= len(s.in_flight)]
        best = min(free, key=load, default=None)
        if best is None or not self._may_be_replaced(best):
            return best
        return min((s for s in free if not self._may_be_replaced(s)), key=load, default=None)

    def _only_full(self, model: str) -> bool:
        """Whether nothing is left to wake, and who comes waits for others to be answered."""
        some = any(seat.open for seat in self._candidates(model))
        return some and self._cheapest(model, None) is None

    def _hold(
        self, ticket: int, model: str, now: float, client: Client, wish: Wish
    ) -> list[Action]:
        at_hand = any(seat.at_hand for seat in self._candidates(model))
        left = None if at_hand else self._left(model, now)
        takes = left.seconds if left else 0.0
        most = math.inf if wish.patience is None else wish.patience
        late = left is not None and left.measured and takes > most
        if late and now - self._refused.setdefault(model, now) < REFUSED_AT_MOST:
            reason = (
                f"{model} is expected to answer in {takes:.1f} s, and the request waits for at "
                f"most {most:g} s; nothing was woken for it."
            )
            return [Reject(ticket, 503, "not_in_time", reason, takes)]
        self._refused.pop(model, None)
        queue = self._queues.get(model) or Queue()
        refused: list[Action] = []
        causes_wake = not (queue.waiting or at_hand or self._only_full(model))
        if len(queue.waiting) >= self._limits.waiting:
            goes = queue.waiting.goes_for(client.name)
            said = f"{len(queue.waiting)} requests wait for {model} already; try again later."
            refused = [
                Reject(goes.ticket if goes else ticket, 429, "too_many_waiting", said, takes)
            ]
            if goes is None:
                return refused
            queue.waiting.remove(goes.ticket, goes.client)
            del self._waiting[goes.ticket]
        elif causes_wake:
            refusal = self._wakes.take(client.name, model.partition("/")[0], now)
            if refusal:
                return [Reject(ticket, *refusal)]
            self.usage.wakes[self.usage.name(client.name)] += 1
        self._queues[model] = queue
        wait = self._limits.wait if wish.patience is None else wish.patience
        until = now + min(wait, self._limits.wait)
        place = Place(ticket, client.name, now, until, wish.priority, wish.trace)
        queue.waiting.add(place)
        self._waiting[ticket] = model, place
        return [CheckAt(until), *self._aim(model, now, changed=True), *refused]

    def _remove(self, ticket: int, now: float) -> list[Action]:
        model, place = self._waiting.pop(ticket)
        self._queues[model].waiting.remove(ticket, place.client)
        return self._settle(model, now, changed=True)

    def _expire(self, model: str, now: float) -> list[Action]:
        queue = self._queues[model]
        late = queue.waiting.late(now)
        if not late:
            return []
        left = self.left(model, now) or 0.0
        actions: list[Action] = []
        for place in late:
            del self._waiting[place.ticket]
            queue.waiting.remove(place.ticket, place.client)
            why = self._why_late(model, place.until - place.came)
            actions.append(Reject(place.ticket, *why, left))
        return actions + self._settle(model, now, changed=True)

    def _why_late(self, model: str, waited: float) -> tuple[int, str, str]:
        seats = [seat.info for seat in self._seats.of_route(model)]
        if seats and all(info.state is SeatState.FAILED for info in seats):
            why = seats[0].reason or "its workload failed"
            return 503, "seat_failed", f"No seat of {model} can be woken: {why}"
        states = ", ".join(f"{info.node}/{info.name} is {info.told}" for info in seats)
        gone = "its Deployment was scaled to zero" if model in self._asleep else "no seat is left"
        now = states or gone
        reason = f"{model} did not wake within {waited:g} s ({now}); try again later."
        return 429, "wait_limit", reason

    def _settle(self, model: str, now: float, *, changed: bool = False) -> list[Action]:
        """After a seat of the model changed: serve who waits, or ask another seat to wake."""
        queue = self._queues.get(model)
        if queue is None:
            return []
        actions: list[Action] = []
        while queue.waiting:
            seat = self._free(model)
            if seat is None:
                break
            if seat.info.uid == queue.target:
                seat.learn(queue.asked_as, now - queue.since)
                queue.target = None
            if queue.roused is not None:
                self._learn_start(model, queue, now)
            place = queue.waiting.take()
            del self._waiting[place.ticket]
            changed = True
            actions += self._serve(place.ticket, place.client, seat, place.came, now)
        actions += self._aim(model, now, changed=changed)
        if not queue.waiting:
            del self._queues[model]
        return actions

    def _learn_start(self, model: str, queue: Queue, now: float) -> None:
        """Who waited for a pod that was to come is served."""
        if queue.roused is None:
            return
        took, queue.roused = now - queue.roused, None
        self._from_zero[model] = newer(self._from_zero.get(model, took), took)
        if queue.bytes_take:
            start = max(0.0, took - queue.bytes_take)
            self._start = newer(start if self._start is None else self._start, start)

    def _aim(self, model: str, now: float, *, changed: bool) -> list[Action]:
        """Choose which seat carries the waiting requests; report where that changes anything."""
        queue = self._queues[model]
        old = self._seats.get(queue.target) if queue.target else None
        new = self._cheapest(model, old) if queue.waiting else None
        if new is None:
            queue.target = None
        elif new is not old:
            queue.aim(new, now)
        if new is None and queue.waiting and self._sleeps(model):
            if queue.roused is None:
                queue.rouse(self._asleep[model].wake, self._wake_from_zero(model), now)
            return [*(self._report(old, urgent=True) if old else ()), Rouse(model)]
        if old is new:
            return self._report(new, urgent=len(queue.waiting) == 1) if new and changed else []
        # A seat that serves what waited is awake: that nothing waits there can be told later.
        reports = self._report(old, urgent=new is not None or not old.open) if old else []
        if new is None:
            return reports
        return [*reports, *self._give_back(new), *self._report(new, urgent=True)]

    def _give_back(self, seat: Seat) -> list[Action]:
        """Idle leases of its group, unasked: most often one of them must leave for it, and asking
        takes two hops. What needn't leave is granted again at once."""
        given = self._given_back.get(seat.info.node)
        if given is None:
            return []
        actions: list[Action] = []
        for other in self._seats.on(seat.info.node):
            if not other.idle or self._waiting_for(other) or other.info.group != seat.info.group:
                continue
            other.lease = other.lease.give_back()
            given[other.info.uid] = other.lease.generation
            actions.append(Close(other.info.uid))
        return actions

    def _sleeps(self, model: str) -> bool:
        states = {seat.info.state for seat in self._seats.of_route(model)}
        return model in self._asleep and states <= {SeatState.GONE}

    def _cheapest(self, model: str, old: Seat | None) -> Seat | None:
        # What is open is full; another one of its group could only take its place.
        known = self._candidates(model)
        full = {(seat.info.node, seat.info.group) for seat in known if seat.open}
        usable = [
            seat
            for seat in known
            if seat.connected
            and seat.info.state is not SeatState.GONE
            and (seat.info.node, seat.info.group) not in full
        ]
        if not usable:
            return None
        least = min(seat.wake_cost for seat in usable)
        cheap = [seat for seat in usable if seat.wake_cost == least]
        # Of those that proxies ask for they all choose the first by name, so that one is woken.
        awaited = min((s for s in cheap if s.info.awaited), key=lambda s: s.info.uid, default=None)
        if old in usable and old.wake_cost <= least:
            return awaited if awaited and awaited.info.uid < old.info.uid else old
        if awaited:
            return awaited
        # 0 is of an agent that doesn't say: then times tell nothing of which one is faster.
        timed = all(seat.info.wake for seat in cheap)
        return min(cheap, key=lambda seat: self._wake_order(seat, timed=timed))

    def _candidates(self, model: str) -> list[Seat]:
        known = self._seats.of_route(model)
        return [seat for seat in known if not self._may_be_replaced(seat)]

    def _wake_order(self, seat: Seat, *, timed: bool) -> tuple[int, int, float, float, str]:
        wake = seat.info.wake if timed else 0.0
        # A whole second counts more than having to wait for others, less of it doesn't.
        return (
            int(wake),
            self._rivals(seat),
            wake,
            seat.info.last_wake_ms,
            str(seat.info.uid),
        )

    def _rivals(self, seat: Seat) -> int:
        """Requests on other seats of the same group: they would have to be drained first."""
        return sum(
            len(other.in_flight) + len(self._waiting_for(other))
            for other in self._seats.on(seat.info.node)
            if other is not seat and other.info.group == seat.info.group
        )

    def _waiting_for(self, seat: Seat) -> FairQueue:
        queue = self._queues.get(seat.info.route)
        return queue.waiting if queue and queue.target == seat.info.uid else _NOBODY

    def _if_drained(self, seat: Seat) -> list[Action]:
        if not seat.lease.ends or seat.in_flight:
            return []
        return [Drained(seat.info.node, seat.info.uid, seat.lease.generation)]

    def _report(self, seat: Seat, *, urgent: bool) -> list[Action]:
        if self._seats.get(seat.info.uid) is not seat:
            return []
        return [Report(seat.info.node, seat.info.uid, urgent)]
