"""The calls by which agents get at the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.adapters.registry import storewire
from kybernate.errors import ConfigError
from registry.http.calls import AGENTS, answers, routes_of

if TYPE_CHECKING:
    from kybernate.core.artifacts.layout import ObjectInfo
    from registry.http.calls import Answer, Call, Json, Route
    from registry.store.store import Store

_LARGEST = 24 << 20
"""Bytes of a call with the largest manifest, which travels as base64."""


def store_routes(store: Store | None) -> tuple[Route, ...]:
    """The calls; without a store each says so."""
    return routes_of(_StoreCalls(store))


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

    @answers("POST", "/v1/store/read", AGENTS, storewire.Readable, body=storewire.Reading)
    def read_objects(self, call: Call) -> Answer:
        """URLs to read objects by, of artifacts that the node's pods had or may continue from."""
        urls = self._store.readable(call.caller.node, call.body.keys, call.body.of)
        return {"urls": urls, "seconds": self._store.seconds}

    @answers("POST", "/v1/store/packs", AGENTS, storewire.Packable, body=storewire.Packing)
    def new_packs(self, call: Call) -> Answer:
        """Names for new packs, and URLs to put them by."""
        store = self._store
        made = store.packable(call.caller.node, call.body.namespace, call.body.packs)
        packs = [{"id": id_, "pack": pack, "index": index} for id_, pack, index in made]
        return {"packs": packs, "headers": store.headers, "seconds": store.seconds}

    @answers(
        *("PUT", "/v1/store/object", AGENTS, storewire.Done),
        body=storewire.Putting,
        largest=_LARGEST,
    )
    def put_object(self, call: Call) -> Answer:
        """A small object, such as a manifest, which is put only where there is none."""
        body = call.body
        self._store.put(call.caller.node, body.key, body.data, create=body.create)
        return {"done": True}

    @answers("POST", "/v1/store/head", AGENTS, storewire.Seen, body=storewire.Named)
    def head_object(self, call: Call) -> Answer:
        """What one object is."""
        return _seen(self._store.head(call.caller.node, call.body.keys[0]))

    @answers("GET", "/v1/store/objects", AGENTS, storewire.Listed, query=storewire.Listing)
    def list_objects(self, call: Call) -> Answer:
        """Objects below a prefix that the node may read, a page at a time."""
        query = call.query
        found, following = self._store.page(call.caller.node, query.prefix, query.after)
        return {"items": [_seen(info) for info in found], "next": following}

    @answers("POST", "/v1/store/delete", AGENTS, storewire.Done, body=storewire.Named)
    def delete_objects(self, call: Call) -> Answer:
        """Remove manifests of the node's own pods, and indexes of packs that it wrote or that are
        damaged."""
        self._store.delete(call.caller.node, call.body.keys)
        return {"done": True}


def _seen(info: ObjectInfo) -> Json:
    return {"key": info.key, "size": info.size, "modified": info.modified}
