"""A node's GPUs and the models that share them, in virtual time, under any policy. Pure.

A model's requests start at once while it is active, up to `Costs.slots` side by side; each takes
its own time. Which model is in GPU memory is the policy's. A swap takes the model's bytes over its
GPU's bus: out and in are separate ways, each of them used by one model at a time. A model that is
parked with requests in flight continues them when it is active again. Where host RAM has a limit
(`Costs.ram_gb`), what it has no room for is on NVMe: see `hostram`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from kybernate.core.simulate.hostram import HostRam
from kybernate.core.swap.activity import Recorder
from kybernate.core.tiers.tiers import Speed
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kybernate.core.simulate.trace import Trace


class Where(IntEnum):
    """What a model does."""

    PARKED = 0
    WAKING = 1
    ACTIVE = 2
    PARKING = 3


class _Event(IntEnum):
    DONE = 0
    PARKED = 1
    WOKEN = 2
    MOVED = 3
    """Between RAM and NVMe."""


NVME: Final = Speed(write=3e9, read=3e9)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a node can do: GB of a GPU, GB per second in (`wake`) and out (`park`) of its memory,
    seconds that each swap takes besides (`fixed`), requests of a model at once (`slots`). Host RAM
    has room for `ram_gb` GB of parked models, and below it is `nvme`.

    Beside others a model needs `room` (a share of its size) more, for its caches. A request is in
    time if its answer begins within `slack` seconds plus `wakes` times its model's own wake.
    """

    gpu_gb: float = 80.0
    wake: float = 20.0
    park: float = 20.0
    fixed: float = 0.0
    room: float = 0.2
    slots: int = 16
    slack: float = 2.0
    wakes: float = 2.0
    ram_gb: float = math.inf
    nvme: Speed = NVME


class Policy(Protocol):
    """Decides who is woken and parked."""

    def act(self, world: World) -> float:
        """Do what should be done now; returns when to be asked again without an event (s)."""


_TINY: Final = 1e-9


def _host_ram(costs: Costs, sizes: Sequence[float], seen: Sequence[Recorder]) -> HostRam | None:
    limited = costs.ram_gb < math.inf
    return HostRam(sizes, costs.ram_gb, costs.nvme, seen) if limited else None


