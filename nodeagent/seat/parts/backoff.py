"""What a seat was refused, and when it may be tried again."""

from __future__ import annotations

from dataclasses import field

from kybernate.dataclass import dataclass


@dataclass(slots=True)
class Backoff:
    """Times are of the loop's monotonic clock, in seconds.

    Before `not_before` it asks for nothing, before `stays_until` it isn't asked to leave, before
    `move_not_before` its state isn't moved between tiers. `unparkable`: why it can't be parked now,
    as of the last decision; `refused`: why RAM can't serve it while the others stay, if it asks for
    its turn. `failed_restores`, `waiting_restores`, `unsure_restores`: tries in a
    row; `lacking_since`: since when the store says that its state isn't there. `complain_at`: by
    event, when people may be told of it again.
    """

    not_before: float = 0.0
    stays_until: float = 0.0
    move_not_before: float = 0.0
    unparkable: str = ""
    refused: str = ""
    failed_restores: int = 0
    waiting_restores: int = 0
    unsure_restores: int = 0
    lacking_since: float = 0.0
    complain_at: dict[str, float] = field(default_factory=dict)

    def hold(self, until: float) -> None:
        """It asks for nothing before then."""
        self.not_before = until

    def free(self) -> None:
        """It may ask for its turn at once."""
        self.not_before = 0.0

    def stay(self, until: float) -> None:
        """It isn't asked to leave before then."""
        self.stays_until = until

    def settle(self, until: float, *, asleep: bool = False) -> None:
        """Its state isn't moved before then; `asleep`: nor does it ask for its turn."""
        self.move_not_before = until
        if asleep:
            self.not_before = max(self.not_before, until)

    def move_at_once(self) -> None:
        """Its state may be moved between tiers."""
        self.move_not_before = 0.0

    def judged(self, unparkable: str) -> None:
        """Why it can't be parked now; empty if it can."""
        self.unparkable = unparkable

    def refuse(self, why: str) -> None:
        """Why it can't have its turn; empty if it may."""
        self.refused = why

    def restore_failed(self, *, waits: bool, unsure: bool) -> None:
        """One more restore came to nothing."""
        self.waiting_restores = self.waiting_restores + 1 if waits else 0
        self.unsure_restores = self.unsure_restores + 1 if unsure else 0

    def held_against(self, tries: int) -> None:
        """So many more failed restores speak against its state."""
        self.failed_restores += tries

    def restored(self) -> None:
        """Its state was good."""
        self.failed_restores = self.waiting_restores = self.unsure_restores = 0

    def lacks(self, now: float) -> float:
        """The store says that its state isn't there; for how many seconds it has said so."""
        self.lacking_since = self.lacking_since or now
        return now - self.lacking_since

    def fetched(self) -> None:
        """Its state was there."""
        self.lacking_since = 0.0

    def may_complain(self, event: str, now: float, pause: float) -> bool:
        """Whether people may be told of it now; if so, not again within the pause."""
        if now < self.complain_at.get(event, now):
            return False
        self.complain_at[event] = now + pause
        return True
