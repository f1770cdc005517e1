"""PCIe, as copies see it, and what pinning costs."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

from tests.gpu import machine, speed
from tests.gpu.held import timed
from tests.workloads.device import call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_COPY = 1 << 30


def answers(here: Here) -> Iterator[Answer]:
    """Copies of at most 1 GiB, the best of five."""
    amount = machine.room(here.uuid, _COPY, 0.25, 2)
    said = f"the best of five copies of {amount >> 20} MiB"
    up, down = speed.bus(amount)
    yield "bus.to_gpu_gb_s", up / 1e9, said
    yield "bus.from_gpu_gb_s", down / 1e9, said
    with speed.context(), mmap.mmap(-1, amount) as plain:
        ctypes.memset(_address(plain), 1, amount)
        up, down = speed.copies(_address(plain), amount)
        yield "bus.pageable_to_gpu_gb_s", up / 1e9, said
        yield "bus.pageable_from_gpu_gb_s", down / 1e9, said
        place: list[int] = []
        took = timed(lambda: place.append(int(call("cuMemHostAlloc", amount, 0))))
        call("cuMemFreeHost", place[0])
        yield "bus.pin_gb_s", amount / took / 1e9, f"{amount >> 20} MiB at once"
    for name, advice in (("small", mmap.MADV_NOHUGEPAGE), ("huge", mmap.MADV_HUGEPAGE)):
        yield (f"bus.pin_{name}_gb_s", *_register(amount, advice))


def _register(amount: int, advice: int) -> tuple[float | None, str]:
    """Pin an arena whose pages are there already."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with speed.context(), mmap.mmap(-1, amount, flags=kind) as arena:
        try:
            arena.madvise(advice)
        except OSError as error:
            return None, f"madvise is refused: {error}"
        place = _address(arena)
        ctypes.memset(place, 1, amount)
        try:
            took = timed(call, "cuMemHostRegister", place, amount, 0)
        except RuntimeError as error:
            where = "not here: simulated: " if machine.simulated() else ""
            return None, f"{where}{error}"
        call("cuMemHostUnregister", place)
    return amount / took / 1e9, f"{amount >> 20} MiB whose pages were there"


def _address(memory: mmap.mmap) -> int:
    # The view is gone at once, or the mapping could not be closed.
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
