"""How a seat ends, and what it must not do before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """`asked`: its container was asked to end, or its tree is being killed, `since` then.

    `doomed`: the pod is being deleted; `deleted`: the pod is gone. `forfeit`: why it is ended
    instead of parked; `on_demand`: having ended so, it starts again only when called for.
    `apart`: it was found running without a record, and is not yet known to be where its state says.
    """

    asked: bool = False
    since: float = 0.0
    doomed: bool = False
    deleted: bool = False
    forfeit: str = ""
    on_demand: bool = False
    apart: bool = False

    def begin(self, now: float) -> None:
        """It ends from now on."""
        self.asked, self.since = True, now

    def carry_on(self) -> None:
        """It was asked to end and runs on."""
        self.asked = False

    def ended(self) -> None:
        """Nothing of it is left: it may begin again."""
        self.asked = self.apart = False

    def doubt(self) -> None:
        """Nobody knows whether it uses its GPUs."""
        self.apart = True

    def verified(self) -> None:
        """It is where its state says."""
        self.apart = False

    def pod_ends(self, *, doomed: bool) -> None:
        """Whether its pod is being deleted."""
        self.doomed = doomed

    def pod_gone(self) -> None:
        """Its pod no longer exists."""
        self.deleted = True

    def judged(self, forfeit: str) -> None:
        """Why it is ended instead of parked; empty if it would be parked."""
        self.forfeit = forfeit

    def forfeited(self) -> None:
        """It is ended instead of parked, and starts again only when called for."""
        self.on_demand = True
