"""Wake on connect: what arrives at a parked seat's sockets calls it, and what is outstanding there
keeps it.

To the rest of the agent the node's sockets are one more proxy. It holds a lease on every active
seat; asked to drain one, it looks at the seat's connections, and lets go once no request is
outstanding on them. So a seat that answers a request which came by no proxy isn't parked under it,
for as long as the drain limit, and nobody looks at sockets while nobody needs the seat's GPUs. If
what it saw had the drain taken back, it continues looking until that is answered: nobody else would
ever say so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from kybernate.core.swap.traffic import Traffic
from kybernate.errors import DeadlineError
from kybernate.lib.retry import Pauses
from kybernate.ports import WatchTerms
from kybernate.types import SeatState
from nodeagent import metrics
from nodeagent.seat.leases import Demand

if TYPE_CHECKING:
    from kybernate.ports import Arrivals, Freezer, WatchReport
    from kybernate.types import PodUid
    from nodeagent.seat.leases import Outbox
    from nodeagent.seat.operatorside import OperatorSide
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

SOCKETS = "sockets"
"""The name under which the node's sockets hold leases; no proxy may call itself so."""

DOUBT = 5.0
"""Seconds for which a tie (see `core.traffic`) counts as a request, where no proxy knows better."""

_LOOK_DEADLINE = 2.0
_LOOKS = Pauses(0.002, 0.25, growth=1.5, jitter=0.0)
_LOOK_ON = 1.0
"""Seconds between looks at a request for whose sake a drain was taken back: it may take hours."""


class GuardedFreezer:
    """Implements `ports.Freezer` by another, and ends the watch of a tree before each thaw."""

    def __init__(self, freezer: Freezer, arrivals: Arrivals) -> None:
        self._freezer = freezer
        self._arrivals = arrivals
        self._frozen: dict[str, bool] = {}
        self._claimed: set[str] = set()

    def claim(self, handle: str) -> bool | None:
        """None if it isn't frozen, or was claimed since it was.

        Else whether it was found frozen, rather than frozen through here.
        """
        if handle not in self._frozen or handle in self._claimed:
            return None
        self._claimed.add(handle)
        return self._frozen[handle]

    def place(self, tree_pid: int) -> str:
        """As the freezer's."""
        return self._freezer.place(tree_pid)

    async def freeze(self, handle: str, deadline: float) -> None:
        """As the freezer's."""
        found = self._frozen.get(handle, False)
        self.forget(handle)
        await self._freezer.freeze(handle, deadline)
        self._frozen[handle] = found

    def thaw(self, handle: str) -> None:
        """As the freezer's, once no duplicate of its sockets is open."""
        self.forget(handle)
        self._freezer.thaw(handle)

    def frozen(self) -> frozenset[str]:
        """As the freezer's."""
        found = self._freezer.frozen()
        for handle in found:
            self._frozen.setdefault(handle, True)
        return found

    def pids(self, handle: str) -> tuple[int, ...]:
        """As the freezer's."""
        return self._freezer.pids(handle)

    async def kill(self, handle: str, deadline: float) -> None:
        """As the freezer's, once no duplicate of its sockets is open."""
        self.forget(handle)
        await self._freezer.kill(handle, deadline)

    def forget(self, handle: str) -> None:
        """Close the duplicates of its sockets; idempotent."""
        self._arrivals.unwatch(handle)
        self._frozen.pop(handle, None)
        self._claimed.discard(handle)


class Leasing(Protocol):
    """Who keeps what proxies hold and want."""

    def proxy_joined(self, name: str, outbox: Outbox) -> None:
        """A proxy's stream begins."""
        ...

    def proxy_drained(self, name: str, uid: PodUid, generation: int) -> None:
        """A proxy has nothing in flight on this lease."""
        ...

    def proxy_demand(self, name: str, uid: PodUid, demand: Demand) -> None:
        """A proxy's demand for a seat changed."""
        ...


