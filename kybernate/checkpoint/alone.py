"""One at a time works on what has a name, also where an earlier one was given up and still runs.

A disk that hangs keeps a thread after its caller has been told so; when it answers again, that
thread must not go on with what the caller has begun anew meanwhile.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.lib.deadline import Deadline


class Alone:
    """Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[str, _Held] = WeakValueDictionary()

    @contextmanager
    def with_(self, name: str, until: Deadline) -> Iterator[None]:
        """Nobody else is within this for the same name. Raises DeadlineError, also if the caller
        has been given up before its turn."""
        with self._lock:
            held = self._held.setdefault(name, _Held())
        if not held.lock.acquire(timeout=until.left):
            raise DeadlineError(
                f"an earlier call for {name} still hangs at the disk or store of the saved states; "
                "see to that first"
            )
        try:
            until.check()
            yield
        finally:
            held.lock.release()


class _Held:
    """A lock that can be forgotten once nobody has it in hand."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
