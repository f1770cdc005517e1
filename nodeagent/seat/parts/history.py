"""What a seat has done so far, and since when it does what it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class History:
    """`since` when it is in its state, wall-clock seconds, and the `reason`. All other times are of
    the loop's monotonic clock.

    `generation` counts starts of the command, `lease` the times that it was granted to proxies.
    `bound_at`: since when it wants to start; `used_at`: when it was last in GPU memory; `phases`:
    seconds of the last park, wake, dump or restore. `untimely`: a wake from RAM takes longer than
    its pod calls ready.
    """

    bound_at: float
    since: float
    reason: str = ""
    generation: int = 0
    lease: int = 0
    started_once: bool = False
    starting_since: float | None = None
    active_since: float | None = None
    active_seconds: float = 0.0
    drain_since: float | None = None
    used_at: float = 0.0
    wakes: int = 0
    last_wake_ms: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    untimely: bool = False
