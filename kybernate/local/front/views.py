"""What a box says of its models: OpenAI's list, llama-swap's list of running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kybernate.core.seat.seats import OCCUPYING, shown
from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.api.models import Model, ModelsFile
    from kybernate.local.box import ModelRow

    Json = dict[str, Any]

_STATES = {
    SeatState.ACTIVE: "ready",
    SeatState.DRAINING: "stopping",
    SeatState.PARKING: "stopping",
}
"""llama-swap's words; all others that lie in GPU memory are starting."""


def listed(
    file: ModelsFile, rows: Iterable[ModelRow], created: int, *, unlisted: bool = False
) -> list[Json]:
    """The entries of GET /v1/models, by name: of models that the box can run. `created` in seconds
    of the epoch. `unlisted`: also those that are not listed."""
    by_name = {row.name: row for row in rows}
    entries = []
    for name, model in file.models.items():
        row = by_name.get(name)
        if row is None or (model.unlisted and not unlisted):
            continue
        called = [name, *(model.aliases if file.include_aliases_in_list else ())]
        entries += [_entry(one, model, row, created) for one in called]
    return sorted(entries, key=lambda entry: str(entry["id"]))


def running(file: ModelsFile, rows: Iterable[ModelRow]) -> Json:
    """The answer to GET /running; parked ones are listed apart, as they hold no GPU memory."""
    active, parked = [], []
    for row in rows:
        model = file.models.get(row.name)
        if model is None:
            continue
        if row.state in OCCUPYING:
            active.append(_running(row, model, _STATES.get(row.state, "starting")))
        elif row.tier:
            parked.append(_running(row, model, "parked"))
    return {"running": active, "parked": parked}


def _running(row: ModelRow, model: Model, state: str) -> Json:
    return {
        "model": row.name,
        "state": state,
        "cmd": model.cmd,
        "proxy": model.proxy or f"http://{model.address}",
        "ttl": int(model.ttl),
        "name": model.name,
        "description": model.description,
        "kyb": told(row),
    }


def told(row: ModelRow) -> Json:
    """A model as it is now."""
    return {
        "state": shown(row.state),
        "tier": row.tier,
        "bytes": row.size,
        "gpus": list(row.gpus),
        "wake_seconds": row.wake_s,
        "in_flight": row.in_flight,
        "waiting": row.waiting,
        "wakes": row.wakes,
        "pinned": row.pinned,
        "why": row.why,
        "phases": {name: round(seconds, 6) for name, seconds in row.phases.items()},
    }


def _entry(called: str, model: Model, row: ModelRow, created: int) -> Json:
    loaded = row.state in OCCUPYING
    entry: Json = {
        "id": called,
        "object": "model",
        "created": created,
        "owned_by": "kybernate",
        "status": {"value": "loaded" if loaded else "unloaded"},
    }
    told_of = {"name": model.name, "description": model.description}
    entry |= {key: said for key, said in told_of.items() if said}
    entry |= _capabilities(model)
    if model.metadata:
        entry["meta"] = {"llamaswap": model.metadata}
    entry["kyb"] = told(row)
    return entry


def _capabilities(model: Model) -> Json:
    can = model.capabilities
    said: Json = {}
    if can.inputs or can.outputs:
        said["architecture"] = {
            "input_modalities": list(can.inputs),
            "output_modalities": list(can.outputs),
        }
    words = {
        "vision": "image" in can.inputs,
        "audio_transcriptions": "audio" in can.inputs and "text" in can.outputs,
        "audio_speech": "text" in can.inputs and "audio" in can.outputs,
        "image_generation": "text" in can.inputs and "image" in can.outputs,
        "function_calling": can.tools,
        "reranker": can.reranker,
    }
    if any(words.values()):
        said["capabilities"] = {word: True for word, is_so in words.items() if is_so}
    if can.tools:
        said["supported_parameters"] = ["tools", "tool_choice"]
    if can.context:
        said["context_length"] = can.context
    return said
