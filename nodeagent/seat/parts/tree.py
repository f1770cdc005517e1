"""A seat's processes, and what of them is on its GPUs."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

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
    GPU memory comes from other GPUs, those GPUs and, for each, the seat's own. `stays_on`: why it
    can't wake on another GPU than it was parked on, empty while it may.
    """

    init: Process | None = None
    root: Process | None = None
    handle: str = ""
    cuda: tuple[Process, ...] = ()
    inner: tuple[int, ...] = ()
    held: Mapping[GpuUuid, int] = field(default_factory=dict)
    gpu_map: Mapping[GpuUuid, GpuUuid] = field(default_factory=dict)
    stays_on: str = ""

    def greeted(self, init: Process) -> None:
        """Its kyb-init has called."""
        self.init = init

    def placed(self, root: Process, handle: str) -> None:
        """The workload's first process is there, and the freezer has all that it will start."""
        self.root, self.handle = root, handle

    def uses(self, cuda: tuple[Process, ...], held: Mapping[GpuUuid, int] | None = None) -> None:
        """These are on its GPUs, with so many bytes where that was measured."""
        self.cuda = cuda
        if held is not None:
            self.held = held

    def named_inside(self, cuda: tuple[Process, ...], inner: tuple[int, ...]) -> None:
        """What those on its GPUs are called in the container, for when they are recreated."""
        self.cuda, self.inner = cuda, inner

    def follows(
        self,
        inner: tuple[int, ...],
        held: Mapping[GpuUuid, int],
        gpu_map: Mapping[GpuUuid, GpuUuid],
    ) -> None:
        """It is to be recreated from a state of another container."""
        self.cuda, self.inner, self.held, self.gpu_map = (), inner, held, gpu_map

    def moves(self, onto: Mapping[GpuUuid, GpuUuid]) -> None:
        """Its memory comes onto other GPUs than its own: for each of these, which."""
        before = self.gpu_map or {gpu: gpu for gpu in onto}
        moved = {old: onto.get(own, own) for old, own in before.items()}
        self.gpu_map = moved if any(old != new for old, new in moved.items()) else {}
        self.held = {onto.get(gpu, gpu): size for gpu, size in self.held.items()}

    def stands(self) -> None:
        """Its memory is on its own GPUs."""
        self.gpu_map = {}

    def is_tied(self, why: str) -> None:
        """It can't wake on other GPUs than it was parked on."""
        self.stays_on = why

    def follows_none(self) -> None:
        """It is to be recreated from no state."""
        self.inner, self.gpu_map = (), {}

    def ran_out(self) -> None:
        """No process but kyb-init is left, which waits for the tree to be recreated."""
        self.root = None

    def recreated(self, root: Process, cuda: tuple[Process, ...]) -> None:
        """Its processes are back."""
        self.root, self.cuda = root, cuda

    def woke(self) -> None:
        """Whoever uses its GPUs at the next park is asked again: workers come and go."""
        self.cuda, self.held, self.gpu_map = (), {}, {}

    def unknown(self) -> None:
        """What was known of its processes isn't true; its kyb-init, which says it, is the same."""
        self.root = None
        self.handle, self.cuda = "", ()

    def ended(self) -> None:
        """Nothing of it is left, kyb-init included."""
        self.unknown()
        self.init, self.held, self.gpu_map, self.stays_on = None, {}, {}, ""
