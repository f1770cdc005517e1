"""Which snapshots a CheckpointPolicy wants made, and which it wants no more. Pure.

Time is cut into slots of `every` seconds, for each pod at other moments so that not all leave their
GPUs at once. A snapshot is a CheckpointRequest whose name says the pod and the slot: a controller
that was killed makes the same one again, which the API server refuses.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kybernate.types import Tier

_MOST_OF_POD = 200
_DIGEST = 10
FAILED_KEPT_S = 3600.0
"""Seconds for which a request that failed is kept for people to see, at the least."""
_LONGEST_DEADLINE_S = 86_400


@dataclass(frozen=True, slots=True)
class Snapshots:
    """`every`: seconds. `tier`: where they are kept, None for the deepest there is. `last`: so many
    of each pod are kept, at least one; `daily`: and of so many days the last one. `parallel`: so
    many are made at a time."""

    every: float
    tier: Tier | None = None
    last: int = 1
    daily: int = 0
    parallel: int = 1


@dataclass(frozen=True, slots=True)
class Governed:
    """A pod that the policy governs, and since when it runs (in seconds since 1970), infinite if it
    does not."""

    uid: str
    name: str
    since: float


@dataclass(frozen=True, slots=True)
class Made:
    """A request that the policy has made. `ended_at` is 0 while it is under way; `sealed`: there is
    an artifact of it, on or from this node, by the agent's operation of this name; `waits`: it
    can't begin yet, for something that is only about its own pod or node."""

    uid: str
    name: str
    pod: str
    created_at: float
    ended_at: float = 0.0
    sealed: bool = False
    node: str = ""
    operation: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """A request to make."""

    name: str
    pod: str
    deadline_s: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make; whose artifacts to drop, and then the requests themselves; which requests alone
    to remove; in how many seconds to look again at the latest."""

    make: tuple[Order, ...] = ()
    drop: tuple[Made, ...] = ()
    remove: tuple[Made, ...] = ()
    again: float = math.inf


def plan(
    wanted: Snapshots,
    policy: str,
    pods: Sequence[Governed],
    made: Sequence[Made],
    now: float,
    taken: Iterable[str] = (),
) -> Plan:
    """What to do now (in seconds since 1970) for the policy with this UID. `taken`: names of
    requests of others, which would be asked for in vain before all else."""
    names, newest = {*(one.name for one in made), *taken}, _newest(made)
    due, again = [], math.inf
    for pod in pods:
        slot = _slot(wanted, pod.uid, now)
        again = min(again, slot + wanted.every - now)
        order = Order(_name(policy, pod, slot), pod.name, _deadline(wanted))
        # One that has begun since is looked at with the next slot.
        if pod.since <= slot and order.name not in names:
            due.append(order)
    due.sort(key=lambda order: (newest.get(order.pod, 0.0), order.pod))
    room = max(0, wanted.parallel - sum(not one.ended_at and not one.waits for one in made))
    stay = max(FAILED_KEPT_S, 2 * wanted.every)
    sealed = [one for one in made if one.sealed]
    there = frozenset(pod.name for pod in pods)
    # One that is made again, such as of a StatefulSet on another node, is away for a moment.
    away = {
        one.pod: one.ended_at + stay
        for one in sealed
        if one.pod not in there and one.ended_at + stay > now
    }
    there |= away.keys()
    drop = tuple(_too_many(wanted, there, sealed, now))
    failed = [one for one in made if one.ended_at and not one.sealed]
    old = tuple(one for one in failed if now >= one.ended_at + stay)
    again = min([again, *(one.ended_at + stay - now for one in failed if one not in old)])
    again = min([again, *(until - now for until in away.values())])
    return Plan(tuple(due[:room]), drop, old, again)


def _slot(wanted: Snapshots, uid: str, now: float) -> float:
    """When the pod's slot of now has begun."""
    part = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4]) / 2**32
    shift = math.floor(part * wanted.every)
    return math.floor((now - shift) / wanted.every) * wanted.every + shift


def _name(policy: str, pod: Governed, slot: float) -> str:
    digest = hashlib.sha256(f"{policy}/{pod.uid}".encode()).hexdigest()[:_DIGEST]
    stamp = datetime.fromtimestamp(slot, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{pod.name[:_MOST_OF_POD].rstrip('-.')}-{digest}-{stamp}"


def _deadline(wanted: Snapshots) -> int:
    return int(min(wanted.every, _LONGEST_DEADLINE_S))


def _newest(made: Iterable[Made]) -> dict[str, float]:
    """When the last one of each pod was asked for."""
    found: dict[str, float] = {}
    for one in made:
        found[one.pod] = max(found.get(one.pod, 0.0), one.created_at)
    return found


def _too_many(
    wanted: Snapshots, there: frozenset[str], sealed: Iterable[Made], now: float
) -> Iterator[Made]:
    """Those that are kept no longer; never the newest of a pod, also of one that is gone."""
    by_pod: dict[str, list[Made]] = defaultdict(list)
    for one in sealed:
        by_pod[one.pod].append(one)
    for pod, those in by_pod.items():
        those.sort(key=lambda one: (one.ended_at, one.name), reverse=True)
        last = max(1, wanted.last) if pod in there else 1
        daily = _daily(those, wanted.daily, now) if pod in there else frozenset()
        yield from (one for one in those[last:] if one.uid not in daily)


def _daily(newest_first: Iterable[Made], days: int, now: float) -> frozenset[str]:
    """The last one of each of the last days, today's too, by UTC."""
    today = _day(now)
    found: dict[int, str] = {}
    for one in newest_first:
        found.setdefault(_day(one.ended_at), one.uid)
    return frozenset(uid for day, uid in found.items() if day > today - days)


def _day(at: float) -> int:
    return math.floor(at / 86_400)