class World:
    """What a policy sees; it may `wake`, `park`, `close` and `reopen` models, by their numbers."""

    def __init__(self, trace: Trace, gpus: int, costs: Costs) -> None:
        n = len(trace.sizes)
        self.trace, self.costs, self.gpus = trace, costs, gpus
        self.now = 0.0
        self.size = list(trace.sizes)
        self.need = [min(costs.gpu_gb, size * (1 + costs.room)) for size in trace.sizes]
        self.wakes_in = [costs.fixed + size / costs.wake for size in trace.sizes]
        self.parks_in = [costs.fixed + size / costs.park for size in trace.sizes]
        self.within = [costs.slack + costs.wakes * wake for wake in self.wakes_in]
        self.state = [Where.PARKED] * n
        self.gpu = [-1] * n
        self.on: list[set[int]] = [set() for _ in range(gpus)]
        """The models in each GPU's memory, or on their way in or out."""
        self.queue: list[deque[float]] = [deque() for _ in range(n)]
        """When each model's requests came that have not begun."""
        self.running = [0] * n
        self.left: list[list[float]] = [[] for _ in range(n)]
        """Seconds of work that are left of requests in flight, of models that were parked."""
        self.closed = [False] * n
        """Active, but new requests wait: it drains."""
        self.touched: set[int] = set()
        """Models of which something changed; who goes by what it saw before empties it."""
        self.waiting: set[int] = set()
        """Models with requests that have not begun or were interrupted, and that aren't active."""
        self.active_since = [0.0] * n
        self.used_at = [0.0] * n
        self.seen = [Recorder(0.0) for _ in range(n)]
        self.calls = [0] * n
        self.waits: list[list[float]] = [[] for _ in range(n)]
        self.swaps = self.interrupted = 0
        self.late = 0
        """Requests that did not begin in time."""
        self.active = [0.0] * n
        """Seconds for which each model was active before its last wake."""
        self._work: list[deque[float]] = [deque() for _ in range(n)]
        self._ends: list[dict[int, float]] = [{} for _ in range(n)]
        self._events: list[tuple[float, int, _Event, int]] = []
        self._serial = 0
        self._out, self._in = [0.0] * gpus, [0.0] * gpus
        self.ram = _host_ram(costs, self.size, self.seen)
        """Where parked models are; None: all of them have room in RAM."""

    # --- what a policy asks -------------------------------------------------------------------

    def fits(self, model: int, beside: Iterable[int]) -> bool:
        """Whether the model may be in a GPU's memory beside these."""
        others = sum([self.need[o] for o in beside])
        return not others or self.need[model] + others <= self.costs.gpu_gb + _TINY

    def gpu_seconds(self, model: int) -> float:
        """For which it has been active."""
        active = self.state[model] is Where.ACTIVE
        return self.active[model] + (self.now - self.active_since[model] if active else 0.0)

    def idle(self, model: int) -> bool:
        """Without a request."""
        return not self.running[model] and not self.queue[model]

    # --- what a policy does -------------------------------------------------------------------

    def close(self, model: int) -> None:
        """Have new requests of an active model wait, while those in flight end."""
        self.closed[model] = True
        self.touched.add(model)

    def reopen(self, model: int) -> None:
        """Let those that wait go ahead again."""
        self.closed[model] = False
        self.waiting.discard(model)
        self.touched.add(model)
        self._admit(model)

    def park(self, model: int) -> None:
        """Begin to take an active model out of GPU memory, with what is in flight."""
        if self.state[model] is not Where.ACTIVE:
            raise ValueError(f"model {model} is not active")
        if self.running[model]:
            self.interrupted += self.running[model]
            self.left[model] = [end - self.now for end in self._ends[model].values()]
            self._ends[model].clear()
        self.state[model], self.closed[model] = Where.PARKING, False
        self.active[model] += self.now - self.active_since[model]
        self.touched.add(model)
        if self.queue[model] or self.left[model]:
            self.waiting.add(model)
        if self.ram is None or self.ram.takes(model):
            self._leave(model)

    def _leave(self, model: int) -> None:
        gpu = self.gpu[model]
        self._out[gpu] = max(self.now, self._out[gpu]) + self.parks_in[model]
        self._push(self._out[gpu], _Event.PARKED, model)

    def wake(self, model: int, gpu: int) -> None:
        """Begin to bring a parked model into a GPU's memory, where it fits."""
        if self.state[model] is not Where.PARKED or not self.fits(model, self.on[gpu]):
            raise ValueError(f"model {model} can't be woken on GPU {gpu}")
        self.state[model], self.gpu[model] = Where.WAKING, gpu
        self.touched.add(model)
        self.on[gpu].add(model)
        self.swaps += 1
        if self.ram is None or self.ram.gives(model):
            self._enter(model)

    def _enter(self, model: int) -> None:
        gpu = self.gpu[model]
        self._in[gpu] = max(self.now, self._in[gpu]) + self.wakes_in[model]
        self._push(self._in[gpu], _Event.WOKEN, model)

    # --- time ---------------------------------------------------------------------------------

    def run(self, policy: Policy, most_late: float = math.inf) -> None:
        """Play the trace until every request has begun, or more are late than `most_late`."""
        # Who always wants its GPU waits for no request.
        at, begun, check = self.trace.at, 0, 0.0 if self.trace.always else math.inf
        while (begun < len(at) or self.waiting or any(self.queue)) and self.late <= most_late:
            next_one = at[begun] if begun < len(at) else math.inf
            event = self._events[0][0] if self._events else math.inf
            self.now = min(next_one, event, check)
            if self.now == math.inf:
                raise RuntimeError(f"the policy leaves requests for {sorted(self.waiting)} waiting")
            if next_one <= event and next_one <= check:
                changed = self._arrive(begun)
                begun += 1
            elif event <= check:
                changed = self._happen()
            else:
                changed = True
            if changed:
                again = policy.act(self)
                if self.ram is not None:
                    again = min(again, self._look_at(self.ram))
                check = max(again, self.now + 1e-6)

    def _arrive(self, number: int) -> bool:
        """Whether the arrival is something that a policy should look at."""
        m, work = self.trace.models[number], self.trace.work[number]
        self.calls[m] += 1
        self.touched.add(m)
        if not self.running[m] and not self.queue[m]:
            self.seen[m].note(self.now, serving=True, wanted=True)
        active = self.state[m] is Where.ACTIVE and not self.closed[m]
        if active and self.running[m] < self.costs.slots:
            self.waits[m].append(0.0)
            self._start(m, work)
            return False
        self.queue[m].append(self.now)
        self._work[m].append(work)
        if active:
            return False
        self.waiting.add(m)
        return self.state[m] is not Where.WAKING

    def _happen(self) -> bool:
        self.now, serial, event, m = heapq.heappop(self._events)
        self.touched.add(m)
        if event is _Event.DONE:
            return self._done(m, serial)
        if event is _Event.MOVED:
            self._moved(m)
        elif event is _Event.PARKED:
            self.state[m] = Where.PARKED
            self.on[self.gpu[m]].discard(m)
            self.gpu[m] = -1
            if self.ram is not None:
                self.ram.parked(m, self.now)
        else:
            self._woken(m)
        # Where RAM has a limit, who left it may have made room for a park.
        return bool(self.waiting or self.trace.always) or self.ram is not None

    def _moved(self, m: int) -> None:
        asked = m in self.waiting or m in self.trace.always
        if self.ram is not None and self.ram.moved(m, self.now, asked=asked):
            self._enter(m)

    def _look_at(self, ram: HostRam) -> float:
        """Have parked models go where they should be; returns when to look again (s)."""
        asking = sorted(self.waiting, key=self.asks_since)
        asking += sorted(self.trace.always - self.waiting)
        begun = ram.look(asking, self.now)
        for m in begun.parks:
            self._leave(m)
        for m, when in begun.moves:
            self.touched.add(m)
            self._push(when, _Event.MOVED, m)
        return begun.again

    def asks_since(self, model: int) -> float:
        """When the oldest request that waits came; of interrupted ones, as of their last wake."""
        queue = self.queue[model]
        return queue[0] if queue else self.active_since[model] + 10.0

    def _done(self, m: int, serial: int) -> bool:
        if self._ends[m].pop(serial, None) is None:
            return False  # it was interrupted, and ends later
        self.running[m] -= 1
        self.used_at[m] = self.now
        if not self.closed[m]:
            self._admit(m)
        if self.running[m]:
            return False
        if not self.queue[m]:
            self.seen[m].note(self.now, serving=False, wanted=False)
        return True

    def _woken(self, m: int) -> None:
        self.state[m] = Where.ACTIVE
        self.active_since[m] = self.used_at[m] = self.now
        self.waiting.discard(m)
        if self.ram is not None:
            self.ram.woken(m)
        left, self.left[m], self.running[m] = self.left[m], [], 0
        for work in left:
            self._start(m, work)
        self._admit(m)

    def _admit(self, m: int) -> None:
        while self.queue[m] and self.running[m] < self.costs.slots:
            waited = self.now - self.queue[m].popleft()
            self.waits[m].append(waited)
            self.late += waited > self.within[m] + _TINY
            self._start(m, self._work[m].popleft())

    def _start(self, m: int, work: float) -> None:
        self.running[m] += 1
        self._push(self.now + work, _Event.DONE, m)
        self._ends[m][self._serial] = self.now + work

    def _push(self, when: float, event: _Event, model: int) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, event, model))