class Arriving:
    """Implements `node.Observer`, `leases.Outbox`. `freezer` is the one that the node uses."""

    def __init__(
        self,
        leases: Leasing,
        operators: OperatorSide,
        arrivals: Arrivals,
        freezer: GuardedFreezer,
    ) -> None:
        self._leases = leases
        self._operators = operators
        self._node = operators.node
        self._arrivals = arrivals
        self._freezer = freezer
        self._handles: dict[PodUid, str] = {}
        self._called: set[PodUid] = set()
        self._granted: dict[PodUid, tuple[float, int]] = {}
        self._unanswered: dict[PodUid, frozenset[tuple[int, int]]] = {}
        self._drains: dict[PodUid, asyncio.Task[None]] = {}
        self._reported: dict[PodUid, int] = {}
        self._complaints: dict[PodUid, str] = {}

    def join(self) -> None:
        """Take part in leases from now on; once, after the seats were recovered."""
        self._leases.proxy_joined(SOCKETS, self)

    # --- parked seats -------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """Watch its sockets if it has just been parked."""
        if not seat.tree.handle:
            self._let_go_of(seat.uid)
        if seat.state is SeatState.DUMPING and seat.contact.unlooked:
            self._arrivals.hasten(seat.tree.handle)
        if seat.state is not SeatState.PARKED or seat.ending.asked:
            return
        again = self._freezer.claim(seat.tree.handle)
        if again is not None:
            self._watch(seat, again)

    def seat_gone(self, seat: Seat) -> None:
        """Forget it."""
        self._let_go_of(seat.uid)
        self._called.discard(seat.uid)
        for known in (self._granted, self._unanswered, self._reported, self._complaints):
            known.pop(seat.uid, None)
        self._stop(seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Nothing of it concerns sockets."""

    def _watch(self, seat: Seat, again: bool) -> None:
        uid = seat.uid
        terms = WatchTerms(not seat.wishes.keep_connections, self._doubt(seat), again)
        self._called.discard(uid)
        self._handles[uid] = seat.tree.handle
        seat.contact.stands_still()
        self._arrivals.watch(
            seat.tree.handle,
            terms,
            lambda what: self._requested(uid, what),
            lambda report: self._watched(uid, report, again),
        )

    def _let_go_of(self, uid: PodUid) -> None:
        """Its tree has ended: frozen, it may have done so without a thaw (cgroup version 2)."""
        handle = self._handles.pop(uid, None)
        if handle is not None:
            self._freezer.forget(handle)

    def _requested(self, uid: PodUid, what: str) -> None:
        metrics.ARRIVALS.inc()
        self._called.add(uid)
        self._operators.request_wake(uid, what)

    def _watched(self, uid: PodUid, report: WatchReport, again: bool) -> None:
        seat = self._node.seats.get(uid)
        if seat is None:
            return
        seat.contact.looked_at()
        metrics.ENDED_CONNECTIONS.inc(report.ended)
        log.info("%s: %d sockets watched, %d ended", seat, report.watched, report.ended)
        if report.problem and self._complaints.get(uid) != report.problem:
            self._complaints[uid] = report.problem
            self._node.tell(seat, "Warning", "SocketsUnwatched", report.problem)
        # One that was asked for already is no request, but a connection on which the client has
        # the last word, as with HTTP/2: it would call its seat for ever.
        fresh = report.unanswered - self._unanswered.get(uid, frozenset())
        self._unanswered[uid] = report.unanswered
        if fresh and not again:
            self._requested(uid, "it was parked before it had answered")

    # --- active seats -------------------------------------------------------------------------

    def grant(self, uid: PodUid, generation: int) -> None:
        """It is active: whatever connects may use it."""
        self._stop(uid)
        seat = self._node.seats[uid]
        self._granted[uid] = (self._node.world.now(), seat.demand.requests)
        if self._reported.get(uid):
            self._drains[uid] = asyncio.create_task(self._look_on(uid))

    def drain(self, uid: PodUid, generation: int) -> None:
        """Somebody needs its GPUs: let go when no request is outstanding at its sockets."""
        self._stop(uid)
        self._drains[uid] = asyncio.create_task(self._let_go(uid, generation))

    def revoke(self, uid: PodUid, generation: int) -> None:
        """It goes, whatever is outstanding."""
        self._stop(uid)
        self._report(uid, 0)

    def _stop(self, uid: PodUid) -> None:
        task = self._drains.pop(uid, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _look_on(self, uid: PodUid) -> None:
        """A drain was taken back, maybe for what was reported: say when it is answered."""
        seat = self._node.seats[uid]
        requests = 1
        while requests and not seat.ending.asked:
            await asyncio.sleep(_LOOK_ON)
            requests = (await self._traffic(seat)).outstanding(self._doubt(seat))
            if requests:
                self._report(uid, requests)
        self._drains.pop(uid, None)
        self._report(uid, 0)

    async def _let_go(self, uid: PodUid, generation: int) -> None:
        seat = self._node.seats[uid]
        pausing, busy_at = iter(_LOOKS), float("-inf")
        await asyncio.sleep(0)  # the proxies are asked first: theirs is the longer way
        while not seat.ending.asked:
            traffic = await self._traffic(seat)
            requests = traffic.outstanding(self._doubt(seat))
            now = self._node.world.now()
            busy_at = now if requests else busy_at
            self._report(uid, requests)
            if not requests and self._rested(uid, traffic, now, busy_at):
                break
            await asyncio.sleep(next(pausing))
        self._drains.pop(uid, None)
        self._report(uid, 0)
        self._leases.proxy_drained(SOCKETS, uid, generation)

    async def _traffic(self, seat: Seat) -> Traffic:
        try:
            return await self._arrivals.traffic(seat.tree.handle, _LOOK_DEADLINE)
        except (OSError, DeadlineError) as error:
            log.warning("%s: can't tell whether requests are in flight: %s", seat, error)
            return Traffic()

    def _rested(self, uid: PodUid, traffic: Traffic, now: float, busy_at: float) -> bool:
        """A seat that was woken by an arrival stays till it was quiet for a while."""
        if uid not in self._called:
            return True
        since = max(self._granted.get(uid, (busy_at, 0))[0], busy_at)
        return min(now - since, traffic.quiet()) >= self._node.settings.idle_after_s

    def _doubt(self, seat: Seat) -> float:
        """Proxies know what is in flight: where they alone were at it, a tie is an answer."""
        before = self._granted.get(seat.uid)
        direct = seat.uid in self._called or before is None or seat.demand.requests == before[1]
        return DOUBT if direct else 0.0

    def _report(self, uid: PodUid, requests: int) -> None:
        if uid in self._node.seats and requests != self._reported.get(uid, 0):
            self._reported[uid] = requests
            self._leases.proxy_demand(SOCKETS, uid, Demand(in_flight=requests))
