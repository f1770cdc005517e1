"""What watches have told: requests as they were last seen, and where agents are."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from controller.kinds import R
from kybernate.api.lenient import mapping, text
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.kinds import Kind
    from controller.queue import Key

    Json = dict[str, Any]

log = logging.getLogger(__name__)


class Seen(NamedTuple, Generic[R]):
    """A request, and what a write of its status needs."""

    request: R
    version: str
    generation: int
    status: object


class Requests(Generic[R]):
    """The objects of one kind. Fed by the watch's thread and by what is written; any thread may
    ask. `due` is told of each that others have changed, `told` of each that anybody has."""

    def __init__(
        self,
        kind: Kind[R],
        due: Callable[[Key], None],
        told: Callable[[Key], None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._due = due
        self._told = told
        self._lock = threading.Lock()
        self._seen: dict[Key, Seen[R]] = {}
        self._gone: dict[Key, list[R]] = {}
        self._unread: dict[Key, str] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        key = _key(item)
        deleted = kind == "DELETED" or "deletionTimestamp" in item["metadata"]
        seen = None if deleted else self._read(item)
        with self._lock:
            before = self._seen.pop(key, None)
            self._unread.pop(key, None)
            uid = "" if deleted else str(item["metadata"]["uid"])
            if before and before.request.uid != uid and before.request.under_way:
                self._gone.setdefault(key, []).append(before.request)
            if seen is not None:
                self._seen[key] = seen
            elif not deleted:
                self._unread[key] = uid
        if before is None or seen is None or seen.version != before.version:
            self._due(key)
            self._told(key)

    def wrote(self, item: Json) -> None:
        """What a write of ours was answered with."""
        seen = self._read(item)
        key = _key(item)
        with self._lock:
            known = self._seen.get(key)
            if seen is not None and known and known.request.uid == seen.request.uid:
                self._seen[key] = seen
        self._told(key)

    def get(self, key: Key) -> Seen[R] | None:
        """The request as it was last seen; None if it is gone."""
        return self._seen.get(key)

    def gone(self, key: Key) -> list[R]:
        """Those of this name that went since the last call, and had not ended."""
        with self._lock:
            return self._gone.pop(key, [])

    def of(self, namespace: str) -> list[R]:
        """Those of a namespace, as they were last seen."""
        with self._lock:
            return [one.request for key, one in self._seen.items() if key[0] == namespace]

    def all(self) -> list[R]:
        """Those of all namespaces, as they were last seen."""
        with self._lock:
            return [one.request for one in self._seen.values()]

    def wanted(self) -> frozenset[str]:
        """The UIDs of those that have not ended, as far as this version can tell."""
        with self._lock:
            unread = [*self._unread.values()]
        return frozenset([*(one.uid for one in self.all() if not one.ended), *unread])

    def _read(self, item: Json) -> Seen[R] | None:
        meta = item["metadata"]
        try:
            request = self._kind.read(item)
        except ConfigError as error:
            log.warning("it is left alone: %s", error)
            return None
        version, generation = str(meta["resourceVersion"]), int(meta.get("generation") or 1)
        return Seen(request, version, generation, item.get("status"))


class Nodes:
    """The agents' addresses, as GPUNodes tell them."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        name = str(item["metadata"]["name"])
        if kind == "DELETED":
            self._addresses.pop(name, None)
        else:
            self._addresses[name] = address_of(item)

    def address(self, node: str) -> str:
        """host:port of the node's agent; empty if nobody knows."""
        return self._addresses.get(node, "")

    def names(self) -> list[str]:
        """Nodes whose agents' addresses are known."""
        return [name for name, address in tuple(self._addresses.items()) if address]


def address_of(node: Json) -> str:
    """Where a GPUNode says that its agent is."""
    return text(mapping(mapping(node.get("status")).get("agent")).get("address"))


_OF_META = (
    *("namespace", "name", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)


def slim_request(item: Json) -> Json:
    """What matters of a request: spec and status are short by their definition, while labels and
    annotations may be as long as an object can be, and there may be thousands."""
    meta = item["metadata"]
    found: Json = {"metadata": {name: meta[name] for name in _OF_META if name in meta}}
    return found | {part: item[part] for part in ("spec", "status") if part in item}


def slim_node(item: Json) -> Json:
    """What matters of a GPUNode: most of it is about seats, and changes all the time."""
    meta = item["metadata"]
    names = {name: meta[name] for name in ("name", "uid", "resourceVersion") if name in meta}
    return {"metadata": names, "status": {"agent": {"address": address_of(item)}}}


def _key(item: Json) -> Key:
    return str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
