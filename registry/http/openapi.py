"""The OpenAPI document of the API, made of the same table and models that serve it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic.json_schema import models_json_schema

from kybernate.adapters.registry import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from registry.http.calls import Route

    Json = dict[str, Any]

PATH = "/openapi.json"
_REFERENCE = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request is wrong; the sentence names the field.",
    "403": "The certificate's role may not do that, or it is of a pod of another node.",
    "409": "The world is another than the caller thought; read and decide again.",
    "503": "The database does not answer; ask again after Retry-After.",
}
_MISSING = {"404": "Nothing of that name is known."}


def document(routes: Sequence[Route]) -> Json:
    """The document, OpenAPI 3.1."""
    bodies: list[type[BaseModel]] = [one.body for one in routes if one.body is not None]
    answers = [one.answer for one in routes]
    models: dict[type[BaseModel], None] = dict.fromkeys([*bodies, *answers, wire.Error])
    asked: list[tuple[type[BaseModel], Literal["validation"]]]
    asked = [(model, "validation") for model in models]
    _, schemas = models_json_schema(asked, ref_template=_REFERENCE)
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kybernate registry",
            "version": "v1",
            "description": "Which artifacts exist, where they are, and which pod continues from "
            "which. Mutual TLS; times are milliseconds since 1970 in UTC, sizes are bytes.",
        },
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _operation(route: Route) -> Json:
    found: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "x-roles": sorted(route.roles),
        "parameters": [*_parameters(route.of, "path"), *_parameters(route.query, "query")],
        "responses": _responses(route),
    }
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": _content(route.body)}
    return found


def _parameters(model: type[BaseModel], where: str) -> list[Json]:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    definitions = schema.get("$defs", {})
    needed = schema.get("required", ())
    return [
        {"name": name, "in": where, "required": name in needed, "schema": _inlined(of, definitions)}
        for name, of in schema.get("properties", {}).items()
    ]


def _inlined(schema: Any, definitions: Json) -> Any:
    """The schema with those that it refers to in their place."""
    if isinstance(schema, list):
        return [_inlined(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    name = re.fullmatch(r"#/components/schemas/(.+)", str(schema.get("$ref", "")))
    if name:
        return _inlined(definitions[name[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}


def _responses(route: Route) -> Json:
    ok = {"description": route.summary, "content": _content(route.answer)}
    found = {"200": ok, **({"201": ok} if route.created else {})}
    errors = _ERRORS | (_MISSING if "{" in route.path or route.name.startswith("latest") else {})
    told = {"content": _content(wire.Error)}
    return found | {status: {"description": text, **told} for status, text in errors.items()}


def _content(model: type[BaseModel]) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
