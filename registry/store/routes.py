"""The calls by which agents get at the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.adapters.registry import storewire
from kybernate.adapters.registry.wire import Nothing
from kybernate.errors import ConfigError
from registry.http.callers import Role
from registry.http.routes import Route

if TYPE_CHECKING:
    from kybernate.core.artifacts.layout import ObjectInfo
    from registry.http.routes import Answer, Call
    from registry.store.store import Store

_AGENTS = frozenset({Role.AGENT})
_LARGEST = 24 << 20
"""Bytes of a call with the largest manifest, which travels as base64."""


def store_routes(store: Store | None) -> tuple[Route, ...]:
    """The calls; without a store each says so."""
    calls = _StoreCalls(store)
    return (
        Route(
            "readObjects",
            "POST",
            "/v1/store/read",
            "URLs to read objects by, of namespaces in which the node has a lease or claim.",
            _AGENTS,
            storewire.Readable,
            calls.read,
            body=storewire.Reading,
        ),
        Route(
            "newPacks",
            "POST",
            "/v1/store/packs",
            "Names for new packs, and URLs to put them by.",
            _AGENTS,
            storewire.Packable,
            calls.packs,
            body=storewire.Packing,
        ),
        Route(
            "putObject",
            "PUT",
            "/v1/store/object",
            "A small object, such as a manifest, which is put only where there is none.",
            _AGENTS,
            storewire.Done,
            calls.put,
            body=storewire.Putting,
            largest=_LARGEST,
        ),
        Route(
            "headObject",
            "POST",
            "/v1/store/head",
            "What one object is.",
            _AGENTS,
            storewire.Seen,
            calls.head,
            body=storewire.Named,
        ),
        Route(
            "listObjects",
            "GET",
            "/v1/store/objects",
            "Objects below a prefix, a page at a time.",
            _AGENTS,
            storewire.Listed,
            calls.page,
            query=storewire.Listing,
        ),
        Route(
            "deleteObjects",
            "POST",
            "/v1/store/delete",
            "Remove manifests of the node's own pods, and indexes of damaged packs.",
            _AGENTS,
            storewire.Done,
            calls.delete,
            Nothing,
            body=storewire.Named,
        ),
    )


class _StoreCalls:
    def __init__(self, store: Store | None) -> None:
        self._given = store

    @property
    def _store(self) -> Store:
        if self._given is None:
            raise ConfigError(
                "object_store",
                "this registry has none: set KYB_REGISTRY_OBJECT_STORE and the store's credentials "
                "there, or object_access: credentials at the agents",
            )
        return self._given

    def read(self, call: Call) -> Answer:
        urls = self._store.readable(call.caller.node, call.body.keys, call.body.of)
        return {"urls": urls, "seconds": self._store.seconds}, 200

    def packs(self, call: Call) -> Answer:
        store = self._store
        made = store.packable(call.caller.node, call.body.namespace, call.body.packs)
        packs = [{"id": id_, "pack": pack, "index": index} for id_, pack, index in made]
        return {"packs": packs, "headers": store.headers, "seconds": store.seconds}, 200

    def put(self, call: Call) -> Answer:
        body = call.body
        self._store.put(call.caller.node, body.key, body.data, create=body.create)
        return {"done": True}, 200

    def head(self, call: Call) -> Answer:
        return _seen(self._store.head(call.caller.node, call.body.keys[0])), 200

    def page(self, call: Call) -> Answer:
        query = call.query
        found, following = self._store.page(call.caller.node, query.prefix, query.after)
        return {"items": [_seen(info) for info in found], "next": following}, 200

    def delete(self, call: Call) -> Answer:
        self._store.delete(call.caller.node, call.body.keys)
        return {"done": True}, 200


def _seen(info: ObjectInfo) -> dict[str, object]:
    return {"key": info.key, "size": info.size, "modified": info.modified}
