"""The servers of the bench, each a process: ours, a Flask one that does nothing, a stub of the API.

Ours and the Flask one run in the same gunicorn with the same worker class and TLS; ours is the
product but for its watches, which are fed from here.
"""

from __future__ import annotations

import gc
import socket
import ssl
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import click
import flask
import orjson

from bench.cluster import fleet
from bench.cluster.extender.traffic import nodes as busy_nodes
from extender.bind.binder import Binder
from extender.bind.cluster import ApiCluster
from extender.http.app import Verbs, create_app, refuse_caller
from extender.http.server import make_server
from extender.state.learner import Learner
from extender.state.snapshot import Snapshot
from extender.state.watches import collect_young_only
from kybernate import keys
from kybernate.adapters.k8s import Api
from kybernate.core.placement import Table
from kybernate.runtime.serve import configure_logging
from kybernate.settings.extender import ExtenderSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.types import NodeName, PodRef

PENDING = 4000
"""Pods that wait to be bound, beyond those of the fleet."""

API_SECONDS = "/bench/api-seconds"
"""Where ours tells what its calls to the API took, one after the other."""

_OK = orjson.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
_ANSWER = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    % len(_OK)
) + _OK


@click.command()
@click.argument("kind", type=click.Choice(["ours", "noop", "api"]))
@click.option("--port", type=int, required=True)
@click.option("--tls", type=click.Path(path_type=Path), required=True)
@click.option("--kubeconfig", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, default=0)
@click.option("--pods", type=int, default=0)
@click.option("--policy", default="default")
@click.option("--traffic", is_flag=True)
def main(  # noqa: PLR0913
    *,
    kind: str,
    port: int,
    tls: Path,
    kubeconfig: Path | None,
    nodes: int,
    pods: int,
    policy: str,
    traffic: bool,
) -> None:
    """Serve until SIGTERM."""
    configure_logging("WARNING")
    if kind == "api":
        serve_api(port, tls)
    given = {"listen": f"127.0.0.1:{port}", "tls_dir": tls, "log_level": "WARNING"}
    given |= {"policy": policy}
    settings = ExtenderSettings.model_validate(given)
    if kind == "noop":
        app = noop(settings.most_offered)
    else:
        known = busy_nodes(nodes, pods) if traffic else map(fleet.gpu_node, range(nodes))
        app = ours(settings, Api(kubeconfig, "bench"), known, nodes, pods)
    make_server(settings, nullcontext(app)).run()


def noop(offered: int) -> flask.Flask:
    """Decodes what ours decodes, and returns as many names."""
    app = flask.Flask("noop", static_folder=None)

    def body() -> Any:
        return orjson.loads(flask.request.get_data(cache=False))

    def answer(value: object) -> flask.Response:
        return flask.Response(orjson.dumps(value), 200, mimetype="application/json")

    @app.post("/v1/filter")
    def pick() -> flask.Response:
        empty: dict[str, str] = {}
        return answer(
            {
                "Nodes": None,
                "NodeNames": body()["NodeNames"][:offered],
                "FailedNodes": empty,
                "FailedAndUnresolvableNodes": empty,
                "Error": "",
            }
        )

    @app.post("/v1/prioritize")
    def rank() -> flask.Response:
        return answer([{"Host": name, "Score": 0} for name in body()["NodeNames"]])

    return app


def ours(
    settings: ExtenderSettings, api: Api, known: Iterable[dict[str, Any]], nodes: int, pods: int
) -> flask.Flask:
    """The product, knowing a fleet and PENDING pods that wait."""
    collect_young_only()
    snapshot = Snapshot(time.monotonic, settings.reserve_bytes, Table(settings.policy))
    for item in fleet.pods(nodes, pods):
        snapshot.pod_event("ADDED", item)
    for item in known:
        snapshot.node_event("ADDED", item)
    cluster = Watched(ApiCluster(api, settings.api_timeout_s), snapshot.pod_event)
    for number in range(pods, pods + PENDING):
        item = fleet.pod(number)
        cluster.pending[item["metadata"]["uid"]] = item
        snapshot.pod_event("ADDED", item)
    Learner(snapshot).look()
    gc.freeze()
    binder = Binder(snapshot, cluster, _now, settings.reservation_s)
    verbs = Verbs(snapshot, binder, most=settings.most_offered)
    app = create_app(verbs, lambda: None, refuse_caller, settings.max_body_bytes)
    app.add_url_rule(API_SECONDS, "seconds", lambda: orjson.dumps(cluster.seconds))
    return app


class Watched:
    """The cluster, and the watch that tells of each binding soon after."""

    def __init__(self, cluster: ApiCluster, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self.pending: dict[str, dict[str, Any]] = {}
        self.seconds: list[float] = []
        """What each Binding took."""
        self._cluster = cluster
        self._tell = tell
        self._bound: SimpleQueue[dict[str, Any]] = SimpleQueue()
        threading.Thread(target=self._watch, daemon=True).start()

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        return self._cluster.pod(namespace, name)

    def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        began = time.perf_counter()
        self._cluster.bind(pod, node, annotations)
        self.seconds.append(time.perf_counter() - began)
        item = self.pending[pod.uid]
        meta = {
            **item["metadata"],
            "annotations": {**item["metadata"]["annotations"], **annotations},
        }
        self._bound.put({**item, "metadata": meta, "spec": {**item["spec"], "nodeName": node}})

    def _watch(self) -> None:
        while True:
            # As the watch gets it: bytes, of which objects are made.
            self._tell("MODIFIED", orjson.loads(orjson.dumps(self._bound.get())))


def serve_api(port: int, tls: Path) -> None:
    """Answer every request at once with success."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "extender.crt", tls / "extender.key")
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:
        while True:
            raw, _ = server.accept()
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_answer_all, args=(context, raw), daemon=True).start()


def _answer_all(context: ssl.SSLContext, raw: socket.socket) -> None:
    try:
        with context.wrap_socket(raw, server_side=True) as connection:
            rest = b""
            while chunk := connection.recv(65536):
                rest = _answered(connection, rest + chunk)
    except OSError:
        return


def _answered(connection: ssl.SSLSocket, data: bytes) -> bytes:
    """Answer a request once all of it is there; what is left of the data."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return data
    fields = head.lower().split(b"\r\n")
    length = next((int(f[15:]) for f in fields if f.startswith(b"content-length:")), 0)
    if len(body) < length:
        return data
    connection.sendall(_ANSWER)
    return body[length:]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def kubeconfig(url: str, authority: Path) -> str:
    """How to reach the stub."""
    return orjson.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
            "clusters": [
                {
                    "name": "stub",
                    "cluster": {"server": url, "certificate-authority": str(authority)},
                }
            ],
            "users": [{"name": "stub", "user": {"token": keys.CN_EXTENDER}}],
        }
    ).decode()


if __name__ == "__main__":
    main()
