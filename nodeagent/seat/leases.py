"""What each proxy was granted and what it reports: the agent's side of draining.

A lease is (proxy, seat, generation). A seat is drained when no proxy holds a lease on it. A
proxy whose stream broke may still have requests in flight, so its leases last until it says
otherwise after reconnecting, or until the break's deadline.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.types import PodUid


class Outbox(Protocol):
    """Orders to one proxy; never blocks."""

    def grant(self, uid: PodUid, generation: int) -> None:
        """Requests may go to the seat."""
        ...

    def drain(self, uid: PodUid, generation: int) -> None:
        """Nothing new may start; say when nothing is in flight."""
        ...

    def revoke(self, uid: PodUid, generation: int) -> None:
        """The lease is over now."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """What one proxy reports of one seat. `since`: when the oldest waiting request came, `trace`:
    its `traceparent`, where it is traced."""

    in_flight: int = 0
    waiting: int = 0
    since: float | None = None
    requests: int = 0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Total:
    """Demand of all proxies together."""

    in_flight: int
    waiting: int
    since: float | None
    trace: str = ""


@dataclass(slots=True)
class _Proxy:
    outbox: Outbox | None
    leases: dict[PodUid, int] = field(default_factory=dict)
    demand: dict[PodUid, Demand] = field(default_factory=dict)
    broken_until: float | None = None


class Leases:
    """All proxies of this agent. `break_after` in seconds; `now` is the loop's clock."""

    def __init__(self, break_after: float) -> None:
        self._break_after = break_after
        self._proxies: dict[str, _Proxy] = {}

    def names(self) -> list[str]:
        """Proxies that hold, or may hold, leases."""
        return sorted(self._proxies)

    def remember(self, name: str, leases: dict[PodUid, int], now: float) -> None:
        """A proxy that was connected before the agent restarted, with what it may still hold."""
        self._proxies[name] = _Proxy(None, leases, broken_until=now + self._break_after)

    def joined(self, name: str, outbox: Outbox, active: dict[PodUid, int]) -> dict[PodUid, int]:
        """A stream begins: grant it every active seat.

        Returns what it may hold of other seats from an earlier stream; each was told to drain.
        """
        proxy = _Proxy(outbox)
        before = self._proxies.get(name)
        old = dict(before.leases) if before else {}
        self._proxies[name] = proxy
        for uid, generation in active.items():
            self._grant(proxy, uid, generation)
        left = {uid: generation for uid, generation in old.items() if uid not in active}
        for uid, generation in left.items():
            proxy.leases[uid] = generation
            outbox.drain(uid, generation)
        return left

    def left(self, name: str, outbox: Outbox, now: float) -> frozenset[PodUid]:
        """The stream ended. A later stream of the same proxy is not touched.

        Returns the seats whose demand changed by it.
        """
        proxy = self._proxies.get(name)
        if proxy is None or proxy.outbox is not outbox:
            return frozenset()
        changed = frozenset(proxy.demand)
        proxy.outbox = None
        proxy.demand = {
            uid: Demand(in_flight=d.in_flight, requests=d.requests)
            for uid, d in proxy.demand.items()
            if uid in proxy.leases
        }
        proxy.broken_until = now + self._break_after
        return changed

    def expire(self, now: float) -> tuple[frozenset[PodUid], float | None]:
        """End the leases of streams broken for long enough.

        Returns the seats concerned, and when the next one is due.
        """
        touched: set[PodUid] = set()
        due: list[float] = []
        for name, proxy in list(self._proxies.items()):
            if proxy.broken_until is None:
                continue
            if now >= proxy.broken_until:
                touched |= {*proxy.leases, *proxy.demand}
                del self._proxies[name]
            else:
                due.append(proxy.broken_until)
        return frozenset(touched), min(due, default=None)

    def report(self, name: str, uid: PodUid, demand: Demand) -> int:
        """A proxy's demand for a seat; returns how many requests it answered since the last."""
        proxy = self._proxies[name]
        before = proxy.demand.get(uid, Demand()).requests
        proxy.demand[uid] = demand
        return max(0, demand.requests - before)

    def total(self, uid: PodUid) -> Total:
        """Demand for a seat over all proxies."""
        all_of_it = [p.demand[uid] for p in self._proxies.values() if uid in p.demand]
        since, trace = min(
            ((d.since, d.trace) for d in all_of_it if d.waiting and d.since is not None),
            default=(None, ""),
        )
        return Total(
            sum(d.in_flight for d in all_of_it), sum(d.waiting for d in all_of_it), since, trace
        )

    def grant(self, uid: PodUid, generation: int) -> None:
        """Grant the seat to every connected proxy."""
        for proxy in self._connected():
            self._grant(proxy, uid, generation)

    def drain(self, uid: PodUid) -> None:
        """Ask every connected proxy that holds the seat to let go."""
        for proxy in self._connected():
            if proxy.outbox and uid in proxy.leases:
                proxy.outbox.drain(uid, proxy.leases[uid])

    def revoke(self, uid: PodUid) -> None:
        """End all leases of the seat now."""
        for proxy in self._proxies.values():
            generation = proxy.leases.pop(uid, None)
            if generation is not None and proxy.outbox:
                proxy.outbox.revoke(uid, generation)

    def returned(self, name: str, uid: PodUid, generation: int) -> bool:
        """A proxy says it has drained; False if that lease is not the one it holds."""
        proxy = self._proxies[name]
        if proxy.leases.get(uid) != generation:
            return False
        del proxy.leases[uid]
        return True

    def grant_again(self, name: str, uid: PodUid, generation: int) -> None:
        """Grant the seat to this proxy, which has given it back unasked, if it is connected."""
        proxy = self._proxies.get(name)
        if proxy is not None and proxy.outbox is not None and uid not in proxy.leases:
            self._grant(proxy, uid, generation)

    def drained(self, uid: PodUid) -> bool:
        """Whether no proxy holds the seat."""
        for proxy in self._proxies.values():  # noqa: SIM110 - asked of all seats, all the time
            if uid in proxy.leases:
                return False
        return True

    def forget(self, uid: PodUid) -> None:
        """The seat is gone."""
        for proxy in self._proxies.values():
            proxy.leases.pop(uid, None)
            proxy.demand.pop(uid, None)

    def _connected(self) -> Iterable[_Proxy]:
        return (proxy for proxy in self._proxies.values() if proxy.outbox is not None)

    @staticmethod
    def _grant(proxy: _Proxy, uid: PodUid, generation: int) -> None:
        proxy.leases[uid] = generation
        if proxy.outbox:
            proxy.outbox.grant(uid, generation)
