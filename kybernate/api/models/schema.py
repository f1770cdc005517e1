"""The JSON schema of models.yaml, for editors: `python -m kybernate.api.models.schema`."""

from __future__ import annotations

import json
import sys
from typing import Any

from kybernate.api.models.file import ModelsFile
from kybernate.api.models.tidying import MEANINGLESS

Json = dict[str, Any]

MACRO = {"type": "string", "pattern": r"\$\{[A-Za-z0-9_.-]+\}"}
_TYPED = ("integer", "number", "boolean")


def schema() -> Json:
    """The schema as JSON. Wherever a number or a word of a list may stand, a macro may, too."""
    made = ModelsFile.model_json_schema(by_alias=True, mode="validation")
    told: Json = _with_macros(made)
    told["$schema"] = "http://json-schema.org/draft-07/schema#"
    told["title"] = "Kybernate's models.yaml"
    routing = "llama-swap's newer place for groups and, below scheduler, priority"
    told["properties"]["routing"] = {"type": "object", "description": routing}
    for path, said in MEANINGLESS.items():
        _mention(told, path, said)
    return told


def text() -> str:
    """The schema as it is written into a file."""
    return json.dumps(schema(), indent=2) + "\n"


def _with_macros(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_macros(one) for one in value]
    if not isinstance(value, dict):
        return value
    inner = {key: _with_macros(one) for key, one in value.items() if key != "default"}
    if isinstance(inner.get("title"), str):
        del inner["title"]  # pydantic's: the key, in another spelling
    if "default" in value:
        inner["default"] = value["default"]
    if value.get("type") in _TYPED or ("enum" in value and "type" in value):
        kept = {key: inner.pop(key) for key in ("description", "default", "title") if key in inner}
        return {"anyOf": [inner, MACRO], **kept}
    return inner


def _mention(told: Json, path: str, said: str) -> None:
    # So that an editor knows the key and says what it means here: nothing.
    place = told
    parts = path.split(".")
    for part in parts[:-1]:
        if part == "*":
            place = _resolved(told, place["additionalProperties"])
        else:
            place = _resolved(told, place["properties"][part])
    place["properties"][parts[-1]] = {"description": said, "deprecated": True}


def _resolved(told: Json, place: Json) -> Json:
    found: Json = place
    if "$ref" in place:
        found = told["$defs"][place["$ref"].rpartition("/")[2]]
    return found


if __name__ == "__main__":
    sys.stdout.write(text())
