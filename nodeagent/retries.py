"""What becomes of a seat whose tree could not be recreated: when it is tried again, and what is
told of it. Pure."""

from __future__ import annotations

from kybernate.errors import RestoreError, RetryableError
from nodeagent.gates import AGAIN

_LONGEST = 60.0
_DOUBLINGS = 6


def is_starved(error: Exception) -> bool:
    """Whether memory was short: that says nothing against the saved state, however often."""
    return isinstance(error, RestoreError) and error.starved


def pause(error: Exception, times: int) -> float:
    """Seconds until the next try. `times`: how often in a row memory has been short."""
    if is_starved(error):
        return min(_LONGEST, AGAIN * (1 << min(times, _DOUBLINGS)))
    return max(AGAIN, error.delay) if isinstance(error, RetryableError) else AGAIN


def told(error: Exception) -> str:
    """What people read."""
    if is_starved(error):
        return (
            f"there is not enough memory to recreate it ({error}); raise its container's memory "
            "limit, or make room on the node. Its saved state is kept; trying again"
        )
    return f"{error}; trying again"
