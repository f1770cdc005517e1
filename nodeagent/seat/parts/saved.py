"""A seat's saved state: which it is, where it lies, and whose it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import Tier


class Begins(StrEnum):
    """How a seat's workload begins, as far as it is settled."""

    OPEN = ""
    """If its pod names a state to go on from, that is still looked for."""
    ADOPTING = "adopting"
    """By a state that it may have: its kyb-init is being told, or was."""
    ADOPTED = "adopted"
    ANEW = "anew"
    """By its command, since the state that its pod names can't be had."""


@dataclass(slots=True)
class Saved:
    """`artifact` is the saved state, `size` its bytes, `first` those of them that were on GPUs and
    that also a lazy restore brings in at once, `copies` the tiers that hold it verified.

    `images`: a folder into which it was fetched, `needs` what machine it was saved on, `paging` the
    saved state from which the tree's memory still comes in, `sinks_to` where it is being copied to,
    `moved_at` when it last changed tiers. `undumpable`: why the tree stays in RAM. `unsealed`: the
    container ended while it was written down: a state of it may lie somewhere that nobody needs.

    `begins`: whether the seat goes on from what its pod names. `predecessor`: the pod that it
    succeeds, if any, and `claimed` from which of its states. `borrowed`: `artifact` is another
    pod's, which may be dropped from the tiers `may_drop` once the seat has gone on.
    """

    artifact: str = ""
    size: int = 0
    first: int = 0
    copies: frozenset[Tier] = frozenset()
    images: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    paging: str = ""
    sinks_to: Tier | None = None
    moved_at: float | None = None
    undumpable: str = ""
    unsealed: bool = False
    begins: Begins = Begins.OPEN
    predecessor: str = ""
    claimed: str = ""
    borrowed: bool = False
    may_drop: tuple[str, ...] = ()
