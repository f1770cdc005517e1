"""OpenAI's shapes: the model that a request names, the list of models, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.actions import SeatView

_KINDS = {429: "rate_limit_error"}


class ApiError(KybernateError):
    """An answer other than the model's. `status` is HTTP's, `code` a word for programs."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
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


def model_of(body: bytes) -> str:
    """The model that the request's JSON names. Raises ApiError (400) saying what is wrong."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid_json", f"The body isn't JSON: {error}.") from error
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, str) or not model:
        raise ApiError(400, "model_missing", 'Name a model: {"model": "…"} as a JSON string.')
    return model


def with_model(body: bytes, model: str) -> bytes:
    """The request with another name for its model: a seat knows its own without the namespace."""
    return orjson.dumps({**orjson.loads(body), "model": model})


def model_list(seats: Iterable[SeatView], names: Mapping[str, str], created: int) -> dict[str, Any]:
    """The answer to GET /v1/models. `names`: full name → the one to show. `created` in seconds
    of the epoch."""
    models = {route: _model(name, route, created) for route, name in names.items()}
    for seat in seats:
        if seat.info.route in models:
            models[seat.info.route]["kyb"]["seats"].append(_seat(seat))
    return {"object": "list", "data": list(models.values())}


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
        "state": info.state.value,
        "reason": info.reason,
        "connected": seat.connected,
        "granted": seat.granted,
        "in_flight": seat.in_flight,
        "waiting": seat.waiting,
        "wakes": info.wakes,
        "last_wake_ms": info.last_wake_ms,
    }
