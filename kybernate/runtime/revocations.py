"""The list of revoked nodes in the cluster: a ConfigMap that verifiers watch and a command writes.

Verifiers hear of a change within a second; while the API server is away what was heard last holds,
and agents' certificates end within a day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.core.nodeaccess import Access, read_list, why_not
from kybernate.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.adapters.k8s import Api, Watcher

_PATH = f"/api/v1/namespaces/{keys.NAMESPACE}/configmaps"
_ONE = {"fieldSelector": f"metadata.name={keys.REVOKED_NODES}"}


class Revocations:
    """What a verifier knows of the list. Safe to use from several threads.

    `changed` is called in the watch's thread with the nodes that are revoked now.
    """

    def __init__(self, changed: Callable[[frozenset[str]], None] = lambda _nodes: None) -> None:
        self._changed = changed
        self._known: Mapping[str, Access] = {}
        self._watch: Watcher | None = None

    def start(self, api: Api) -> None:
        """Begin to watch."""
        from kybernate.adapters.k8s import Watcher  # noqa: PLC0415 - not before an agent serves

        self._watch = Watcher(api, _PATH, _ONE, self._event, "revoked nodes")
        self._watch.start()

    def stop(self) -> None:
        """End the watch, within seconds."""
        if self._watch is not None:
            self._watch.stop()

    @property
    def synced(self) -> bool:
        """Whether the list is known."""
        return self._watch is not None and self._watch.synced.is_set()

    def why_not(self, node: str, made_ms: int) -> str:
        """Why an agent's certificate of this node that was made then doesn't count; empty if it
        does."""
        return why_not(self._known, node, made_ms)

    def of(self, node: str) -> Access | None:
        """What was last decided of a node."""
        return self._known.get(node)

    def _event(self, kind: str, item: dict[str, Any]) -> None:
        self._known = {} if kind == "DELETED" else read_list(item.get("data") or {})
        self._changed(frozenset(node for node, one in self._known.items() if one.revoked))


class List:
    """The list as who administers nodes writes it."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def read(self) -> dict[str, Access]:
        """All entries; without a ConfigMap there are none."""
        try:
            found = self._api.get(f"{_PATH}/{keys.REVOKED_NODES}")
        except NotFoundError:
            return {}
        return read_list(found.get("data") or {})

    def write(self, node: str, access: Access) -> None:
        """Set one entry; what others write beside it stays."""
        body: dict[str, Any] = {"data": {node: access.text()}}
        try:
            self._api.patch(f"{_PATH}/{keys.REVOKED_NODES}", body)
        except NotFoundError:
            try:
                self._api.post(_PATH, {"metadata": {"name": keys.REVOKED_NODES}, **body})
            except ConflictError:
                self._api.patch(f"{_PATH}/{keys.REVOKED_NODES}", body)
