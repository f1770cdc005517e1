"""What a seat's pod, its workload and operators want of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.artifacts.restores import RestoreWish


@dataclass(slots=True)
class Wishes:
    """Of the pod: `restore`: which saved state it goes on from; `park_tier`: how deep it lets the
    seat go; `ready_within` (s): what is a timely wake; `idle` (s): unused for so long the seat
    leaves GPU memory, or the tier of that name; `weight`: of a seat that always wants its GPUs,
    None if it waits for requests; `keep_connections`; `spec_hash`: what its container is.

    Of the workload: `acquired`: it wants its GPUs until it says otherwise; `yields`: it gives up
    the turn that it has.

    Of operators: `leave`: why it must leave GPU memory though nobody needs its GPUs; with
    `stays_away` also when it has; `rests`: it was sent away, and wants nothing until called for;
    `tier_asked`: where its state should be; `to_save`: a copy of its state is to be written next.
    """

    restore: RestoreWish | None = None
    park_tier: str = Tier.OBJECT.value
    ready_within: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    weight: float | None = None
    keep_connections: bool = False
    spec_hash: str = ""
    acquired: bool = False
    yields: bool = False
    leave: str = ""
    stays_away: bool = False
    rests: bool = False
    tier_asked: str = ""
    to_save: bool = False
