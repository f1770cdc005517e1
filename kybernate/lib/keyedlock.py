"""One at a time for each key."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")
L = TypeVar("L")


class KeyedLocks(Generic[K, L]):
    """A lock of the event loop's, or of threads, for each key; forgotten once nobody has it in
    hand. Any thread may ask."""

    def __init__(self, make: Callable[[], L]) -> None:
        self._make = make
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[K, L] = WeakValueDictionary()

    def __getitem__(self, key: K) -> L:
        """The same one for whoever asks while somebody holds it or waits for it."""
        with self._guard:
            found = self._locks.get(key)
            if found is None:
                found = self._locks[key] = self._make()
            return found
