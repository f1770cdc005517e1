"""What is known in each namespace, by name or UID."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Keyed(Generic[T]):
    """Things of namespaces, each under a name or UID, the last that was put as the last. Any thread
    may put and ask. A namespace without things takes no memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._those: dict[str, dict[str, T]] = {}

    def put(self, namespace: str, name: str, thing: T | None) -> T | None:
        """Have the thing stand there, with None nothing. Returns what stood there before."""
        with self._lock:
            those = self._those.setdefault(namespace, {})
            before = those.pop(name, None)
            if thing is not None:
                those[name] = thing
            elif not those:
                del self._those[namespace]
        return before

    def replace(self, namespace: str, name: str, before: T, thing: T) -> bool:
        """Have the thing stand where `before` does, in its order; whether it still did."""
        with self._lock:
            those = self._those.get(namespace, {})
            there = those.get(name) is before
            if there:
                those[name] = thing
        return there

    def get(self, namespace: str, name: str) -> T | None:
        """What stands there; None if nothing does."""
        return self._those.get(namespace, {}).get(name)

    def of(self, namespace: str) -> tuple[T, ...]:
        """The things of a namespace."""
        with self._lock:
            return tuple(self._those.get(namespace, {}).values())

    def all(self) -> tuple[T, ...]:
        """The things of all namespaces."""
        with self._lock:
            return tuple(one for those in self._those.values() for one in those.values())

    def keys(self, namespace: str = "") -> list[tuple[str, str]]:
        """Namespace and name of each thing, of all namespaces if none is given."""
        with self._lock:
            spaces = [namespace] if namespace else [*self._those]
            return [(one, name) for one in spaces for name in self._those.get(one, ())]
