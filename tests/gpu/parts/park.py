"""Parking in RAM: how fast, what stays on the GPU, and where in the process the bytes lie."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.swap.drivermemory import Grown, grown
from tests.gpu import machine, speed
from tests.gpu.driver import ByAdapter, ByBindings, parker
from tests.gpu.held import Held, held, model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_MOST = 17 << 30
_PIECE = 2 << 20
_ROUNDS = 3
_MAIN = 0.55
"""Share of the time for the main model's cycles."""


def answers(here: Here) -> Iterator[Answer]:
    """One big model, then the same memory in three other ways."""
    amount = machine.room(here.uuid, _MOST, 0.6, 1.2)
    with parker(60.0) as ours:
        bare = ByBindings()
        before = machine.used_bytes(here.uuid)
        with model(here.uuid, amount) as one:
            yield from _cycles(here, one, ours, bare)
            yield from _parked(here, one, ours, before)
        yield from _variants(here, ours, amount)


def _cycles(here: Here, one: Held, ours: ByAdapter, bare: ByBindings) -> Iterator[Answer]:
    another = here.another(here.until - (1 - _MAIN) * here.left())
    found, count = speed.Cycles(), 0
    for found in speed.cycles(one, here.uuid, ours, bare, another):  # noqa: B007 - the last one
        count += 1
    yield "park.answers_equal", True, f"{2 * count} wakes, the same answer after each"
    yield "park.bytes", found.freed, f"used by NVML before less after, {found.freed >> 20} MiB"
    yield "park.cycles", count, "by time"
    said = f"the median of {count}"
    park, wake = found.speeds(found.ours)
    yield "park.park_gb_s", park, said
    yield "park.wake_gb_s", wake, said
    for name, value in zip(("park", "wake"), found.speeds(found.bare), strict=True):
        yield f"park.bare_{name}_gb_s", value, said
    yield "park.ratio_bare", found.bare.cycle() / found.ours.cycle(), "medians of park and wake"
    up = here.known.get("bus.to_gpu_gb_s")
    ratio = None if up is None else wake / up
    yield "park.ratio_bus", ratio, "in this run" if up else "the bus was not measured in this run"


def _parked(here: Here, one: Held, ours: ByAdapter, before: int) -> Iterator[Answer]:
    """One park, looked at from all sides."""
    active, maps = machine.used_bytes(here.uuid), _maps(one.pid)
    memory = _resident(one.pid)
    ours.park(one.pid)
    freed = max(1, active - machine.used_bytes(here.uuid))
    residual = (machine.used_bytes(here.uuid) - before) / (1 << 20)
    yield "park.residual_mib", residual, "used by NVML while parked, less before its start"
    listed = one.pid in _listed(here.uuid)
    yield "park.listed", listed, "by nvmlDeviceGetComputeRunningProcesses"
    came = (_resident(one.pid) - memory) / freed
    yield "park.host_ratio", came, "resident and swapped memory by /proc, in part the kernel's view"
    added, parked = grown(maps, _maps(one.pid)), _maps(one.pid)
    yield from _added(added, parked, freed)
    huge = machine.number_after(Path(f"/proc/{one.pid}/smaps_rollup"), "AnonHugePages")
    yield "park.huge_share", huge * 1024 / freed, "AnonHugePages of the parked process"
    ours.wake(one.pid)
    stays = grown(maps, _maps(one.pid))
    left = sum(end - start for start, end in stays.private) + stays.shared
    yield "park.added_gone", left < 0.05 * freed, f"{left >> 20} MiB of what came stay mapped"


def _added(added: Grown, maps: bytes, freed: int) -> Iterator[Answer]:
    """Where the driver keeps the bytes: what the product marks so that it comes first."""
    private = sum(end - start for start, end in added.private)
    share = (private + added.shared) / freed
    said = f"{private >> 20} MiB private, {added.shared >> 20} MiB shared"
    yield "park.added_share", share, said
    yield "park.added_spans", len(added.private), said
    yield "park.added_found", share >= 0.95, said
    first = min((start for start, _ in added.private), default=0)
    others = [span for span in _private(maps) if span not in added.private]
    above = sum(end - start for start, end in others if start > first)
    whole = max(1, sum(end - start for start, end in others))
    yield "park.added_below", above / whole, "by /proc/PID/maps: a low one is read first by address"


def _variants(here: Here, ours: ByAdapter, amount: int) -> Iterator[Answer]:
    pieces = max(1, min(4096, amount // _PIECE))
    pinned = min(4 << 30, machine.available_ram() // 8, amount // 4)
    equal, asked = True, list[str]()
    for name, size, words in (
        ("small_pages", amount, ("--small-pages",)),
        ("pieces", pieces * _PIECE, (f"--pieces={pieces}",)),
        ("pinned", amount, (f"--pinned={pinned}",)),
    ):
        if here.left() < 2:
            for verb in ("park", "wake"):
                yield (
                    f"park.{name}_{verb}_gb_s",
                    None,
                    "no time was left; asked alone the part has all of it",
                )
            continue
        found, same = _variant(here, ours, size, words)
        equal, asked = equal and same, [*asked, name]
        for verb, value in zip(("park", "wake"), found, strict=True):
            yield f"park.{name}_{verb}_gb_s", value, f"{size >> 20} MiB, {' '.join(words)}"
    yield "park.variants_equal", equal if asked else None, f"asked: {', '.join(asked) or 'none'}"


def _variant(
    here: Here, ours: ByAdapter, amount: int, words: tuple[str, ...]
) -> tuple[tuple[float, float], bool]:
    times, freed = speed.Times(), 0
    with held(here.uuid, "hold", f"--bytes={amount}", *words) as one:
        expected, equal = one.answer(), True
        for number in range(min(here.rounds, _ROUNDS)):
            if number and here.left() < 1:
                break
            freed = speed.cycle(one, here.uuid, ours, times)
            equal = equal and one.answer() == expected
    return speed.Cycles(freed=freed).speeds(times), equal


def _listed(uuid: str) -> list[int]:
    library = machine.nvml()
    handle = library.nvmlDeviceGetHandleByUUID(uuid.encode())
    return [int(one.pid) for one in library.nvmlDeviceGetComputeRunningProcesses(handle)]


def _maps(pid: int) -> bytes:
    return Path(f"/proc/{pid}/maps").read_bytes()


def _private(maps: bytes) -> list[tuple[int, int]]:
    """Memory that belongs to no file and can be written, by address."""
    found = []
    for line in maps.splitlines():
        words = line.split()
        if len(words) < 6 and words[1].startswith(b"rw-p"):
            with suppress(ValueError):
                start, _, end = words[0].partition(b"-")
                found.append((int(start, 16), int(end, 16)))
    return found


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    return sum(machine.number_after(status, key) for key in ("VmRSS", "VmSwap")) << 10
