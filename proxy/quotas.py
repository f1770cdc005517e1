"""What one client, one namespace and all of them together may take of the proxy, and had. Pure.

A client is a name: its key's or certificate's, or its address where none is asked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import field

from kybernate.core.rate import Bucket
from kybernate.dataclass import dataclass

_MOST_BUCKETS = 10_000
_MOST_CLIENTS = 10_000

SMALL = 256 * 2**10
"""Bytes of a body up to which it may use what is kept free of larger ones."""

Refusal = tuple[int, str, str, float]
"""Status, code, sentence, and after how many seconds to try again (0.0: nobody knows)."""


@dataclass(slots=True)
class Bodies:
    """Bytes of request bodies in memory: at most `whole`, and `each` of one client.

    Bodies over SMALL have 7/8 of it, so that they can't keep out the small ones.
    """

    whole: int
    each: int
    total: int = 0
    _large: int = 0
    _of: Counter[str] = field(default_factory=Counter)
    _held: dict[int, tuple[str, int]] = field(default_factory=dict)

    def take(self, ticket: int, client: str, more: int) -> Refusal | None:
        """Count `more` bytes for this request, or say why they don't fit; then nothing changes."""
        if refusal := self.refuses(ticket, client, more):
            return refusal
        before = self._held.get(ticket, ("", 0))[1]
        self.total += more
        self._large += _as_large(before + more) - _as_large(before)
        self._of[client] += more
        self._held[ticket] = (client, before + more)
        return None

    def refuses(self, ticket: int, client: str, more: int) -> Refusal | None:
        """Why `more` bytes of this client's request would not fit now, or None."""
        before = self._held.get(ticket, ("", 0))[1]
        large = _as_large(before + more)
        after = self._large + large - _as_large(before)
        if self.total + more > self.whole or (large and after > self.whole - self.whole // 8):
            reason = (
                f"The proxy holds {self.total} bytes of requests that wait or are being sent, and "
                f"may hold {self.whole} (max_held_bytes), 7/8 of them of bodies over {SMALL} "
                "bytes; try again later."
            )
            return 503, "bodies_full", reason, 0.0
        if self._of[client] + more > self.each:
            reason = (
                f"{self._of[client]} bytes of your requests wait or are being sent, of "
                f"{self.each} that one client may have (max_held_bytes_per_client); let some end."
            )
            return 429, "client_bodies_full", reason, 0.0
        return None

    def give_back(self, ticket: int) -> None:
        """The request's body is no more in memory. Unknown tickets are ignored."""
        client, size = self._held.pop(ticket, ("", 0))
        self.total -= size
        self._large -= _as_large(size)
        self._of[client] -= size
        if self._of[client] <= 0:
            del self._of[client]


def _as_large(size: int) -> int:
    return size if size > SMALL else 0


@dataclass(slots=True)
class Usage:
    """What clients with a key or a certificate had of the seats, each by its name; all others
    together by the empty one, since addresses have no end. So are those of whom most have come
    since: keys and certificates are renewed under other names.

    `seconds`: of seats by their namespaces; a seat's time is divided among the requests that are
    there at once. `wakes`: how often a request of theirs was the first to wait for a model.
    """

    known: dict[str, None] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    requests: Counter[str] = field(default_factory=Counter)
    wakes: Counter[str] = field(default_factory=Counter)
    _since: dict[int, tuple[str, str, float]] = field(default_factory=dict)

    def saw(self, client: str) -> None:
        """A client with a key or a certificate asks for something."""
        self.known.pop(client, None)
        self.known[client] = None
        if len(self.known) > _MOST_CLIENTS:
            self._forget(next(iter(self.known)))

    def _forget(self, client: str) -> None:
        """The one that asked longest ago: what it had stays in the sum of all."""
        del self.known[client]
        for namespace, seconds in self.seconds.pop(client, {}).items():
            self.seconds[""][namespace] += seconds
        for had in (self.requests, self.wakes):
            had[""] += had.pop(client, 0)

    def begins(self, ticket: int, client: str, namespace: str, share: float) -> None:
        """A request went to a seat of this namespace; `share`: the seat's `Seat.share` then."""
        self._since[ticket] = self.name(client), namespace, share

    def ends(self, ticket: int, share: float) -> None:
        """It is over; the same seat's share now."""
        client, namespace, before = self._since.pop(ticket)
        name = self.name(client)
        self.seconds[name][namespace] += share - before
        self.requests[name] += 1

    def name(self, client: str) -> str:
        """Under which name a client's are counted."""
        return client if client in self.known else ""


@dataclass(slots=True)
class Wakes:
    """How many wakes a minute clients may cause, and models of a namespace may be caused.

    A whole minute's worth may come at once. 0 is no limit. Of several proxies each has its `share`
    of it, so that all together keep to it.
    """

    per_client: float
    per_namespace: float
    share: float = 1.0
    _buckets: dict[tuple[str, str], Bucket] = field(default_factory=dict)

    def take(self, client: str, namespace: str, now: float) -> Refusal | None:
        """Count one wake, or say whose are used up."""
        for kind, name, limit, whose in (
            ("client", client, self.per_client, "You have used up your"),
            (
                "namespace",
                namespace,
                self.per_namespace,
                f"The namespace {namespace!r} has used up its",
            ),
        ):
            wait = self._bucket(kind, name, limit).take(now) if limit else 0.0
            if wait:
                reason = (
                    f"{whose} {limit:g} wakes a minute (wakes_per_minute_per_{kind}): a request to "
                    "a model that is awake, or is waking already, costs none."
                )
                return 429, "wake_quota", reason, wait
        return None

    def _bucket(self, kind: str, name: str, limit: float) -> Bucket:
        rate, burst = limit * self.share / 60.0, max(1.0, limit * self.share)
        bucket = self._buckets.pop((kind, name), None) or Bucket(rate, burst)
        bucket.rate, bucket.burst = rate, burst
        if len(self._buckets) >= _MOST_BUCKETS:
            # The one that was used longest ago: a full one again, or nearly so.
            del self._buckets[next(iter(self._buckets))]
        self._buckets[kind, name] = bucket
        return bucket
