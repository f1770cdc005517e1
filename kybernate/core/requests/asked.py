"""What all requests that are objects have in common, from their creation to their removal. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from enum import StrEnum

S = TypeVar("S")
A = TypeVar("A")

_LONGEST_LEFT = 30 * 86_400.0
"""Seconds for which the end of a copy is foretold."""
_LEAST_PAUSE, _LONGEST_PAUSE, _PAUSE_PART = 0.5, 10.0, 0.1
"""Seconds between two looks, and the part of the time since the first that they take."""
MOST_RESTARTS = 5
"""How often a copy of one request may begin again from fewer bytes and have its time again."""


class Asked:
    """A request of any kind, whose deadline counts from its creation.

    `keep_s`: seconds for which it stays once ended, None for good. Its status has `began_at` and
    `ended_at` in seconds since 1970, 0 for not yet, `reason`, `message`.
    """

    __slots__ = ()

    uid: str
    namespace: str
    name: str
    created_at: float
    deadline_s: float
    keep_s: float | None
    status: Any

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return bool(self.status.ended_at)

    @property
    def under_way(self) -> bool:
        """Whether something has begun for it that has not ended, and has to be called off."""
        return bool(self.status.began_at) and not self.ended

    def left(self, now: float) -> float:
        """Seconds until its deadline, of the controller's clock; negative if that is over."""
        return min(self.created_at - now, 0.0) + self.deadline_s


@dataclass(frozen=True, slots=True)
class Copied:
    """How much of an artifact is where it is to be, in bytes, and when the rest is expected to be,
    in seconds since 1970, 0 where nobody can tell. `since`: when the last of them came, or the copy
    began again; `restarts`: how often it did, counted up to `MOST_RESTARTS`."""

    done: int
    total: int
    ready_at: float = 0.0
    since: float = 0.0
    restarts: int = 0


def copied(status: Any, found: Copied | None, now: float, *, over: bool = False) -> Copied | None:
    """The agent's figures, given a `status` with those of before; `over`: nothing more comes. What
    is left is expected to come as fast as what came since the last look, or since the beginning.
    A copy that fails begins again, and counts from 0: fewer bytes are progress so often, and no
    more, or an agent that tells of other ones each time would never stall."""
    told: Copied | None = status.copied
    if found is None:
        return None if over else told
    if told and found.done < told.done and told.restarts < MOST_RESTARTS:
        return replace(found, since=now, restarts=told.restarts + 1)
    if told and found.done <= told.done:
        return replace(told, total=found.total)
    found = replace(found, since=now, restarts=told.restarts if told else 0)
    before, at = (told.done, told.since) if told else (0, 0.0)
    at = at or status.began_at
    if not before < found.done < found.total or not 0 < at < now:
        return found
    left = (now - at) * (found.total - found.done) / (found.done - before)
    # As good as never: no request has that long, and a date may have four digits of years.
    return replace(found, ready_at=now + left) if left < _LONGEST_LEFT else found


@dataclass(frozen=True, slots=True)
class Decision(Generic[S, A]):
    """The status as it is to be, and the act that comes first, None for none. `again`: seconds
    until the next look, None for when the request changes. `over`: the object is to be deleted, for
    it has ended, and was kept as long as it says."""

    status: S
    act: A | None = None
    again: float | None = None
    over: bool = False


def rests(request: Asked, now: float) -> Decision[Any, Any]:
    """It has ended."""
    if request.keep_s is None:
        return Decision(request.status)
    left = request.status.ended_at + request.keep_s - now
    return Decision(request.status, again=left) if left > 0 else Decision(request.status, over=True)


def waits(
    request: Asked, reason: StrEnum, message: str, now: float, late: StrEnum, still: str = ""
) -> Decision[Any, Any]:
    """It has not ended: looked at again the later, the longer it has taken. Once its time is over
    it ends for the reason `late`; `still`: what is left of it then, for the sentence."""
    if request.left(now) <= 0:
        return ends(request, late, f"not within {request.deadline_s:g} s: {message}{still}", now)
    age = now - (request.status.began_at or request.created_at)
    pause = min(max(_LEAST_PAUSE, age * _PAUSE_PART), _LONGEST_PAUSE)
    status = replace(request.status, reason=reason, message=message)
    return Decision(status, again=min(pause, request.left(now)))


def ends(
    request: Asked, reason: StrEnum, message: str, now: float, **came: object
) -> Decision[Any, Any]:
    """It ends now; `came`: what else its status says of that."""
    status = replace(request.status, reason=reason, message=message, ended_at=now, **came)
    if getattr(status, "copied", None):
        status = replace(status, copied=replace(status.copied, ready_at=0.0))
    return Decision(status, again=None if request.keep_s is None else 0.0)
