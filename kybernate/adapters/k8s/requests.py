"""CheckpointRequests as a watch tells them, by what they are about."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.requests import read_request
from kybernate.errors import ConfigError

from .watch import OF_USERS, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.requests.checkpoint import Request

    from .api import Api

    Json = dict[str, Any]
    Known = tuple[Request, str]

log = logging.getLogger(__name__)


class RequestIndex:
    """Fed by its watch's thread; any thread may ask. One that can't be read counts for nothing."""

    def __init__(
        self,
        api: Api,
        about: Callable[[Request], str | None],
        told: Callable[[str, str, Request | None], None] = lambda *_: None,
    ) -> None:
        """`about` says under which key, within its namespace, a request is found; None: it isn't
        kept. `told` is told of each by namespace and name, as it is now, None for one that went."""
        self._about = about
        self._told = told
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], dict[str, Known]] = {}
        self._keys: dict[tuple[str, str], str | None] = {}
        path = keys.CHECKPOINT_REQUESTS_PATH
        self.watch = Watcher(
            *(api, path, {}, self.on_event, "CheckpointRequests"), names_only=True, page=OF_USERS
        )

    def not_ready(self) -> str | None:
        """Why it can't be said yet what there is, while that takes a moment only, in a sentence.
        An API server that doesn't list requests holds up nobody: before an upgrade's new rules a
        service's account may not ask for them."""
        if self.watch.synced.is_set() or self.watch.last_error:
            return None
        return "the first list of CheckpointRequests is under way"

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        meta = item["metadata"]
        namespace, name = str(meta["namespace"]), str(meta["name"])
        request = _read(item) if kind != "DELETED" else None
        key = None if request is None else self._about(request)
        with self._lock:
            self._forget(namespace, name)
            if kind != "DELETED":
                self._keys[namespace, name] = key
            if request is not None and key is not None:
                known = request, str(meta["resourceVersion"])
                self._found.setdefault((namespace, key), {})[name] = known
        self._told(namespace, name, request)

    def of(self, namespace: str, key: str) -> dict[str, Known]:
        """Those under this key by their names, each with its resourceVersion."""
        with self._lock:
            return dict(self._found.get((namespace, key), {}))

    def has(self, namespace: str, name: str) -> bool:
        """Whether there is one of this name, whatever it is about, and whether it can be read."""
        with self._lock:
            return (namespace, name) in self._keys

    def _forget(self, namespace: str, name: str) -> None:
        key = self._keys.pop((namespace, name), None)
        if key is None:
            return
        left = self._found[namespace, key]
        del left[name]
        if not left:
            del self._found[namespace, key]


def _read(item: Json) -> Request | None:
    try:
        return read_request(item)
    except ConfigError as error:
        log.warning("it counts for no eviction: %s", error)
        return None
