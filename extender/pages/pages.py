"""What people and the operator may ask about one pod: GET /<page>/<namespace>/<pod>, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flask
import orjson

from kybernate.errors import ConflictError, KybernateError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Page = Callable[[str, str], object]
    Caller = Callable[[Mapping[str, Any]], str | None]

_STATUS = {NotFoundError: 404, RefusedError: 400, ConflictError: 409}


def register(
    app: flask.Flask,
    pages: Mapping[str, Page],
    not_ready: Callable[[], str | None],
    caller: Caller,
) -> None:
    """Serve each page by its name; it gets namespace and name, and may raise KybernateError.

    `not_ready` and `caller` as for the verbs.
    """
    for name, page in pages.items():
        path = f"/{name}/<namespace>/<pod>"
        app.add_url_rule(path, name, _view(page, not_ready, caller), methods=["GET"])


def register_whole(
    app: flask.Flask,
    name: str,
    page: Callable[[], object],
    not_ready: Callable[[], str | None],
    caller: Caller,
) -> None:
    """Serve a page about the whole cluster by its name, as `register` does."""
    app.add_url_rule(f"/{name}", name, _view(page, not_ready, caller), methods=["GET"])


def _view(
    page: Callable[..., object], not_ready: Callable[[], str | None], caller: Caller
) -> Callable[..., flask.Response]:
    def view(**named: str) -> flask.Response:
        refusal = caller(flask.request.environ)
        if refusal:
            return _json({"Error": refusal}, 403)
        reason = not_ready()
        if reason:
            return _json({"Error": reason}, 503)
        try:
            return _json(page(*named.values()), 200)
        except KybernateError as error:
            return _json({"Error": str(error)}, _STATUS.get(type(error), 503))

    return view


def _json(value: object, status: int) -> flask.Response:
    return flask.Response(orjson.dumps(value), status, mimetype="application/json")
