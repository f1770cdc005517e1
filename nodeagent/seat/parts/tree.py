"""A seat's processes, and what of them is on its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import GpuUuid


@dataclass(frozen=True, slots=True)
class Process:
    """A process, named exactly: PID and start time in clock ticks since boot."""

    pid: int
    start: int


@dataclass(slots=True)
class Tree:
    """`init` is kyb-init, `root` the workload's first process, `handle` the freezer's name of all.

    `cuda` are its processes on the GPUs, `inner` their PIDs in the container, in the same order.
    `held` is bytes per GPU that they held when the seat was last parked; `gpu_map`: of a tree whose
    GPU memory comes from other GPUs, those GPUs and, for each, the seat's own.
    """

    init: Process | None = None
    root: Process | None = None
    handle: str = ""
    cuda: tuple[Process, ...] = ()
    inner: tuple[int, ...] = ()
    held: Mapping[GpuUuid, int] = field(default_factory=dict)
    gpu_map: Mapping[GpuUuid, GpuUuid] = field(default_factory=dict)
