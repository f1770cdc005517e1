"""Objects of one kind as they are read, kept up with by a watch.

What was listed holds while the API server is away; a change that is heard of holds at once. What
can't be read counts as absent, and is logged.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kybernate.errors import ConfigError, NotFoundError, RefusedError
from kybernate.lib.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.adapters.k8s import Source, Stream, Watcher

    Json = dict[str, Any]
    Params = Mapping[str, str | int | bool]

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
        self._found: Keyed[T] = Keyed()
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
        return self._found.all()

    def of(self, namespace: str) -> tuple[T, ...]:
        """Those of a namespace."""
        return self._found.of(namespace)

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
        self._found.put(namespace, name, found)
        self._changed(namespace)


class IfServed:
    """An API server that has no objects of a kind which it doesn't serve. Implements `Source`.

    Whoever is newer than `config/` does what there are kinds for, and knows that there is nothing
    of the others. Once one is served, the watch tells of all: it begins at version 0.
    """

    def __init__(self, api: Source) -> None:
        self._api = api
        self._missing: dict[str, None] = {}

    @property
    def missing(self) -> int:
        """How many kinds are not served, of those that were asked for."""
        return len(self._missing)

    def get(self, path: str, params: Params, *, timeout: float) -> Json:
        """See `Source`."""
        try:
            found = self._api.get(path, params, timeout=timeout)
        except (NotFoundError, RefusedError):
            if self._serves(path, timeout):
                raise
            if path not in self._missing:
                log.warning("%s is not served: apply config/crd of this release", path)
            self._missing[path] = None
            return {"metadata": {"resourceVersion": "0"}}
        self._missing.pop(path, None)
        return found

    def _serves(self, path: str, timeout: float) -> bool:
        group, _, plural = path.rpartition("/")
        try:
            found = self._api.get(group, {}, timeout=timeout).get("resources") or ()
        except NotFoundError:
            return False
        return any(one.get("name") == plural for one in found)

    def watch(self, path: str, params: Params, *, timeout: float) -> Stream:
        """See `Source`."""
        found = self._api.watch(path, params, timeout=timeout)
        self._missing.pop(path, None)
        return found
