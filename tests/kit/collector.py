"""A collector of spans: OTLP over HTTP on loopback, in a thread of its own."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    import pytest


class Collector:
    """Takes spans of whoever begins to send them meanwhile; used as `with`.

    `spans`: the last one of each name; `every`: all, in the order in which they came.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: dict[str, Any] = {}
        self.every: list[Any] = []
        self.services: set[str] = set()
        self.bodies: list[bytes] = []
        self._monkeypatch = monkeypatch

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        self._monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        self._monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, path: str, body: bytes) -> None:
        """What was sent."""
        assert path == "/v1/traces"
        self.bodies.append(body)
        for one in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {
                a.value.string_value for a in one.resource.attributes if a.key == "service.name"
            }
            for scope in one.scope_spans:
                self.every += scope.spans
                self.spans |= {span.name: span for span in scope.spans}


def attributes(span: Any) -> dict[str, Any]:
    """Of a span, by name."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
