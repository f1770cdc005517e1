"""A machine's processes, and what containers run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.ports import ProcessState

if TYPE_CHECKING:
    from kybernate.types import GpuUuid, PodUid


@dataclass(slots=True)
class FakeProcess:
    """A process; `memory` in bytes by GPU, held unless CHECKPOINTED.

    `main`: its end is the container's. `stuck`: a restore ran out of memory, so that no later one
    succeeds. `inner` is its PID in its container. `told`: the GPUs that its command was started
    with, none where it was told none. `strayed`: it began on those after its seat had moved; what
    it holds there is too little to count.
    """

    pid: int
    start: int
    uid: PodUid
    parent: int = 0
    handle: str = ""
    alive: bool = True
    port: int | None = None
    cuda: ProcessState = ProcessState.NO_CUDA
    memory: dict[GpuUuid, int] = field(default_factory=dict)
    signalled: bool = False
    main: bool = False
    stuck: bool = False
    inner: int = 0
    told: tuple[GpuUuid, ...] = ()
    strayed: bool = False


@dataclass(slots=True)
class App:
    """What a container runs once its gate opens. `size` in bytes per GPU, over all `ranks`."""

    gpus: tuple[GpuUuid, ...]
    size: int
    port: int | None = 8000
    delay: float = 0.5
    """Seconds until it serves."""
    ranks: int = 1
    """Processes that use the GPUs."""
