"""Where a parked seat's state is, in words for people. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

_RAM, _NVME, _OBJECT = "parked in RAM", "parked on NVMe", "parked in the object store"

_PLACE: Mapping[SeatState, tuple[str, str]] = MappingProxyType(
    {
        SeatState.PARKED: (_RAM, ""),
        SeatState.DUMPING: (_RAM, ", being written down"),
        SeatState.PARKED_NVME: (_NVME, ""),
        SeatState.PARKED_OBJECT: (_OBJECT, ""),
        SeatState.RESTORING: (_NVME, ", being brought back to RAM"),
        SeatState.WAKING: (_RAM, ", being brought back to its GPUs"),
    }
)
_WAY: Mapping[tuple[SeatState, Tier | None], str] = MappingProxyType(
    {
        (SeatState.PARKED_NVME, Tier.OBJECT): ", being copied to the object store",
        (SeatState.PARKED_OBJECT, Tier.NVME): ", being brought back to NVMe",
    }
)


def told(state: SeatState, reason: str, to: Tier | None = None) -> str:
    """The reason of a seat's state, behind the place if it is parked. `to`: the tier to which its
    state is being copied."""
    if state not in _PLACE:
        return reason
    place, way = _PLACE[state]
    rest = reason.removeprefix(place).lstrip(",:; ")
    return f"{place}{way or _WAY.get((state, to), '')}" + (f"; {rest}" if rest else "")
