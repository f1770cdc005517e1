"""Requests as spans of OpenTelemetry, whose library not every installation has.

A request's `traceparent` names its span's parent; without one it begins a trace. Below its span lie
`queue`, until a seat may have it, and `model`, until the answer's first byte. The context of
`model` is what the seat gets as `traceparent`. Where spans are sent, and of how many requests, the
variables OTEL_* say.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy.relay.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from opentelemetry.trace import Span, Tracer

    from proxy.actions import Serve

_LAST_SPANS_S = 2.0
"""Seconds that the last spans have at the end: what gathers them may be gone."""
_CONTEXTS = TraceContextTextMapPropagator()


class Spans:
    """Implements `proxy.relay.traces.Traces`. Spans are sent by a thread of the library's."""

    def __init__(self) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME") or "kyb-proxy"
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("kybernate")

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Trace:
        """See `Traces`."""
        return _Traced(self._tracer, method, path, headers)

    def close(self) -> None:
        """See `Traces`."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(_LAST_SPANS_S)


class _Traced(Trace):
    def __init__(self, tracer: Tracer, method: str, path: str, headers: Mapping[str, str]) -> None:
        told = {name: headers[name] for name in _CONTEXTS.fields if name in headers}
        asked = {"http.request.method": method, "url.path": path}
        self._tracer = tracer
        self._whole = tracer.start_span(
            f"{method} {path}", _CONTEXTS.extract(told), SpanKind.SERVER, asked
        )
        self._part: Span | None = None

    def waits(self) -> None:
        self._next("queue", SpanKind.INTERNAL)

    def served(self, serve: Serve) -> None:
        seat = serve.seat
        self._whole.set_attributes(
            {
                "kyb.seat": f"{seat.node}/{seat.name}",
                "kyb.pod": seat.pod,
                "kyb.held_ms": round(serve.held * 1000, 1),
            }
        )

    def asks(self, headers: MutableMapping[str, str]) -> None:
        part = self._next("model", SpanKind.CLIENT)
        for name in _CONTEXTS.fields:
            headers.pop(name, None)
        _CONTEXTS.inject(headers, set_span_in_context(part))

    def begins(self, status: int) -> None:
        if self._part is not None:
            self._part.set_attribute("http.response.status_code", status)
        self._end_part()

    def over(self, model: str, status: int) -> None:
        self._end_part()
        if model:
            self._whole.set_attribute("gen_ai.request.model", model)
        self._whole.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._whole.set_status(StatusCode.ERROR)
        self._whole.end()

    def _next(self, name: str, kind: SpanKind) -> Span:
        self._end_part()
        above = set_span_in_context(self._whole)
        self._part = self._tracer.start_span(name, above, kind)
        return self._part

    def _end_part(self) -> None:
        if self._part is not None:
            self._part.end()
            self._part = None
