"""A seat's artifact: which it is, where it lies, and whose it was."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping


class Begins(StrEnum):
    """How a seat's workload begins, as far as it is settled."""

    OPEN = ""
    """If its pod names a state to continue from, that is looked for, or the seat is adopting it."""
    ADOPTED = "adopted"
    AGAIN = "anew"
    """By its command, since the state that its pod names can't be had."""


@dataclass(slots=True)
class Saved:
    """`artifact` is its name, `size` its bytes, `first` those of them that were on GPUs and
    that also a lazy restore brings in at once, `copies` the tiers that hold it verified.

    `images`: a folder into which it was fetched, `needs` what machine it was saved on, `paging` the
    artifact from which the tree's memory still comes in, `sinks_to` where it is being copied to,
    `copied` how many of its bytes are there, None if nothing is copied,
    `moved_at` when it last changed tiers. `undumpable`: why the tree stays in RAM. `unsealed`: the
    container ended while it was written down: a state of it may lie somewhere that nobody needs.

    `begins`: whether the seat continues from what its pod names. `predecessor`: the pod that it
    succeeds, if any, and `claimed` from which of its states. `borrowed`: `artifact` is another
    pod's, which may be dropped from the tiers `may_drop` once the seat has continued.
    """

    artifact: str = ""
    size: int = 0
    first: int = 0
    copies: frozenset[Tier] = frozenset()
    images: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    paging: str = ""
    sinks_to: Tier | None = None
    copied: int | None = None
    moved_at: float | None = None
    undumpable: str = ""
    unsealed: bool = False
    begins: Begins = Begins.OPEN
    predecessor: str = ""
    claimed: str = ""
    borrowed: bool = False
    may_drop: tuple[str, ...] = ()

    @property
    def there(self) -> frozenset[Tier]:
        """Tiers in which something of it lies: also what was fetched to NVMe, or is read there."""
        beside = bool(self.images or self.paging)
        return self.copies | {Tier.NVME} if beside else self.copies

    def settled(self, begins: Begins) -> None:
        """How the seat begins is known, or open again."""
        self.begins = begins

    def follows(self, artifact: str, size: int, first: int, tier: Tier) -> None:
        """The seat is to continue from another pod's state, which lies in this tier."""
        self.artifact, self.borrowed = artifact, True
        self.copies, self.size, self.first = frozenset({tier}), size, first

    def succeeds(self, predecessor: str, claimed: str, may_drop: tuple[str, ...]) -> None:
        """Whose state that is; of a copy nobody's."""
        self.predecessor, self.claimed, self.may_drop = predecessor, claimed, may_drop

    def adopted(self, now: float) -> None:
        """It continues from that state."""
        self.begins, self.moved_at = Begins.ADOPTED, now

    def follows_none(self) -> None:
        """The seat begins by its command: the state that its pod names can't be had."""
        self.begins, self.artifact, self.borrowed = Begins.AGAIN, "", False
        self.copies, self.size = frozenset(), 0

    def unused(self, begins: Begins) -> None:
        """Its container ended before it continued from another pod's state."""
        self.settled(begins)
        self.own()

    def own(self) -> None:
        """An artifact of it is its own from now on."""
        self.borrowed, self.may_drop = False, ()

    def dumping(self) -> None:
        """Its tree is being written down: a state of before is not what it is now."""
        self.unsealed_yet()
        self.images, self.unsealed = "", False

    def unsealed_yet(self) -> None:
        """No state of it is sealed."""
        self.artifact, self.copies = "", frozenset()

    def cut_short(self) -> None:
        """Its container ended while it was written down."""
        self.unsealed = True

    def refused(self, why: str) -> None:
        """It can't be written down."""
        self.undumpable = why

    def written(self, first: int) -> None:
        """Its images are there, with so many bytes that come in first."""
        self.first = first

    def sealed(self, artifact: str, size: int) -> None:
        """Its state is on NVMe, and noted."""
        self.artifact, self.copies, self.size = artifact, frozenset({Tier.NVME}), size

    def offloaded(self) -> None:
        """Its tree has ended, and the state is all there is."""
        self.undumpable = ""

    def sinks(self, tier: Tier) -> None:
        """It is being copied to this tier."""
        self.sinks_to = tier

    def begun(self) -> None:
        """Enough of it is there for what comes next; the rest comes meanwhile."""
        self.sinks_to = None

    def sank(self) -> None:
        """It is not being copied any more."""
        self.sinks_to = self.copied = None

    def counted(self, copied: int) -> None:
        """So many of its bytes are there."""
        self.copied = min(copied, self.size)

    def packed(self, *, whole: bool) -> None:
        """Whether the object store holds it verified."""
        object_store = frozenset({Tier.OBJECT})
        self.copies = self.copies | object_store if whole else self.copies - object_store

    def dropped_here(self) -> None:
        """NVMe holds nothing of it any more."""
        self.copies, self.images = self.copies - {Tier.NVME}, ""

    def fetched(self, images: str, needs: Mapping[str, Any]) -> None:
        """Its images are in this folder; what they need is kept beside them."""
        self.images, self.needs = images, needs

    def moved(self, now: float) -> None:
        """It has changed tiers."""
        self.moved_at = now

    def may_move(self) -> None:
        """It may change tiers at once, however lately it did."""
        self.moved_at = None

    def pages(self, artifact: str) -> None:
        """The tree's memory comes in from this state; empty: all of it is in."""
        self.paging = artifact
        if not (artifact or self.artifact):
            self.size = 0

    def forgotten(self) -> str:
        """It is worth nothing to the seat any more; returns its name, if there was one. What the
        tree's memory still comes from takes its room until that is in."""
        artifact, self.artifact, self.images = self.artifact, "", ""
        self.copies, self.size = frozenset(), self.size if self.paging else 0
        self.sank()
        return artifact
