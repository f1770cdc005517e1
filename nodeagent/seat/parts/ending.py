"""How a seat ends, and what it must not do before."""

from __future__ import annotations

from kybernate.core.seat.ending import Ends
from kybernate.dataclass import dataclass


@dataclass(slots=True)
class Ending:
    """`ends`: whether its container is ending, `since` then.

    `terminating`: the pod is being deleted; `deleted`: the pod is gone. `forfeit`: why it is ended
    instead of parked; `on_demand`: it starts only when wake-requested.
    """

    ends: Ends = Ends.NOT
    since: float = 0.0
    terminating: bool = False
    deleted: bool = False
    forfeit: str = ""
    on_demand: bool = False

    @property
    def asked(self) -> bool:
        """Whether its container is ending, by whomever."""
        return self.ends is not Ends.NOT

    @property
    def killed(self) -> bool:
        """Whether it is killed, and nobody knows until it is gone whether it uses its GPUs."""
        return self.ends is Ends.KILLED

    def begin(self, now: float, ends: Ends) -> bool:
        """It ends; whether it did not before."""
        began = not self.asked
        if began:
            self.since = now
        if not self.killed:
            self.ends = ends
        return began

    def carry_on(self) -> None:
        """It was asked to end and runs on."""
        self.ends = Ends.NOT

    def ended(self) -> None:
        """Nothing of it is left: it may begin again."""
        self.ends = Ends.NOT

    def pod_ends(self, *, terminating: bool) -> None:
        """Whether its pod is being deleted."""
        self.terminating = terminating

    def pod_gone(self) -> None:
        """Its pod no longer exists."""
        self.deleted = True

    def judged(self, forfeit: str) -> None:
        """Why it is ended instead of parked; empty if it would be parked."""
        self.forfeit = forfeit

    def starts_on_demand(self) -> None:
        """From now on it starts only when wake-requested, as one that was ended, not parked."""
        self.on_demand = True
