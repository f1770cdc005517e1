"""Lists and events of pods and GPUNodes from their bytes, without what nobody here reads.

Most of a pod's JSON is of no use to placing it. Making Python objects of all of it costs five times
as much as of what is read; a schema has the JSON parser leave out the rest. Pure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from pydantic_core import SchemaValidator, core_schema

from kybernate.api.lenient import mappings
from kybernate.api.nodeseats import OF_SEATS, OF_STATUS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_core import CoreSchema

    Json = dict[str, Any]

_ANY = core_schema.any_schema()
_OBJECT = core_schema.dict_schema(core_schema.str_schema(), _ANY)


def _only(*names: str, **others: CoreSchema) -> CoreSchema:
    """An object with these fields alone, as far as it has them."""
    kinds = {**dict.fromkeys(names, _ANY), **others}
    fields = {
        name: core_schema.typed_dict_field(kind, required=False) for name, kind in kinds.items()
    }
    return core_schema.typed_dict_schema(fields, extra_behavior="ignore")


def _list(kind: CoreSchema) -> CoreSchema:
    return core_schema.nullable_schema(core_schema.list_schema(kind))


_NAMES = ("namespace", "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_NOTES = core_schema.nullable_schema(_OBJECT)
_CONTAINERS = _list(_only("name", resources=_only(limits=_NOTES)))

_POD = _only(
    # What an ERROR says instead of an object.
    *("message", "code"),
    metadata=_only(*_NAMES, "ownerReferences", annotations=_NOTES, labels=_NOTES),
    spec=_only(
        *("nodeName", "schedulerName", "priority", "preemptionPolicy", "schedulingGates"),
        containers=_CONTAINERS,
        initContainers=_CONTAINERS,
    ),
    status=core_schema.nullable_schema(_only("phase", "reason")),
)
_NODE = _only(
    *("message", "code"),
    metadata=_only(*_NAMES, "ownerReferences"),
    status=core_schema.nullable_schema(
        _only(
            *OF_STATUS,
            seats=_list(_only(*OF_SEATS)),
        )
    ),
)


def _answers(kind: CoreSchema) -> SchemaValidator:
    """A list or an event."""
    return SchemaValidator(_only("type", metadata=_OBJECT, items=_list(kind), object=kind))


def _decode(known: SchemaValidator, body: bytes) -> Json | None:
    try:
        found: Json = known.validate_json(body)
    except ValueError:
        return _whole(body)
    return found


def _whole(body: bytes) -> Json | None:
    """What isn't as such objects are is read as it is, if it is JSON at all."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("items"), list):
        return {**found, "items": mappings(found["items"])}
    return found


pods: Callable[[bytes], Json | None] = partial(_decode, _answers(_POD))
"""A list or an event of pods; None if the bytes are no JSON object."""

gpu_nodes: Callable[[bytes], Json | None] = partial(_decode, _answers(_NODE))
"""The same of GPUNodes."""
