"""The HTTP side: checks before a call, errors after it, and the same words for all of them."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import flask
import orjson
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from kybernate.errors import (
    ConfigError,
    ConflictError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.runtime.http import peer_certificate
from registry import metrics
from registry.http import openapi
from registry.http.callers import Admission, Caller, ForbiddenError, read_caller
from registry.http.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from registry.http.calls import Route

log = logging.getLogger(__name__)

_STATUS: Mapping[type[KybernateError], int] = {
    RefusedError: 400,
    ConfigError: 400,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    RetryableError: 503,
}
_LARGE_AT_ONCE = 2
"""Calls with bodies larger than others may have: each takes several times its bytes."""
_LONGEST = 120
"""Characters of a wrong value that an answer repeats."""


def create_app(
    routes: Sequence[Route],
    max_body: int,
    certificate: Callable[[Mapping[str, Any]], Mapping[str, Any]] = peer_certificate,
    admission: Admission | None = None,
) -> flask.Flask:
    """The WSGI application. `max_body` in bytes."""
    admitted = admission or Admission(None)
    app = flask.Flask("registry", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body
    large = threading.Semaphore(_LARGE_AT_ONCE)
    for route in routes:
        rule = route.path.replace("{", "<").replace("}", ">")
        view = _view(route, certificate, admitted, max_body, large)
        app.add_url_rule(
            rule, route.name, view, methods=[route.method], provide_automatic_options=False
        )

    @cache
    def document() -> bytes:
        return orjson.dumps(openapi.document(routes))

    # It takes longer to make than all the rest, and is seldom asked for.
    app.add_url_rule(
        openapi.PATH, "openapi", lambda: flask.Response(document(), mimetype="application/json")
    )
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _bug)
    return app


def _view(
    route: Route,
    certificate: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    admission: Admission,
    max_body: int,
    large: threading.Semaphore,
) -> Callable[..., flask.Response]:
    seconds, largest = metrics.SECONDS.labels(route.name), route.largest or max_body

    def view(**parts: str) -> flask.Response:
        began = perf_counter()
        shown = certificate(flask.request.environ)
        caller = read_caller(shown)
        try:
            flask.request.max_content_length = largest
            if isinstance(caller, Caller):
                admission.check(caller, shown)
            with _room(large, route, max_body):
                answer = _answer(route, caller, parts, largest)
        except KybernateError as error:
            answer = _error(error)
            if isinstance(error, ConflictError):
                metrics.REFUSED_WRITES.labels(route.name).inc()
        metrics.CALLS.labels(route.name, answer.status_code).inc()
        seconds.observe(perf_counter() - began)
        return answer

    return view


@contextmanager
def _room(large: threading.Semaphore, route: Route, usual: int) -> Iterator[None]:
    """For a call whose body may be larger than usual, until it is answered. Raises RetryableError
    while there is none."""
    length = flask.request.content_length
    if not route.largest or (length is not None and length <= usual):
        yield
        return
    if not large.acquire(blocking=False):
        raise RetryableError(f"{_LARGE_AT_ONCE} calls with large bodies are under way: ask again")
    try:
        yield
    finally:
        large.release()


def _answer(
    route: Route, caller: Caller | str, parts: Mapping[str, str], max_body: int
) -> flask.Response:
    if isinstance(caller, str):
        return _json({"error": caller}, 403)
    if caller.role not in route.roles:
        allowed = " or ".join(sorted(route.roles))
        return _json({"error": f"{caller.name} may not do that; it is for {allowed}"}, 403)
    call = Call(
        caller,
        _read(route.of, parts),
        _read(route.query, _parameters()),
        None if route.body is None else _read_body(route.body, max_body),
    )
    answer = route.serve(call)
    return _json(*answer) if isinstance(answer, tuple) else _json(answer, 200)


def _parameters() -> dict[str, str]:
    found = flask.request.args
    for name in found:
        if len(found.getlist(name)) > 1:
            raise RefusedError(f"{name[:_LONGEST]}: is given more than once")
    return found.to_dict()


def _read(model: type[BaseModel], values: Mapping[str, str]) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RefusedError(_sentence(error)) from error


def _read_body(model: type[BaseModel], max_body: int) -> BaseModel:
    body = flask.request.get_data(cache=False)
    if len(body) >= max_body:
        # Of a body that doesn't say its length, the rest is cut off silently.
        raise RequestEntityTooLarge
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise RefusedError(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:_LONGEST]
    got = repr(first["input"])
    got = got if len(got) <= _LONGEST else f"{got[:_LONGEST]}…"
    return f"{where + ': ' if where else ''}{first['msg']} (got {got})"


def _json(value: object, status: int) -> flask.Response:
    return flask.Response(orjson.dumps(value), status, mimetype="application/json")


def _error(error: KybernateError) -> flask.Response:
    status = _STATUS.get(type(error), 500)
    answer = _json({"error": str(error)}, status)
    if isinstance(error, RetryableError):
        answer.headers["Retry-After"] = str(max(1, round(error.delay)))
    return answer


def _http_error(error: HTTPException) -> flask.Response:
    path = flask.request.path[:_LONGEST]
    text = f"{flask.request.method[:20]} {path}: {error.description} See {openapi.PATH}."
    return _json({"error": text}, error.code or 500)


def _bug(error: Exception) -> flask.Response:
    log.error("%s", flask.request.endpoint, exc_info=error)
    text = f"a mistake in the registry ({type(error).__name__}); its log has the details"
    return _json({"error": text}, 500)
