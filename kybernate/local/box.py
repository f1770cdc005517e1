"""What answers people's requests asks of a box: which models there are, and what to do with them.

Requests themselves go the way they go in a cluster: a `proxy.desk.Desk` admits each
(`await desk.admit(ticket, model, client)`), holds it until its model is active, and counts what is
in flight, so that a model is drained before it is parked. `Box.join` gives such a desk the box's
models as its seats.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from kybernate.types import SeatState
    from proxy.desk import Desk


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model as it is now.

    `size`: bytes of GPU memory that it holds, or that its park put away; `tier`: of a parked one,
    where its state is (ram, nvme, object), else empty. `wake_s`: seconds until it is expected to
    answer if it is requested now; 0.0 while it is active, and None before its first start, of
    which nobody knows how long it takes. `address`: host:port, empty until it serves. `why`: a
    sentence on its state. `active_since`, `idle_since`: on the clock of the event loop, None if it
    isn't. `pinned`: it leaves GPU memory for no other model. `phases`: seconds of its last park or
    wake, or of its last way to or from NVMe, by phase.
    """

    name: str
    state: SeatState
    gpus: tuple[str, ...]
    size: int = 0
    tier: str = ""
    wake_s: float | None = None
    address: str = ""
    why: str = ""
    active_since: float | None = None
    idle_since: float | None = None
    in_flight: int = 0
    waiting: int = 0
    wakes: int = 0
    pinned: bool = False
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU of the box. `memory` and `others`, what processes of no model have of it, in bytes."""

    uuid: str
    index: int
    product: str
    memory: int
    others: int = 0


class Box(Protocol):
    """One box's models. All methods are for the event loop's thread.

    A model is called by its name in the file, never by an alias. NotFoundError: the file has no
    such model. RefusedError says in a sentence what can't be done and what to do instead.
    """

    def models(self) -> tuple[ModelRow, ...]:
        """All models of the file that this box can run, in its order; quick."""
        ...

    def gpus(self) -> tuple[GpuRow, ...]:
        """The box's GPUs, in the driver's order; quick."""
        ...

    def count(self) -> None:
        """Set the metrics that nobody sets as things happen: seats by state; quick."""
        ...

    def join(self, desk: Desk) -> None:
        """The desk's requests are for this box's models; once, on the running loop."""
        ...

    async def park(self, model: str, deadline: float) -> None:
        """Out of GPU memory, its state kept; it wakes on the next request. Idempotent.
        DeadlineError: it is still on its way."""
        ...

    async def wake(self, model: str, deadline: float) -> None:
        """Into GPU memory, started if it doesn't run. DeadlineError: it is still on its way."""
        ...

    async def unload(self, model: str, deadline: float) -> None:
        """End its processes; the next request starts it again. Idempotent. DeadlineError: it is
        still on its way."""
        ...

    def pin(self, model: str, *, pinned: bool) -> None:
        """Whether it stays in GPU memory whoever else needs it; until the file is read again."""
        ...

    def logs(self, model: str, *, follow: bool) -> AsyncIterator[bytes]:
        """What its command wrote and is still kept, in pieces; with `follow` also what it writes
        from now on, without end. The model's own words: not to be trusted."""
        ...
