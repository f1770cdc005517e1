"""What the GPUNode says of where saved states are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.core.seats import TIER_OF
from kybernate.types import Tier

if TYPE_CHECKING:
    from nodeagent.seat import Seat


def resting(seat: Seat) -> dict[str, Any]:
    """The tier of a parked seat, and the bytes of its state if that is below RAM."""
    tier = TIER_OF.get(seat.state)
    if tier is None:
        return {}
    saved = {} if tier is Tier.RAM else {"savedBytes": seat.saved}
    return {"tier": tier.value, **saved}
