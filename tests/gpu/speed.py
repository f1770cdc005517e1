"""Seconds and bytes per second: of parks and wakes, and of copies over the bus."""

from __future__ import annotations

import ctypes
import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.gpu.held import timed
from tests.gpu.machine import used_bytes
from tests.workloads.device import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gpu.driver import Parker
    from tests.gpu.held import Held

_COPIES = 5


@dataclass
class Times:
    """Seconds of each park and wake by one way."""

    parks: list[float] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    def cycle(self) -> float:
        """Median seconds of a park and a wake together."""
        return statistics.median(p + w for p, w in zip(self.parks, self.wakes, strict=True))


@dataclass
class Cycles:
    """Bytes that a park gave back, and both ways' times, taken in turns."""

    freed: int = 0
    ours: Times = field(default_factory=Times)
    bare: Times = field(default_factory=Times)

    def speeds(self, times: Times) -> tuple[float, float]:
        """Median GB/s of a park and of a wake."""
        parks, wakes = statistics.median(times.parks), statistics.median(times.wakes)
        return self.freed / parks / 1e9, self.freed / wakes / 1e9


def cycles(
    model: Held, uuid: str, ours: Parker, bare: Parker, another: Callable[[int], bool]
) -> Iterator[Cycles]:
    """Park and wake by each way in turns as long as `another(number)` says so, and tell the state
    after each round. Raises AssertionError if the model answers otherwise than before."""
    expected, found, number = model.answer(), Cycles(), 0
    while another(number):
        # Who comes first changes, so that no way always finds the warmer machine.
        pairs = [(ours, found.ours), (bare, found.bare)]
        for way, times in pairs if number % 2 else reversed(pairs):
            found.freed = cycle(model, uuid, way, times)
            told = model.answer()
            assert told == expected, f"cycle {number}: it answered {told} instead of {expected}"
        number += 1
        yield found


def cycle(model: Held, uuid: str, way: Parker, times: Times) -> int:
    """Park and wake once; the bytes that the park gave back."""
    before = used_bytes(uuid)
    times.parks.append(timed(way.park, *model.pids))
    freed = before - used_bytes(uuid)
    times.wakes.append(timed(way.wake, *model.pids))
    return freed


@contextmanager
def context() -> Iterator[None]:
    """This process has the first GPU's context meanwhile."""
    call("cuInit", 0)
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    try:
        yield
    finally:
        call("cuCtxSetCurrent", 0)
        call("cuDevicePrimaryCtxRelease", device)


def bus(amount: int) -> tuple[float, float]:
    """Bytes per second to and from pinned host memory, the best of some copies."""
    with context():
        host = int(call("cuMemHostAlloc", amount, 0))
        ctypes.memset(host, 1, amount)
        try:
            return copies(host, amount)
        finally:
            call("cuMemFreeHost", host)


def copies(host: int, amount: int) -> tuple[float, float]:
    """The same for any host memory, in a context."""
    there = call("cuMemAlloc", amount)
    try:
        up = min(timed(call, "cuMemcpyHtoD", there, host, amount) for _ in range(_COPIES))
        down = min(timed(call, "cuMemcpyDtoH", host, there, amount) for _ in range(_COPIES))
    finally:
        call("cuMemFree", there)
    return amount / up, amount / down
