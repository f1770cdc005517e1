"""The HTTP side: the questions of the API server, answered from what is known of the cluster."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import orjson
from flask import Flask, Response, request
from prometheus_client import Counter, Histogram
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from kybernate import keys
from kybernate.api.nodeseats import evicted_seats, read_gpu_node
from kybernate.errors import RefusedError, RetryableError
from webhook import wire
from webhook.pods.advice import advice
from webhook.pods.cluster import Cluster, cluster_of
from webhook.pods.mutate import hide_from_debuggers, mutate, signed
from webhook.pods.validate import foreign_state, refusals, unprepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.artifacts.grants import Grant
    from kybernate.core.ledger.ledger import NodeSeats
    from kybernate.core.requests.evictions import EvictedSeat
    from kybernate.settings.webhook import WebhookSettings

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_MAX_BODY = 8 * 1024 * 1024
"""The API server itself takes no pod above 3 MiB."""

_REVIEWS = Counter("kyb_webhook_reviews", "Pods reviewed.", ["verb", "outcome"])
_SECONDS = Histogram(
    "kyb_webhook_review_seconds",
    "Time to answer a review.",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
)


class Known:
    """The cluster as the last events of GPUNodes left it; fed by a watch, read by requests."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeSeats] = {}
        self._seats: dict[str, dict[tuple[str, str], EvictedSeat]] = {}
        self._lock = threading.Lock()
        self._cluster = Cluster()

    @property
    def cluster(self) -> Cluster:
        """What is known now."""
        return self._cluster

    def seats(self, namespace: str, pod: str) -> tuple[EvictedSeat, ...]:
        """What nodes tell of the seat of the pod of this name, if it has one. Two may: it moved
        within moments, or one of them says what is not so."""
        key = namespace, pod
        return tuple(seats[key] for seats in tuple(self._seats.values()) if key in seats)

    def on_event(self, kind: str, node: Json) -> None:
        """Take in one event of the watch on GPUNodes."""
        name = node["metadata"]["name"]
        with self._lock:
            nodes = {**self._nodes, name: read_gpu_node(node, reserve=0)}
            self._seats[name] = evicted_seats(node)
            if kind == "DELETED":
                del nodes[name], self._seats[name]
            self._cluster, self._nodes = cluster_of(nodes.values()), nodes


def make_app(
    settings: WebhookSettings,
    cluster: Callable[[], Cluster],
    grants: Callable[[], tuple[Grant, ...]],
    evict: Callable[[wire.Eviction], Json],
    unasked: Callable[[Json], str] = lambda _: "nobody knows what was asked for",
) -> Flask:
    """The application with `POST /mutate`, `/validate`, `/sign` and `/evict`. `grants` says what
    ArtifactGrants say, or raises RetryableError; `evict` answers for a pod that is to go; `unasked`
    says why a pod that the controller makes is not the one that a RestoreRequest asks for, empty if
    it is, or raises RetryableError."""
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY

    def mutating(review: wire.Review) -> Json:
        if review.before is not None:
            return wire.allow(review.uid, hide_from_debuggers(review.pod, review.before))
        known = cluster()
        steps = mutate(review.pod, known, settings)
        return wire.allow(review.uid, steps, advice(review.pod, known))

    def validating(review: wire.Review) -> Json:
        scheduler = settings.scheduler_name
        sentences = refusals(review.pod, cluster(), scheduler) or unprepared(review.pod, scheduler)
        sentences = sentences or foreign_state(review.pod, grants, time.time())
        if not sentences and _is_for_a_request(review) and (why := unasked(review.pod)):
            sentences = [f"{why}."]
        if sentences:
            raise RefusedError(" ".join(sentences))
        return wire.allow(review.uid)

    app.post("/mutate", endpoint="mutate")(lambda: _answer("mutate", mutating))
    app.post("/validate", endpoint="validate")(lambda: _answer("validate", validating))
    app.post("/sign", endpoint="sign")(_sign)
    app.post("/evict", endpoint="evict")(lambda: _evict(evict))
    app.register_error_handler(HTTPException, _on_http_error)
    app.register_error_handler(Exception, _on_error)
    return app


def _is_for_a_request(review: wire.Review) -> bool:
    """Whether the controller makes the pod for a RestoreRequest: a policy lets it make no others
    but those of SnapshotTemplates."""
    notes = review.pod["metadata"].get("annotations") or {}
    return review.user == keys.CONTROLLER_USER and keys.MADE_FOR in notes


def _answer(verb: str, decide: Callable[[wire.Review], Json]) -> Response:
    started = time.perf_counter()
    try:
        review = wire.parse_review(_body())
    except RefusedError as error:
        _REVIEWS.labels(verb, "malformed").inc()
        return _json({"error": str(error)}, 400)
    try:
        answer, outcome = decide(review), "allowed"
    except (RefusedError, RetryableError) as error:
        later = isinstance(error, RetryableError)
        said = f"{error}; try again." if later else str(error)
        answer, outcome = wire.deny(review.uid, said, later=later), "refused"
        log.info("%s refused %s: %s", verb, _name(review), error)
    _REVIEWS.labels(verb, outcome).inc()
    _SECONDS.labels(verb).observe(time.perf_counter() - started)
    return _json(answer, 200)


def _sign() -> Response:
    """Write into a request who makes it: its spec never changes, and people ask who it was."""
    try:
        asked = wire.parse_asked(_body())
    except RefusedError as error:
        _REVIEWS.labels("sign", "malformed").inc()
        return _json({"error": str(error)}, 400)
    _REVIEWS.labels("sign", "allowed").inc()
    return _json(wire.allow(asked.uid, signed(asked.spec, asked.user)), 200)


def _evict(decide: Callable[[wire.Eviction], Json]) -> Response:
    """All evictions of the cluster come by: most are of pods that are none of ours."""
    started = time.perf_counter()
    try:
        asked = wire.parse_eviction(_body())
    except RefusedError as error:
        _REVIEWS.labels("evict", "malformed").inc()
        return _json({"error": str(error)}, 400)
    answer = decide(asked)
    outcome = "allowed" if answer["response"]["allowed"] else "held back"
    _REVIEWS.labels("evict", outcome).inc()
    _SECONDS.labels("evict").observe(time.perf_counter() - started)
    return _json(answer, 200)


def _body() -> bytes:
    body = request.get_data(cache=False)
    if len(body) == _MAX_BODY:
        # Of a body that doesn't say its length, the rest is cut off silently.
        raise RequestEntityTooLarge
    return body


def _name(review: wire.Review) -> str:
    meta = review.pod["metadata"]
    # Not checked by anybody yet: a line break in it would look like a line of its own.
    return repr((meta.get("namespace"), meta.get("name") or meta.get("generateName")))[:200]


def _json(body: Json, status: int) -> Response:
    return Response(orjson.dumps(body), status, mimetype="application/json")


def _on_http_error(error: HTTPException) -> Response:
    return _json(
        {"error": f"{error.name}: POST an AdmissionReview to /mutate, /validate, /sign, /evict."},
        error.code or 500,
    )


def _on_error(error: Exception) -> Response:
    log.error("a review could not be answered", exc_info=error)
    return _json({"error": "The webhook met a fault of its own; its log says which."}, 500)
