"""What becomes of a seat whose tree could not be recreated: when it is tried again, and what is
told of it. Pure."""

from __future__ import annotations

from kybernate.errors import RestoreError, RetryableError
from kybernate.lib.retry import AGAIN

_LONGEST = 60.0
_DOUBLINGS = 6
_BELIEVED = 20
"""How often in a row CRIU's word counts that memory is short, though nothing is killed for it."""


def is_starved(error: Exception) -> bool:
    """Whether memory was short, as it seems."""
    return isinstance(error, RestoreError) and error.starved


def is_refused(error: Exception) -> bool:
    """Whether something else is there than what was dumped, or nothing: somebody else's doing,
    mostly."""
    return isinstance(error, RestoreError) and error.refused


def waits(error: Exception) -> bool:
    """Whether the artifact has to wait until something beside it has changed."""
    return is_starved(error) or is_refused(error)


def is_unsure(error: Exception) -> bool:
    """Whether it may be something else that is short, and stays so."""
    return is_starved(error) and not is_refused(error) and not _is_killed(error)


def _is_killed(error: Exception) -> bool:
    return isinstance(error, RestoreError) and error.killed


def speaks_against(error: Exception, unsure: int) -> bool:
    """Whether it says something against the artifact. Memory that is short doesn't, nor what
    others have put in its files' place, however often: else who shares a folder with a tree could
    have its state given up. `unsure`: how often in a row that was unsure, this time included."""
    if not isinstance(error, RestoreError):
        return False
    return not waits(error) or (is_unsure(error) and unsure > _BELIEVED)


def pause(error: Exception, times: int) -> float:
    """Seconds until the next try. `times`: how often in a row it has had to wait."""
    if waits(error):
        return min(_LONGEST, AGAIN.first * (1 << min(times, _DOUBLINGS)))
    return max(AGAIN.first, error.delay) if isinstance(error, RetryableError) else AGAIN.first


def told(error: Exception) -> str:
    """What people read."""
    if is_refused(error):
        return (
            f"it is not recreated, for something differs from its artifact ({error}); put back "
            "what "
            "was there, as it was, or delete the pod, which then starts again. Its artifact is "
            "kept; trying again"
        )
    if is_starved(error):
        other = ", or a limit on maps or locked memory stands against it" * is_unsure(error)
        return (
            f"there is not enough memory to recreate it{other} ({error}); raise its container's "
            "memory limit, or make room on the node. Its artifact is kept; trying again"
        )
    return f"{error}; trying again"
