"""The HTTP side: routes, limits, and errors as the kube-scheduler shows them to people."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import flask
import orjson
from werkzeug.exceptions import HTTPException

from extender import metrics, wire
from extender.objects import read_pod
from extender.verbs import allowed_victims, filter_nodes, prioritize_nodes
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from extender.binder import Binder
    from extender.snapshot import Snapshot
    from kybernate.core.placement import Demand, Policy
    from kybernate.core.verdicts import Fits
    from kybernate.types import NodeName, PodUid

    Caller = Callable[[Mapping[str, Any]], str | None]

log = logging.getLogger(__name__)


class Verbs:
    """The four verbs, from parsed body to answer. Raises RefusedError for a malformed body."""

    def __init__(self, snapshot: Snapshot, binder: Binder, policy: Policy) -> None:
        self._snapshot = snapshot
        self._binder = binder
        self._policy = policy

    def filter(self, body: object) -> object:
        """Which nodes have a seat for the pod."""
        args = wire.read_filter(body)
        pod = read_pod(args.pod)

        def judge(uid: PodUid, demand: Demand, names: Sequence[NodeName]) -> Fits:
            return self._snapshot.fits(uid, demand, self._policy, names)

        return wire.filter_answer(args, filter_nodes(pod, args.names, judge))

    def prioritize(self, body: object) -> object:
        """How well each node suits the pod."""
        args = wire.read_filter(body)
        pod = read_pod(args.pod)

        def rank(
            uid: PodUid, demand: Demand, names: Sequence[NodeName]
        ) -> Sequence[tuple[NodeName, int]]:
            return self._snapshot.points(uid, demand, self._policy, names)

        return wire.prioritize_answer(prioritize_nodes(pod, args.names, rank))

    def bind(self, body: object) -> object:
        """Bind the pod to the node, with a group."""
        return wire.bind_answer(self._binder.bind(wire.read_bind(body)))

    def preempt(self, body: object) -> object:
        """Which of the proposed victims may be deleted."""
        victims = wire.read_preempt(body).victims
        return wire.preempt_answer(allowed_victims(victims, self._snapshot.pod))


def create_app(
    verbs: Verbs, not_ready: Callable[[], str | None], caller: Caller, max_body: int
) -> flask.Flask:
    """The WSGI application.

    `not_ready` returns a sentence while calls can't be answered. `caller` returns why the peer of
    a request may not call, or None. `max_body` in bytes.
    """
    app = flask.Flask("extender", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body

    def serve(name: str, verb: Callable[[object], object]) -> Callable[[], flask.Response]:
        def view() -> flask.Response:
            refusal = caller(flask.request.environ)
            if refusal:
                return _json({"Error": refusal}, 403)
            with metrics.SECONDS.labels(name).time():
                answer, status = _answer(verb, not_ready)
            failed = isinstance(answer, dict) and bool(answer.get("Error"))
            metrics.CALLS.labels(name, "error" if failed else "ok").inc()
            return _json(answer, status)

        return view

    for name in ("filter", "prioritize", "bind", "preempt"):
        view = serve(name, getattr(verbs, name))
        for prefix in ("", "/v1"):
            app.add_url_rule(f"{prefix}/{name}", f"{prefix}/{name}", view, methods=["POST"])
    app.add_url_rule("/healthz", "healthz", lambda: flask.Response("ok\n", mimetype="text/plain"))
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _bug)
    return app


def _answer(
    verb: Callable[[object], object], not_ready: Callable[[], str | None]
) -> tuple[object, int]:
    reason = not_ready()
    if reason:
        return {"Error": reason}, 503
    try:
        return verb(_body()), 200
    except RefusedError as error:
        return {"Error": str(error)}, 400
    except RecursionError:
        return {"Error": _TOO_DEEP}, 400


_TOO_DEEP = "the body is nested more deeply than any pod or node is"


def _body() -> object:
    try:
        body: object = orjson.loads(flask.request.get_data(cache=False))
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"the body is not JSON: {error}") from None
    return body


def _json(value: object, status: int) -> flask.Response:
    try:
        body = orjson.dumps(value)
    except TypeError:
        # Of whole nodes it writes fewer levels than it reads.
        body, status = orjson.dumps({"Error": _TOO_DEEP}), 400
    return flask.Response(body, status, mimetype="application/json")


def _http_error(error: HTTPException) -> flask.Response:
    path = flask.request.path
    return _json(
        {"Error": f"{flask.request.method} {path}: {error.description}"}, error.code or 500
    )


def _bug(error: Exception) -> flask.Response:
    log.error("%s %s", flask.request.method, flask.request.path, exc_info=error)
    text = f"a mistake in the extender ({type(error).__name__}); its log has the details"
    return _json({"Error": text}, 500)
