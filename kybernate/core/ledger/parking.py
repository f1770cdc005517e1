"""How many seats a node bears: what can't be on its GPUs has to fit its host's memory. Pure.

The device plugin lists free seats by this, and the extender places pods by it: a pod that is placed
always finds a seat listed, also when several come at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.types import Gpu


def seat_cost(gpus: Iterable[Gpu], vram: int | None) -> int:
    """Bytes that a seat on these GPUs may fill. `vram` is per GPU; None is all of each."""
    return sum(gpu.memory if vram is None else min(vram, gpu.memory) for gpu in gpus)


def bears(on_gpus: int, park_budget: int, total: int, largest: int) -> bool:
    """Whether seats of `total` bytes, the largest of `largest`, can live on a node.

    `on_gpus` are the bytes of its GPUs that are well. Where those don't hold all, the host must
    also have room for one seat more: a seat is parked before the other one wakes.
    """
    return total <= on_gpus + max(0, park_budget - largest)
