"""The cluster's ArtifactGrants, kept up with by a watch.

Nothing is granted before all were listed. What was listed holds while the API server is away; a
change that is heard of holds at once. One that can't be read grants nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.grants import read_grant
from kybernate.errors import ConfigError, RetryableError

if TYPE_CHECKING:
    from kybernate.adapters.k8s import Source, Watcher
    from kybernate.core.artifacts.grants import Grant

    Json = dict[str, Any]

log = logging.getLogger(__name__)


class ArtifactGrants:
    """Fed by its watch's thread; any thread may ask."""

    def __init__(self) -> None:
        self._granted: dict[tuple[str, str], Grant] = {}
        self._lock = threading.Lock()
        self._watch: Watcher | None = None

    def start(self, api: Source) -> None:
        """Start listing and watching."""
        from kybernate.adapters.k8s import Watcher  # noqa: PLC0415 - an agent's seats come first

        self._watch = Watcher(
            *(api, keys.ARTIFACT_GRANTS_PATH, {}, self._on_event, "ArtifactGrants"), names_only=True
        )
        self._watch.start()

    def stop(self) -> None:
        """End the watch, within seconds."""
        if self._watch is not None:
            self._watch.stop()

    def all(self) -> tuple[Grant, ...]:
        """What is granted. Raises RetryableError until all were listed."""
        watch = self._watch
        if watch is None or not watch.synced.is_set():
            why = watch.last_error if watch is not None else None
            raise RetryableError(
                "another namespace's saved state needs an ArtifactGrant, and these are not listed "
                f"yet ({why or 'the list is under way'})"
            )
        with self._lock:
            return tuple(self._granted.values())

    def not_ready(self) -> str | None:
        """Why nothing is granted yet, while that takes a moment only, in a sentence: who restores
        nobody else's state waits for no API server that doesn't list them."""
        watch = self._watch
        if watch is None or watch.synced.is_set() or watch.last_error:
            return None
        return "ArtifactGrants are not listed yet"

    def _on_event(self, kind: str, item: Json) -> None:
        meta = item["metadata"]
        grant = None
        if kind != "DELETED" and not meta.get("deletionTimestamp"):
            try:
                grant = read_grant(item)
            except ConfigError as error:
                log.warning("it grants nothing: %s", error)
        with self._lock:
            if grant is None:
                self._granted.pop((meta["namespace"], meta["name"]), None)
            else:
                self._granted[meta["namespace"], meta["name"]] = grant
