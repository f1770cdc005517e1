"""Requests as spans of OpenTelemetry, whose library not every installation has.

A request's `traceparent` names its span's parent; without one it begins a trace. Below its span lie
`queue`, until a seat may have it, and `model`, until the answer's first byte. The context of
`model` is what the seat gets as `traceparent`. Where spans are sent, and of how many requests, the
variables OTEL_* say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

from kybernate.adapters.spans import CONTEXTS, Sender
from proxy.relay.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from opentelemetry.trace import Span, Tracer

    from proxy.actions import Serve


class Spans:
    """Implements `proxy.relay.traces.Traces`."""

    def __init__(self) -> None:
        self._sender = Sender("kyb-proxy")

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Trace:
        """See `Traces`."""
        return _Traced(self._sender.tracer, method, path, headers)

    def close(self) -> None:
        """See `Traces`."""
        self._sender.close()


class _Traced(Trace):
    def __init__(self, tracer: Tracer, method: str, path: str, headers: Mapping[str, str]) -> None:
        told = {name: headers[name] for name in CONTEXTS.fields if name in headers}
        asked = {"http.request.method": method, "url.path": path}
        self._tracer = tracer
        self._whole = tracer.start_span(
            f"{method} {path}", CONTEXTS.extract(told), SpanKind.SERVER, asked
        )
        self._part: Span | None = None

    def waits(self) -> str:
        said: dict[str, str] = {}
        CONTEXTS.inject(said, set_span_in_context(self._next("queue", SpanKind.INTERNAL)))
        return said.get("traceparent", "")

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
        for name in CONTEXTS.fields:
            headers.pop(name, None)
        CONTEXTS.inject(headers, set_span_in_context(part))

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
