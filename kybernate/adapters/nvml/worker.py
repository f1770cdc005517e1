"""Calls that may hang, made in a thread that is given up at its deadline and replaced."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_AT_ONCE = 0.001
"""Seconds that an event loop waits on the spot: most answers take a tenth of it, less than it takes
the loop to be told of them."""

MAX_HUNG = 8


class Worker:
    """Asks NVML in a thread, and takes another one when a question outlives its deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: Thread | None = None
        self._given_up: list[Thread] = []

    def run(self, question: Callable[[], T], deadline: float) -> T:
        """The answer, or what it raised. Raises DeadlineError after `deadline` seconds."""
        if isinstance(threading.current_thread(), Thread):
            return question()  # part of a call that `answer` watches over
        thread, future = self._begin(question)
        try:
            return future.result(deadline)
        except TimeoutError as error:
            raise self._given_up_by(thread, deadline) from error

    def hung(self, topic: str | None = None) -> bool:
        """Whether a call that was given up is still on its way; one about `topic`, if given."""
        with self._lock:
            stuck = [thread for thread in self._given_up if thread.is_alive()]
        return any(topic is None or thread.topic == topic for thread in stuck)

    @contextmanager
    def about(self, topic: str) -> Iterator[None]:
        """What is asked in here is about `topic`; see `hung`."""
        thread = threading.current_thread()
        if isinstance(thread, Thread):
            thread.topic = topic
        try:
            yield
        finally:
            if isinstance(thread, Thread):
                thread.topic = None

    async def answer(self, question: Callable[[], T], deadline: float) -> T:
        """Like `run`, for an event loop, which is held up for `_AT_ONCE` at most."""
        thread, future = self._begin(question)
        try:
            return future.result(_AT_ONCE)
        except TimeoutError:
            pass
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline)
        except TimeoutError as error:
            raise self._given_up_by(thread, deadline) from error

    def _begin(self, question: Callable[[], T]) -> tuple[Thread, Future[T]]:
        future: Future[T] = Future()
        thread = self._current()
        thread.questions.put((future, question))
        return thread, future

    def _given_up_by(self, thread: Thread, deadline: float) -> DeadlineError:
        self._give_up(thread)
        return DeadlineError(f"NVML gave no answer within {deadline:g} s.")

    def _current(self) -> Thread:
        with self._lock:
            self._given_up = [thread for thread in self._given_up if thread.is_alive()]
            if len(self._given_up) >= MAX_HUNG:
                raise DeadlineError("NVML hangs: reset the node's GPUs, or reboot it.")
            if self._thread is None:
                self._thread = Thread()
            return self._thread

    def _give_up(self, thread: Thread) -> None:
        with self._lock:
            if self._thread is thread:
                self._thread = None
                thread.given_up = True
                self._given_up.append(thread)


class Thread(threading.Thread):
    """Answers one question after the other until it is given up."""

    def __init__(self) -> None:
        super().__init__(name="nvml", daemon=True)
        self.questions: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = (
            queue.SimpleQueue()
        )
        self.given_up = False
        self.topic: str | None = None
        self.start()

    def run(self) -> None:
        """The thread's life."""
        while not self.given_up:
            future, question = self.questions.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(question())
            except Exception as error:  # noqa: BLE001  (carried to the caller)
                future.set_exception(error)
