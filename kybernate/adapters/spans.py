"""Spans of OpenTelemetry, whose library not every installation has, sent by OTLP over HTTP.

Where they are sent, and of how many traces, the variables OTEL_* say.
"""

from __future__ import annotations

import os
import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_LAST_SPANS_S = 2.0
"""Seconds that the last spans have at the end: what gathers them may be gone."""
CONTEXTS = TraceContextTextMapPropagator()


class Sender:
    """Sends a service's spans, by a thread of the library's."""

    def __init__(self, service: str) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME") or service
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer("kybernate")

    def close(self) -> None:
        """Send what is left, for a short while at most. Blocks."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(_LAST_SPANS_S)
