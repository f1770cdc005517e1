"""What a seat was refused, and when it may be tried again."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Times are of the loop's monotonic clock, in seconds.

    Before `not_before` it asks for nothing, before `stays_until` it isn't asked to leave, before
    `move_not_before` its state isn't moved between tiers. `unparkable`: why it can't be parked now,
    as of the last decision. `failed_restores`, `waiting_restores`, `unsure_restores`: tries in a
    row; `lacking_since`: since when the store says that its state isn't there. `complain_at`: by
    event, when people may be told of it again.
    """

    not_before: float = 0.0
    stays_until: float = 0.0
    move_not_before: float = 0.0
    unparkable: str = ""
    failed_restores: int = 0
    waiting_restores: int = 0
    unsure_restores: int = 0
    lacking_since: float = 0.0
    complain_at: dict[str, float] = field(default_factory=dict)
