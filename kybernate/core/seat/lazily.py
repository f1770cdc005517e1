"""Whether a tree is restored before its memory is in. Pure.

Eagerly nothing runs before the last byte is there. Lazily the tree runs at once and gets each page
when it touches it, which takes longer by the byte. What it had on its GPUs lies in its memory, and
the driver reads all of that before the first answer. Where its place is known it comes first, as
fast as the whole would; what isn't known of it counts as needed at once, page after page, unless
everything has come meanwhile. So it pays where much of the memory is not the GPUs'.
"""

from __future__ import annotations

from dataclasses import replace

from kybernate.dataclass import dataclass

_MIB = 1 << 20
_GAIN = 0.25
"""Seconds that it must save: below that a tree had better be whole."""
_START = 0.1
"""Seconds until the first instruction, however large the tree."""
_TELLING = 64 * _MIB
"""Bytes from which on a restore says something of rates."""
_WEIGHT = 0.3
_ASKED_FOR = 0.2
"""Of the lazy rate: how fast memory is read that is asked for page by page while the rest comes. Of
the last in line 16 MiB came at 0.14, 256 MiB at 0.35 (docs/results/benchmarks.md); the
first in line at the rate.
"""
_CONTEXT = 512 << 20
"""Bytes of each GPU that NVML counts and no checkpoint keeps: about what a context takes there."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of a restore, whole and page by page. What bench.node.park saw, until this
    node has seen others."""

    eager: float = 1.0e9
    lazy: float = 0.5e9

    def learned(self, size: int, seconds: float, *, lazy: bool) -> Rates:
        """With one more restore of `size` bytes."""
        if size < _TELLING or seconds <= 0:
            return self
        before = self.lazy if lazy else self.eager
        rate = before + _WEIGHT * (size / seconds - before)
        return replace(self, lazy=rate) if lazy else replace(self, eager=rate)


def pays(size: int, device: int, rates: Rates, first: int = 0, gpus: int = 1) -> bool:
    """Whether the first answer of a state of `size` bytes, which had `device` on its `gpus`, comes
    so much sooner that it is worth it. `first`: bytes of those that are in place before."""
    eagerly = size / rates.eager
    later, contexts = max(0, size - first), min(first, gpus * _CONTEXT)
    unknown = max(0, device - contexts - first)
    lazily = _START + first / rates.eager + min(unknown / _ASKED_FOR, later) / rates.lazy
    return eagerly - lazily >= _GAIN
