"""The HTTP side: routes, limits, and errors as the kube-scheduler shows them to people."""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import flask
import orjson
from werkzeug.exceptions import HTTPException

from extender import metrics
from extender.bind.binder import NOBODY
from extender.http import wire
from extender.http.verbs import allowed_victims, filter_nodes, prioritize_nodes
from kybernate import keys
from kybernate.api import pods
from kybernate.errors import RefusedError
from kybernate.runtime.http import peer_certificate
from kybernate.types import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from wsgiref.types import StartResponse, WSGIApplication

    from extender.bind.binder import Binder
    from extender.bind.consulted import Consulted
    from extender.http.verbs import Judge
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.placement import Demand
    from kybernate.core.placement.verdicts import Fits
    from kybernate.types import PodUid

    Caller = Callable[[Mapping[str, Any]], str | None]
    Rejected = Callable[[SeatPod, Sequence[NodeName]], None]

log = logging.getLogger(__name__)


class Verbs:
    """The four verbs, from parsed body to answer. Raises RefusedError for a malformed body."""

    def __init__(
        self,
        snapshot: Snapshot,
        binder: Binder,
        consulted: Consulted = NOBODY,
        rejected: Rejected | None = None,
        most: int = 0,
    ) -> None:
        """`rejected` is told of pods that none of the nodes asked about can take. So many nodes as
        `most` are offered at most, the best by the policy; 0: all that fit."""
        self._snapshot = snapshot
        self._binder = binder
        self._consulted = consulted
        self._rejected = rejected
        self._most = most

    def filter(self, body: object) -> object:
        """Which nodes have a seat for the pod."""
        args = wire.read_filter(body)
        pod = self._snapshot.read_pod(args.pod)
        # No more nodes than the scheduler is to weigh, unless the pod has wishes of its own.
        chosen = not pod.gang and not pods.read_pod(args.pod).has_wishes
        judge = partial(self._snapshot.offer, most=self._most if chosen else 0)
        kept = self._consulted.kept_from(pod)
        names = [one for one in args.names if one not in kept] if kept else args.names
        found = self._at_target(pod, names, judge) or filter_nodes(pod, names, judge)
        if not found.passed:
            self._consulted.heard(pod, args.names)
            if self._rejected is not None:
                self._rejected(pod, args.names)
        if kept:
            told = {name: kept[name] for name in args.names if name in kept}
            found = found._replace(failed={**found.failed, **told})
        return wire.filter_answer(args, self._consulted.narrow(args.pod, found))

    def _at_target(self, pod: SeatPod, names: Sequence[NodeName], judge: Judge) -> Fits | None:
        """Only the node where it is to go, while it fits there."""
        target = self._consulted.target(pod)
        if target is None or target.node not in names:
            return None
        found = filter_nodes(pod.aimed(target), [NodeName(target.node)], judge)
        return found if found.passed else None

    def prioritize(self, body: object) -> object:
        """How well each node suits the pod."""
        args = wire.read_filter(body)
        pod = self._snapshot.read_pod(args.pod)

        def rank(uid: PodUid, demand: Demand, names: Sequence[NodeName]) -> Sequence[int]:
            return self._snapshot.points(uid, demand, names)

        return wire.prioritize_answer(args.names, prioritize_nodes(pod, args.names, rank))

    def bind(self, body: object) -> object:
        """Bind the pod to the node, with a group."""
        return wire.bind_answer(self._binder.bind(wire.read_bind(body)))

    def preempt(self, body: object) -> object:
        """Which of the proposed victims may be deleted."""
        args = wire.read_preempt(body)
        if self._consulted.veto is None:
            return wire.preempt_answer(allowed_victims(args.victims, self._may_go))
        pod = self._snapshot.read_pod(args.pod)
        return wire.preempt_answer(self._consulted.veto(pod, args.victims))

    def _may_go(self, uid: PodUid) -> bool:
        pod = self._snapshot.pod(uid)
        return pod is not None and pod.expendable


VERBS = ("filter", "prioritize", "bind", "preempt")
PREFIXES = ("", "/v1")
QUICK = frozenset(f"{prefix}/{verb}" for prefix in PREFIXES for verb in ("filter", "prioritize"))
"""Calls that wait for nothing."""


