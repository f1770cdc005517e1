"""Work of several threads, taken in the order in which it was given."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def threads(count: int, name: str) -> Iterator[Executor]:
    """A pool whose work is over when the block ends; what has not begun by then never will."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def ordered(
    pool: Executor,
    work: Callable[[T], R],
    items: Iterable[T],
    ahead: int,
    at_once: int = 1,
) -> Iterator[R]:
    """`work` of each item, in order; at most `ahead` are under way or wait to be taken.

    `at_once`: how many are waited for together, at most `ahead`. Where work is short, threads that
    wake each other for each of it take more time for that than for the work.
    """
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= ahead:
            waiting[at_once - 1].exception()
            for _ in range(at_once):
                yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
