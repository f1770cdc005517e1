"""What is seen of the running cluster: seats as the proxy lists them, memory as the driver logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests import simgpu

from .verdict import Wake

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SeatRow:
    """One seat, as a line of the table."""

    node: str
    group: str
    seat: str
    pod: str
    model: str
    state: str
    waiting: int
    in_flight: int
    wakes: int
    last_wake_ms: float


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU's memory: bytes by model, and in all."""

    node: str
    index: int
    memory: int
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the screen shows at one moment. `elapsed` in seconds."""

    elapsed: float
    planned: int
    statuses: Mapping[int, int]
    swaps: int
    seats: Sequence[SeatRow]
    gpus: Sequence[GpuRow]


def seat_rows(models: Mapping[str, Any]) -> list[SeatRow]:
    """The seats of the proxy's GET /v1/models, by node and group."""
    rows = [
        SeatRow(
            node=seat["node"],
            group=seat["group"],
            seat=seat["seat"],
            pod=seat["pod"].rpartition("/")[2],
            model=model["id"],
            state=seat["state"],
            waiting=seat["waiting"],
            in_flight=seat["in_flight"],
            wakes=seat["wakes"],
            last_wake_ms=seat["last_wake_ms"],
        )
        for model in models["data"]
        for seat in model["kyb"]["seats"]
    ]
    return sorted(rows, key=lambda row: (row.node, row.group, row.seat, row.pod))


class WakeBook:
    """Notices wakes: a seat's count that grew since the last look."""

    def __init__(self, gpus: Mapping[str, int]) -> None:
        """`gpus`: how many GPUs each model's seat has."""
        self.wakes: list[Wake] = []
        self._gpus = gpus
        self._seen: dict[tuple[str, str], int] = {}

    def look(self, rows: Sequence[SeatRow]) -> None:
        """Take in the seats as they are now; what was woken before the first look isn't counted."""
        for row in rows:
            key = (row.node, row.pod)
            before = self._seen.get(key, row.wakes)
            wake = Wake(row.model, row.node, row.group, self._gpus[row.model], row.last_wake_ms)
            self.wakes += [wake] * max(0, row.wakes - before)
            self._seen[key] = row.wakes


class Memory:
    """The GPUs of one node, and who holds their memory by the driver's log."""

    def __init__(self, node: str, root: Path, gpus: Sequence[tuple[str, int]]) -> None:
        """`gpus`: UUID and bytes of each, by index."""
        self.node = node
        self._root = root
        self._gpus = gpus

    def rows(self, models: Mapping[str, str]) -> list[GpuRow]:
        """One row per GPU. `models`: which pod (UID) serves which model."""
        held = simgpu.holdings(simgpu.read_log(self._root))
        return [
            GpuRow(
                self.node,
                index,
                memory,
                {models.get(pod, pod): size for pod, size in held.get(uuid, {}).items() if size},
            )
            for index, (uuid, memory) in enumerate(self._gpus)
        ]

    def overlaps(self, models: Mapping[str, str]) -> tuple[list[str], int]:
        """Moments at which two pods held memory of one GPU, in words; and how many lines say so."""
        records = simgpu.read_log(self._root)
        found = [
            f"{self.node}: {' and '.join(models.get(pod, pod) for pod in violation.holders)} "
            f"on {violation.gpu}"
            for violation in simgpu.violations(records)
        ]
        return found, len(records)
