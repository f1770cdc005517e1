"""The schema that editors complete with knows each key that counts, and those that don't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kybernate.api.models import Model, ModelsFile
from kybernate.api.models.schema import schema, text
from kybernate.api.models.tidying import MEANINGLESS

COMMITTED = Path(__file__).parents[4] / "config/models.schema.json"


def keys(of: dict[str, Any]) -> set[str]:
    return set(of["properties"])


def test_every_key_is_there_with_a_sentence() -> None:
    made = schema()
    model = made["$defs"]["Model"]
    assert {field.alias for field in Model.model_fields.values()} <= keys(model)
    assert {field.alias for field in ModelsFile.model_fields.values()} <= keys(made)
    for part in (made, *made["$defs"].values()):
        assert part["additionalProperties"] is False
        for name, one in part["properties"].items():
            assert one.get("description"), name


def test_keys_that_mean_nothing_are_marked() -> None:
    made = schema()
    for path, said in MEANINGLESS.items():
        place = made["$defs"]["Model"] if path.startswith("models.") else made
        if ".timeouts." in path:
            place = made["$defs"]["Timeouts"]
        told = place["properties"][path.rpartition(".")[2]]
        assert told == {"description": said, "deprecated": True}


def test_a_macro_may_stand_for_a_number() -> None:
    port = schema()["properties"]["startPort"]
    kinds = [one["type"] for one in port["anyOf"]]
    assert kinds == ["integer", "string"]


def test_the_committed_schema_is_what_is_made() -> None:
    assert COMMITTED.read_text() == text()
    json.loads(text())
