"""Calling again what may succeed later.

Cancelling a task, or setting the event that a thread's pauses end with, ends its calls at once.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Errors = type[Exception] | tuple[type[Exception], ...]
    Say = Callable[[Exception], object]

T = TypeVar("T")

OUTSIDE = (KybernateError, OSError)
"""What calls to the world outside the process raise."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds between calls: `first`, each `growth` times the one before, `longest` at most, and by
    chance up to `jitter` of it more. They end before the call that would be one of more than
    `tries`."""

    first: float = 1.0
    longest: float = 5.0
    growth: float = 2.0
    jitter: float = 0.1
    tries: int | None = None

    def __iter__(self) -> Iterator[float]:
        pause = self.first
        for _ in itertools.count() if self.tries is None else range(self.tries - 1):
            yield pause * (1 + self.jitter * random.random())  # noqa: S311 - spreads load
            pause = min(pause * self.growth, self.longest)


AGAIN = Pauses()


class Clock(NamedTuple):
    """A thread's time. `sleep` may be an event's `wait`: a retry ends once that is set."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep


CLOCK = Clock()


def quietly(_: Exception) -> None:
    """Says nothing: what is waited for is no failure."""


def steadily(seconds: float) -> Pauses:
    """The same pause each time: for what is waited for, rather than broken."""
    return Pauses(seconds, seconds, jitter=0.0)


async def retry(
    call: Callable[[], Awaitable[T]],
    say: Say,
    on: Errors = OUTSIDE,
    but: Errors = (),
    pauses: Pauses = AGAIN,
    until: float = math.inf,
) -> T:
    """What `call` returns; after an error of `on`, of which `say` is told, it is called again.

    Raises the last error if no call is left, or if the next one would begin after `until`, in
    seconds of the running loop's clock; and at once what is of `but`, or not of `on`.
    """
    clock, pausing = asyncio.get_running_loop().time, iter(pauses)
    while True:
        try:
            return await call()
        except on as error:
            pause = next(pausing, math.inf)
            if isinstance(error, but) or clock() + pause >= until or pause == math.inf:
                raise
            say(error)
        await asyncio.sleep(pause)


def retry_blocking(
    call: Callable[[], T],
    say: Say,
    on: Errors = OUTSIDE,
    pauses: Pauses = AGAIN,
    until: float = math.inf,
    clock: Clock = CLOCK,
) -> T:
    """As `retry`, for threads."""
    pausing = iter(pauses)
    while True:
        try:
            return call()
        except on as error:
            pause = next(pausing, math.inf)
            if clock.now() + pause >= until or pause == math.inf:
                raise
            say(error)
            if clock.sleep(pause):
                raise
