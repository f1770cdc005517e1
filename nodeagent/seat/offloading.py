"""What the agent needs to offload seats; without it every parked seat stays there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import Into
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.checkpoint.delivery.outbox import Outbox
    from kybernate.checkpoint.placed import PlacedCopies
    from kybernate.ports import Culprits, Dumper, Gatekeeper, Vault
    from kybernate.types import ArtifactId, Tier
    from nodeagent.seat.record import Seat


async def own_state(seat: Seat) -> Into:
    """`Offloading.into` where no seat continues from another pod's state."""
    return Into(seat.identity.pod.namespace, seat.uid)


def none_first(images: Path) -> int:
    """`Offloading.first` where nobody can tell."""
    return 0


def weighs_nothing(seat: Seat) -> int:
    """`Offloading.weigh` where nobody can tell."""
    return 0


async def all_whole(artifact: ArtifactId) -> bool:
    """`Offloading.whole` where nothing comes from other nodes."""
    return True


def whole_in(inbox: Inbox) -> Callable[[ArtifactId], Awaitable[bool]]:
    """`Offloading.whole` of what came by this one, of which a power cut may have left a part.
    Raises DeadlineError, OSError."""

    async def is_whole(artifact: ArtifactId) -> bool:
        try:
            await asyncio.to_thread(inbox.see_whole, artifact)
        except (NotFoundError, CorruptError, RefusedError):
            return False
        return True

    return is_whole


@dataclass(frozen=True, slots=True)
class Offloading:
    """`facts` gathers what an artifact's manifest says of its seat; raises NotFoundError if the
    seat's container is gone. `limits`: bytes that each deeper tier than RAM may hold; one that
    isn't named isn't there. `into`: the seat's container as a state is held against it; raises like
    `facts`, and RetryableError. `weigh`: about how many bytes a tree's dump takes, quick. `first`:
    bytes of a dump, by its folder, that also a lazy restore brings in at once, quick. `inbox` and
    `outbox`: states from other nodes and to them; `whole`: whether what NVMe has of one is all
    there; `placed`: copies that TierPlacements want here, None without an object store."""

    dumper: Dumper
    vault: Vault
    gatekeeper: Gatekeeper
    culprits: Culprits
    facts: Callable[[Seat], Awaitable[Mapping[str, object]]]
    limits: Mapping[Tier, int]
    into: Callable[[Seat], Awaitable[Into]] = own_state
    weigh: Callable[[Seat], int] = weighs_nothing
    first: Callable[[Path], int] = none_first
    inbox: Inbox | None = None
    outbox: Outbox | None = None
    whole: Callable[[ArtifactId], Awaitable[bool]] = all_whole
    placed: PlacedCopies | None = None
