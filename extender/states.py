"""Where GPUNodes say that states are: of seats that are parked below RAM. Pure."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log
from typing import TYPE_CHECKING, Any

from kybernate.core.tiers import Artifact
from kybernate.types import PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Json = dict[str, Any]

_BELOW = (Tier.NVME, Tier.OBJECT)
_MOST = 1 << 62


def read_rests(seats: Iterable[Json]) -> Iterator[tuple[PodUid, Artifact]]:
    """The state of each seat that is parked below RAM. A seat of which nothing can be read counts
    as one in RAM."""
    for seat in seats:
        tier, size = seat.get("tier"), seat.get("savedBytes")
        if tier in _BELOW and type(size) is int and 0 < size <= _MOST:
            yield PodUid(str(seat.get("uid"))), _state(Tier(tier), size)


@lru_cache(maxsize=4096)
def _state(tier: Tier, size: int) -> Artifact:
    """Rounded up to steps of a fifth, and kept: states of one model are nearly alike, and nodes
    that differ by as little are to look the same."""
    return Artifact(tier, ceil(1.2 ** ceil(log(size, 1.2))))
