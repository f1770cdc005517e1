"""What a sweep of a namespace's packs may delete. Pure.

A pack that no manifest names is condemned first: nobody builds upon it any more. It is deleted by
a sweep that comes at least `grace` seconds later and finds it unnamed still, and no writer that
had begun before it was condemned. So neither a list that is behind nor a slow writer loses a
chunk. Times are seconds since 1970 by the clock of the place.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

SKEW = 300.0
"""Seconds by which the end of a lease may be wrong: clocks drift while a writer writes, and
releases before 0.2.0 put it there by the clock of their node."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A writer: began then, and is done at `until`, whatever happens."""

    began: float
    until: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A namespace as one sweep finds it.

    `packs`: bytes and age of each; `condemned`: since when. `used`: packs that a manifest names.
    """

    packs: Mapping[str, tuple[int, float]]
    used: frozenset[str]
    condemned: Mapping[str, float] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    indexed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order; names sorted. `free`: bytes that `delete` gives back."""

    spare: tuple[str, ...] = ()
    """Named after all: their condemnation is taken back."""
    condemn: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    """Marks and indexes of packs that are not there."""
    ended: tuple[str, ...] = ()
    """Leases that are over."""
    free: int = 0
    named: int = 0
    """Bytes of packs that are named."""
    waiting: int = 0
    """Bytes of packs that are condemned and not deleted yet."""


def plan(seen: Seen, grace: float, now: float) -> Plan:
    """What this sweep does."""
    active = [lease.began for lease in seen.leases.values() if now < lease.until + SKEW]
    ended = [name for name, lease in seen.leases.items() if now >= lease.until + SKEW]
    dead = {pack: age for pack, (_, age) in seen.packs.items() if pack not in seen.used}
    delete = {
        pack
        for pack in dead
        if pack in seen.condemned and _safe(seen.condemned[pack], active, grace, now)
    }
    condemn = {
        pack for pack, age in dead.items() if pack not in seen.condemned and now - age >= grace
    }
    marked = (set(seen.condemned) | seen.indexed) - set(seen.packs)
    waiting = (set(dead) & set(seen.condemned) | condemn) - delete
    return Plan(
        spare=tuple(sorted(set(seen.condemned) & seen.used)),
        condemn=tuple(sorted(condemn)),
        delete=tuple(sorted(delete)),
        strays=tuple(sorted(marked - seen.used)),
        ended=tuple(sorted(ended)),
        free=sum(seen.packs[pack][0] for pack in delete),
        named=sum(size for pack, (size, _) in seen.packs.items() if pack in seen.used),
        waiting=sum(seen.packs[pack][0] for pack in waiting),
    )


def _safe(condemned: float, writers: list[float], grace: float, now: float) -> bool:
    return now - condemned >= grace and all(began > condemned for began in writers)
