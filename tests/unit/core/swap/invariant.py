"""The system's invariant itself, apart from the rules that keep it, and when to look again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.seats import OCCUPYING
from kybernate.core.swap.swap import decided, next_check

if TYPE_CHECKING:
    from kybernate.core.swap.swapview import SwapPolicy, SwapView


def next_look(view: SwapView, policy: SwapPolicy, now: float) -> float | None:
    """When the decision may be another though nothing happens."""
    return next_check(view, policy, now, decided(view, policy, now))


def violations(view: SwapView) -> tuple[str, ...]:
    """Breaches of the system's invariant, as sentences; empty when all is well."""
    found = []
    for gpu, memory in view.gpu_memory.items():
        on = [s for s in view.seats if s.state in OCCUPYING and gpu in s.gpus]
        slots = min((view.active_slots.get(s.group, 1) for s in on), default=1)
        names = ", ".join(s.name for s in on)
        if len(on) > slots:
            found.append(f"GPU {gpu} has {len(on)} active seats ({names}) for {slots} slots")
        room = memory - view.reserve
        need = sum(room - view.foreign.get(gpu, 0) if s.vram is None else s.vram for s in on)
        if need > room:
            found.append(f"seats {names} need {need} bytes of GPU {gpu}, which has {memory}")
    return tuple(found)