class Calls:
    """Calls of the verbs as bytes in and bytes out, each with an HTTP status."""

    def __init__(self, verbs: Verbs, not_ready: Callable[[], str | None], caller: Caller) -> None:
        self._verbs: dict[str, Callable[[object], object]] = {
            name: getattr(verbs, name) for name in VERBS
        }
        self._not_ready = not_ready
        self._caller = caller
        self._clocks = {name: metrics.Clock(name) for name in VERBS}

    def refusal(self, environ: Mapping[str, Any]) -> tuple[bytes, int] | None:
        """The answer to a peer that may not call, or to any while calls can't be answered."""
        reason = self._caller(environ)
        if reason:
            return orjson.dumps({"Error": reason}), 403
        reason = self._not_ready()
        return (orjson.dumps({"Error": reason}), 503) if reason else None

    def answer(self, name: str, body: bytes) -> tuple[bytes, int]:
        """The answer to a call of the verb."""
        clock = self._clocks[name]
        began = perf_counter()
        answer, status, read = self._decide(name, body)
        decided = perf_counter()
        data, status = _encode(answer, status)
        failed = status != 200 or (isinstance(answer, dict) and bool(answer.get("Error")))
        clock.stop((began, read, decided, perf_counter()), failed=failed)
        return data, status

    def _decide(self, name: str, body: bytes) -> tuple[object, int, float]:
        read = perf_counter()
        try:
            parsed = _parse(body)
            read = perf_counter()
            return self._verbs[name](parsed), 200, read
        except RefusedError as error:
            return {"Error": str(error)}, 400, read
        except RecursionError:
            return {"Error": _TOO_DEEP}, 400, read


def create_app(
    verbs: Verbs, not_ready: Callable[[], str | None], caller: Caller, max_body: int
) -> flask.Flask:
    """The WSGI application.

    `not_ready` returns a sentence while calls can't be answered. `caller` returns why the peer of
    a request may not call, or None. `max_body` in bytes.
    """
    app = flask.Flask("extender", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body
    calls = Calls(verbs, not_ready, caller)

    def serve(name: str) -> Callable[[], flask.Response]:
        def view() -> flask.Response:
            refused = calls.refusal(flask.request.environ)
            body, status = refused or calls.answer(name, flask.request.get_data(cache=False))
            return flask.Response(body, status, mimetype="application/json")

        return view

    for name in VERBS:
        for prefix in PREFIXES:
            path = f"{prefix}/{name}"
            app.add_url_rule(path, path, serve(name), methods=["POST"])
    app.add_url_rule("/healthz", "healthz", lambda: flask.Response("ok\n", mimetype="text/plain"))
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _bug)
    app.wsgi_app = _Straight(calls, max_body, app.wsgi_app)  # type: ignore[method-assign]
    return app


class _Straight:
    """Well-formed calls of the verbs past Flask, which would cost more than the verbs do."""

    def __init__(self, calls: Calls, max_body: int, others: WSGIApplication) -> None:
        self._calls = calls
        self._max_body = max_body
        self._others = others
        self._names = {f"{prefix}/{name}": name for prefix in PREFIXES for name in VERBS}

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        name = self._names.get(environ["PATH_INFO"])
        length = environ.get("CONTENT_LENGTH") or ""
        if name is None or environ["REQUEST_METHOD"] != "POST" or not length.isdecimal():
            return self._others(environ, start_response)
        if int(length) > self._max_body or self._calls.refusal(environ):
            return self._others(environ, start_response)
        body = environ["wsgi.input"].read(int(length))
        try:
            data, status = self._calls.answer(name, body)
        except Exception as error:  # noqa: BLE001 - logged, and told in words
            data, status = _told(error, f"POST {environ['PATH_INFO']}"), 500
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        start_response(_STATUS[status], headers)
        return (data,)


_STATUS = {200: "200 OK", 400: "400 BAD REQUEST", 500: "500 INTERNAL SERVER ERROR"}
_TOO_DEEP = "the body is nested more deeply than any pod or node is"


def _parse(body: bytes) -> object:
    try:
        parsed: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"the body is not JSON: {error}") from None
    return parsed


def _encode(value: object, status: int) -> tuple[bytes, int]:
    try:
        return orjson.dumps(value), status
    except TypeError:
        # Of whole nodes it writes fewer levels than it reads.
        return orjson.dumps({"Error": _TOO_DEEP}), 400


def _http_error(error: HTTPException) -> flask.Response:
    path = flask.request.path
    text = f"{flask.request.method} {path}: {error.description}"
    body = orjson.dumps({"Error": text})
    return flask.Response(body, error.code or 500, mimetype="application/json")


def _bug(error: Exception) -> flask.Response:
    body = _told(error, f"{flask.request.method} {flask.request.path}")
    return flask.Response(body, 500, mimetype="application/json")


def _told(error: Exception, call: str) -> bytes:
    log.error("%s", call, exc_info=error)
    text = f"a mistake in the extender ({type(error).__name__}); its log has the details"
    return orjson.dumps({"Error": text})


def refuse_caller(environ: Mapping[str, Any]) -> str | None:
    """Why the peer of a request may not call the verbs, or None if it may."""
    names = [
        value
        for part in peer_certificate(environ).get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    allowed = [keys.CN_SCHEDULER]
    if environ["REQUEST_METHOD"] == "GET":
        allowed.append(keys.CN_CONTROLLER)
    if len(names) == 1 and names[0] in allowed:
        return None
    found = ", ".join(names) or "no name"
    return f"only {' or '.join(allowed)} may ask that; your certificate names {found}"
