"""An event loop of timers only: no descriptors, no system calls, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from asyncio import _set_running_loop
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SPIN_LIMIT = 50_000


class Spinning(Exception):  # noqa: N818 - a finding
    """Something goes on for ever without time passing."""


class _Call(asyncio.TimerHandle):
    """What is to be called. Without asyncio's bookkeeping for debugging, which costs the most."""

    __slots__ = ("args", "callback")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._when = when
        self._cancelled = False
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        """Never call it; what it holds is let go at once."""
        self._cancelled = True
        self.callback, self.args = None, ()


class TimerLoop(asyncio.BaseEventLoop):
    """Cheap to make, so that each life of an agent has its own. Begins at `start` seconds.
    Several are run side by side by `turn`.

    Callbacks run without a context of their own: nothing in a storm has context variables.
    """

    _ready: deque[_Call]
    _stopping: bool

    def __init__(self, start: float) -> None:
        super().__init__()
        self._virtual = start
        self._spins = 0
        self._timers: list[tuple[float, int, _Call]] = []
        self._order = itertools.count()
        self.problems: list[str] = []
        self._turning: asyncio.Task[None] | None = None
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Call:
        """In the next round."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        call = _Call(self._virtual, callback, args)
        self._ready.append(call)
        return call

    # There are no other threads: what a thread would call comes from `run_in_executor`.
    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> _Call:
        """Seconds from now."""
        return self.call_at(self._virtual + delay, callback, *args)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> _Call:
        """At a time; of two at the same time, the one that was asked for first comes first."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        call = _Call(when, callback, args)
        heapq.heappush(self._timers, (when, next(self._order), call))
        return call

    def run_in_executor(
        self, executor: object, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """At once: nothing here blocks."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Also the timers."""
        super().close()
        self._timers.clear()

    # --- step by step -----------------------------------------------------------------------------

    def begin(self, main: Coroutine[Any, Any, None]) -> None:
        """Have `main` run by `turn`; what it raises is a problem."""
        self._turning = asyncio.Task(main, loop=self)
        self._turning.add_done_callback(self._begun)

    def _begun(self, main: asyncio.Future[None]) -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            self._note(self, {"exception": error, "message": "at the start"})

    def due(self) -> float:
        """When the next thing happens, `inf` if nothing is left."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if self._ready:
            return self._virtual
        return timers[0][0] if timers else math.inf

    def turn(self) -> None:
        """One round of what happens next, as the running loop. Lets through what kills."""
        _set_running_loop(self)
        try:
            self._run_once()
        finally:
            _set_running_loop(None)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        self._pass_time()
        while timers and timers[0][0] <= self._virtual:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            call = ready.popleft()
            if call.callback is not None:
                try:
                    call.callback(*call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio does
                    self._note(self, {"exception": error, "message": repr(call.callback)})

    def _pass_time(self) -> None:
        if not self._ready and not self._stopping:
            if not self._timers:
                raise Spinning("nothing is left that could ever happen")
            if self._timers[0][0] > self._virtual:
                self._virtual, self._spins = self._timers[0][0], 0
                return
        self._spins += 1
        if self._spins > _SPIN_LIMIT:
            raise Spinning(f"the agent spins at {self._virtual:.3f} s")

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.problems.append(f"unhandled {error!r}: {context.get('message')}")
