"""What a namespace gets of GPUs that others want, too, and how much it may use: its Share. Pure.

Use is counted in windows that follow each other, all of one length, alike for all nodes: each
node's agent counts its own part, the controller adds the parts up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAR = 100
"""The weight of a namespace without a Share."""
DAY = 86_400.0
_MOST = 1 << 62
"""Of any sum: a status takes no more than 64 bits, whatever nodes tell."""


class Used(NamedTuple):
    """What a namespace has used since its window began, at `begins` (s since 1970): seconds of
    GPUs, GiB-hours of RAM, wakes; and the bytes of RAM that its parked seats take now."""

    begins: float = 0.0
    gpu_seconds: float = 0.0
    parked_gib_hours: float = 0.0
    wakes: int = 0
    parked_bytes: int = 0


NOTHING = Used()


@dataclass(frozen=True, slots=True)
class Share:
    """Of one namespace. `weight`: against 1 of one without a Share. `window` in seconds.
    `gpu_seconds`: so many in a window; `parked_bytes`: so many of the RAM of each node; None: no
    limit. `used`: what all nodes had counted when the controller last added it up."""

    namespace: str
    weight: float = 1.0
    window: float = DAY
    gpu_seconds: float | None = None
    parked_bytes: int | None = None
    used: Used = NOTHING

    def begins(self, now: float) -> float:
        """When the window began that is now. Windows begin at multiples of their length since 1970,
        UTC, so that all nodes and the controller have the same without asking each other."""
        return float(math.floor(now // self.window * self.window))

    def spent(self, own: Used, now: float) -> bool:
        """Whether the namespace has used up its GPU-seconds. `own`: what this node has counted,
        which holds at once."""
        if self.gpu_seconds is None:
            return False
        begins = self.begins(now)
        counted = [one.gpu_seconds for one in (own, self.used) if one.begins == begins]
        return max(counted, default=0.0) >= self.gpu_seconds


class ShareReason(Reasoned):
    """Reasons of the condition WithinQuota of a Share."""

    WITHIN = "WithinQuota", DONE, "the namespace uses no more than its quota"
    NO_SEATS = "NoSeats", DONE, "no pod of a namespace of this name has a seat"
    SPENT = (
        "GpuSecondsUsedUp",
        OPEN,
        "the GPU-seconds are used up; until the next window others come first",
    )
    CROWDED = (
        "ParkedBeyondQuota",
        OPEN,
        "parked seats take more RAM of a node than the quota, and can't leave it now",
    )
    INVALID = "Invalid", OVER, "it says what can't be; the message names the field"


class Found(NamedTuple):
    """What the status of a Share says."""

    reason: ShareReason
    message: str
    used: Used


def add_up(share: Share, rows: Iterable[Used], now: float) -> Used:
    """What nodes have counted of the window that is now. A row of another window says nothing but
    how much RAM is taken."""
    begins, there = share.begins(now), tuple(rows)
    counted = [one for one in there if one.begins == begins]
    return Used(
        begins,
        min(sum(one.gpu_seconds for one in counted), float(_MOST)),
        min(sum(one.parked_gib_hours for one in counted), float(_MOST)),
        min(sum(one.wakes for one in counted), _MOST),
        min(sum(one.parked_bytes for one in there), _MOST),
    )


def judge(share: Share, nodes: Mapping[str, Used], now: float, *, seats: bool) -> Found:
    """What its status says, by what each node has counted. `seats`: whether the namespace has
    any."""
    used = add_up(share, nodes.values(), now)
    limit, most = share.gpu_seconds, share.parked_bytes
    full = sorted(n for n, one in nodes.items() if most is not None and one.parked_bytes > most)
    if limit is not None and used.gpu_seconds >= limit:
        return _found(ShareReason.SPENT, f"{used.gpu_seconds:.0f} of {limit:.0f}", used)
    if full:
        return _found(ShareReason.CROWDED, f"on {', '.join(full[:5])}", used)
    if not seats and not used.gpu_seconds:
        return _found(ShareReason.NO_SEATS, "", used)
    return _found(ShareReason.WITHIN, "", used)


def _found(reason: ShareReason, more: str, used: Used) -> Found:
    return Found(reason, reason.told + (f" ({more})" if more else ""), used)
