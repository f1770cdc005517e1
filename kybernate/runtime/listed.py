"""Objects of one kind as they are read, kept up with by a watch.

What was listed holds while the API server is away; a change that is heard of holds at once. What
can't be read counts as absent, and is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.k8s import Source, Watcher

    Json = dict[str, Any]

T = TypeVar("T")

log = logging.getLogger(__name__)

_POLL_S = 0.02


class Listed(Generic[T]):
    """Fed by its watch's thread, which tells `changed` in which namespace; any thread may ask.
    `read` raises ConfigError for an object that is to count as absent."""

    def __init__(
        self,
        path: str,
        name: str,
        read: Callable[[Json], T],
        changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path, self._name = path, name
        self._read, self._changed = read, changed
        self._found: dict[str, dict[str, T]] = {}
        self._lock = threading.Lock()
        self._watch: Watcher | None = None

    def start(self, api: Source) -> None:
        """Start listing and watching."""
        from kybernate.adapters.k8s import OF_USERS, Watcher  # noqa: PLC0415 - an agent's seats come first

        self._watch = Watcher(
            *(api, self._path, {}, self._on_event, self._name), names_only=True, page=OF_USERS
        )
        self._watch.start()

    def stop(self) -> None:
        """End the watch, within seconds."""
        if self._watch is not None:
            self._watch.stop()

    def all(self) -> tuple[T, ...]:
        """Those that are known."""
        with self._lock:
            return tuple(one for those in self._found.values() for one in those.values())

    def of(self, namespace: str) -> tuple[T, ...]:
        """Those of a namespace."""
        with self._lock:
            return tuple(self._found.get(namespace, {}).values())

    @property
    def unlisted(self) -> str | None:
        """Why not all are known, in a sentence; None once they are."""
        watch = self._watch
        if watch is not None and watch.synced.is_set():
            return None
        return (watch.last_error if watch else None) or "the list is under way"

    def settled(self) -> bool:
        """Whether they are listed, or can't be for now: who can do without them waits no longer."""
        watch = self._watch
        return watch is not None and (watch.synced.is_set() or bool(watch.last_error))

    def settle(self, limit: float) -> None:
        """Wait until they are `settled`, at most `limit` seconds."""
        end = time.monotonic() + limit
        while not self.settled() and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _on_event(self, kind: str, item: Json) -> None:
        meta = item["metadata"]
        # Of what belongs to the cluster as a whole the namespace is empty.
        namespace, name, found = meta.get("namespace", ""), meta["name"], None
        if kind != "DELETED" and not meta.get("deletionTimestamp"):
            try:
                found = self._read(item)
            except ConfigError as error:
                log.warning("%s %s/%s: %s", self._name, namespace, name, error)
        with self._lock:
            those = self._found.setdefault(namespace, {})
            those.pop(name, None)
            if found is not None:
                those[name] = found
            elif not those:
                del self._found[namespace]
        self._changed(namespace)
