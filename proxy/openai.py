"""OpenAI's shapes: the model that a request names, the list of models, and errors."""

from __future__ import annotations

import contextlib
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from kybernate.core.seat.seats import shown
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.actions import SeatView

_KINDS = {429: "rate_limit_error"}


class ApiError(KybernateError):
    """An answer other than the model's. `status` is HTTP's, `code` a word for programs."""

    def __init__(self, status: int, code: str, message: str, retry_after: float = 0.0) -> None:
        """`retry_after` in seconds; 0.0 leaves it to the settings."""
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.code = code
        self.message = message

    def body(self) -> bytes:
        """The error as OpenAI's clients expect it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message,
            "type": _KINDS.get(self.status, kind),
            "param": "model" if self.code == "model_not_found" else None,
            "code": self.code,
        }
        return orjson.dumps({"error": error})


class _Named(msgspec.Struct):
    """All that is read of a request. What is skipped is never built: a body of 31 MiB made of empty
    lists would take 900 MiB as Python's objects."""

    model: str = ""


_LONGEST_NAME = 512
_MODEL_FIELD = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("(?:[^"\\]|\\.){1,2048}")', re.DOTALL)
_MOST_FIELDS, _MOST_TRIES = 64, 4


def model_of(body: bytes | bytearray) -> str:
    """The model that the request's JSON names. Raises ApiError (400) saying what is wrong."""
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except msgspec.ValidationError:
        model = ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"The body isn't JSON: {error}.") from error
    if not model or len(model) > _LONGEST_NAME:
        reason = (
            'Name a model: {"model": "…"} as a JSON string of at most '
            f"{_LONGEST_NAME} characters, in a JSON object."
        )
        raise ApiError(400, "model_missing", reason)
    return model


def rename_model(body: bytearray, old: str, new: str) -> None:
    """Give the request's model another name, in place: a seat knows its own without the namespace.

    Raises ApiError (400) if the name's place isn't clear, as in a body with many fields "model".
    """
    name = orjson.dumps(new)
    fields = [field.span(1) for field in islice(_MODEL_FIELD.finditer(body), _MOST_FIELDS)]
    places = [(start, end) for start, end in fields if _says(body[start:end], old)]
    for start, end in places[:_MOST_TRIES]:
        was = body[start:end]
        body[start:end] = name
        if model_of(body) == new:
            return
        body[start : start + len(name)] = was
    reason = 'Write the model\'s name plainly and once, as the first field: {"model": "…", …}.'
    raise ApiError(400, "model_unclear", reason)


def _says(text: bytearray, name: str) -> bool:
    with contextlib.suppress(orjson.JSONDecodeError):
        return bool(orjson.loads(text) == name)
    return False


def model_list(
    seats: Iterable[SeatView], names: Mapping[str, str], others: Mapping[str, str], created: int
) -> dict[str, Any]:
    """The answer to GET /v1/models. `names`: full name → the one to show. `others`: aliases and
    adapters → full name. `created` in seconds of the epoch."""
    # A plain name that is an alias of another model leads there.
    models = {
        route: _model(route if name in others else name, route, created)
        for route, name in names.items()
    }
    for seat in seats:
        if seat.info.route in models:
            models[seat.info.route]["kyb"]["seats"].append(_seat(seat))
    further = [
        {**models[route], "id": name} for name, route in sorted(others.items()) if route in models
    ]
    return {"object": "list", "data": [*models.values(), *further]}


def _model(name: str, route: str, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "kybernate",
        "kyb": {"name": route, "seats": []},
    }


def _seat(seat: SeatView) -> dict[str, Any]:
    info = seat.info
    return {
        "node": info.node,
        "group": info.group,
        "seat": info.name,
        "pod": info.pod,
        "state": shown(info.state),
        "tier": info.tier or None,
        "bytes": info.size,
        "expected_wake_ms": round(info.wake * 1000, 1),
        "reason": info.reason,
        "connected": seat.connected,
        "granted": seat.granted,
        "in_flight": seat.in_flight,
        "waiting": seat.waiting,
        "wakes": info.wakes,
        "last_wake_ms": info.last_wake_ms,
    }
