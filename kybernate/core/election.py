"""Who holds a lease, so that what two holders do in its name can't overlap. Pure.

Clocks of two machines need not agree, only run alike. A holder counts its time from before it sent
the write that gave it the lease, and stops `margin` early; everybody else counts the whole time
from after they first saw that write. The write happened in between, so the holder's time is over
before anybody else's begins, whatever got lost or late on the way.
"""

from __future__ import annotations

from enum import StrEnum

from kybernate.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it is stored: nobody's if `holder` is empty. `lasts` in seconds.

    `version` changes with every write.
    """

    holder: str
    lasts: float
    version: str


class Turn(StrEnum):
    """What a candidate has to do now."""

    WAIT = "wait"
    TAKE = "take"
    KEEP = "keep"


class Election:
    """One candidate's view. Times are seconds on the candidate's own clock."""

    def __init__(self, identity: str, margin: float) -> None:
        """`identity` is of this process and no other; `margin` in seconds."""
        self.until = float("-inf")
        """Whatever is done in the lease's name must be over by then."""
        self._identity = identity
        self._margin = margin
        self._seen: Lease | None = None
        self._since = 0.0

    def saw(self, lease: Lease | None, now: float) -> None:
        """A read of the lease was answered at `now`; None says that there is none."""
        if lease is None or self._seen is None or lease.version != self._seen.version:
            self._since = now
        self._seen = lease

    def wrote(self, lease: Lease, began: float) -> None:
        """The API server took our write, which was sent after `began`."""
        self._seen = lease
        self._since = began
        self.until = began + lease.lasts - self._margin

    def left(self) -> None:
        """We act in its name no longer, whatever is stored."""
        self.until = float("-inf")

    def turn(self, now: float) -> Turn:
        """Whether to try and write."""
        lease = self._seen
        if lease is not None and lease.holder == self._identity:
            return Turn.KEEP
        if lease is None or not lease.holder or now >= self._since + lease.lasts:
            return Turn.TAKE
        return Turn.WAIT
