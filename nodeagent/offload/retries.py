"""What becomes of a seat whose tree could not be recreated: when it is tried again, and what is
told of it. Pure."""

from __future__ import annotations

from kybernate.errors import RestoreError, RetryableError
from nodeagent.offload.gates import AGAIN

_LONGEST = 60.0
_DOUBLINGS = 6
_BELIEVED = 20
"""How often in a row CRIU's word counts that memory is short, though nothing is killed for it."""


def is_starved(error: Exception) -> bool:
    """Whether memory was short, as it seems."""
    return isinstance(error, RestoreError) and error.starved


def is_unsure(error: Exception) -> bool:
    """Whether it may be something else that is short, and stays so."""
    return isinstance(error, RestoreError) and error.starved and not error.killed


def speaks_against(error: Exception, unsure: int) -> bool:
    """Whether it says something against the saved state. Memory that is short doesn't, however
    often. `unsure`: how often in a row that was unsure, this time included."""
    if not isinstance(error, RestoreError):
        return False
    return not error.starved or (is_unsure(error) and unsure > _BELIEVED)


def pause(error: Exception, times: int) -> float:
    """Seconds until the next try. `times`: how often in a row memory has been short."""
    if is_starved(error):
        return min(_LONGEST, AGAIN * (1 << min(times, _DOUBLINGS)))
    return max(AGAIN, error.delay) if isinstance(error, RetryableError) else AGAIN


def told(error: Exception) -> str:
    """What people read."""
    if is_starved(error):
        other = ", or a limit on maps or locked memory stands against it" * is_unsure(error)
        return (
            f"there is not enough memory to recreate it{other} ({error}); raise its container's "
            "memory limit, or make room on the node. Its saved state is kept; trying again"
        )
    return f"{error}; trying again"
