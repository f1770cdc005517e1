"""The proxy's metrics. What can be counted now is read at the scrape, not kept twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from proxy.admission import Admission

_HELD = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ANSWER = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_SHARED = (
    "Seconds of seats that requests of the client had, by the name of its key or certificate, and "
    "by the seats' namespaces; empty: of all without one. Requests at a seat at once share its "
    "seconds."
)


class Metrics:
    """Counters and times of answered requests; durations in seconds."""

    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kyb_proxy_requests",
            "Requests answered, by model and HTTP status (499: the client left).",
            ["model", "status"],
            registry=self.registry,
        )
        self.held = Histogram(
            "kyb_proxy_held_seconds",
            "How long requests were held for their seat, of those that were.",
            ["model"],
            buckets=_HELD,
            registry=self.registry,
        )
        self.answer = Histogram(
            "kyb_proxy_answer_seconds",
            "From a request's arrival to the end of its answer.",
            ["model"],
            buckets=_ANSWER,
            registry=self.registry,
        )
        self.unanswered = Counter(
            "kyb_proxy_registry_failures",
            "Calls to the registry without an answer that the proxy understands, by what was asked "
            "for: pod or artifact.",
            ["what"],
            registry=self.registry,
        )
        self.registry.register(_Now(admission))
        ProcessCollector(registry=self.registry)

    def count(self, model: str, status: int, held: float, total: float) -> None:
        """A request is over. `model` is empty for one that no seat serves."""
        self.requests.labels(model, str(status)).inc()
        if not model:
            return
        self.answer.labels(model).observe(total)
        if held:
            self.held.labels(model).observe(held)


class _Now(Collector):
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily(
            "kyb_proxy_waiting_requests", "Requests held now.", labels=["model"]
        )
        for model, number in self._admission.waiting().items():
            waiting.add_metric([model], number)
        labels = ["model", "node", "seat"]
        in_flight = GaugeMetricFamily(
            "kyb_proxy_in_flight_requests", "Requests at a seat now.", labels=labels
        )
        granted = GaugeMetricFamily(
            "kyb_proxy_seat_granted", "1 if the seat may be sent requests.", labels=labels
        )
        for seat in self._admission.seats():
            values = [seat.info.route, seat.info.node, seat.info.name]
            in_flight.add_metric(values, seat.in_flight)
            granted.add_metric(values, seat.granted)
        bodies = GaugeMetricFamily(
            "kyb_proxy_body_bytes",
            "Bodies of requests that wait or are being sent, in bytes.",
            value=self._admission.body_bytes,
        )
        return waiting, in_flight, granted, bodies, *self._of_clients()

    def _of_clients(self) -> Iterable[Metric]:
        usage = self._admission.usage
        seconds = CounterMetricFamily(
            "kyb_proxy_client_seat_seconds", _SHARED, labels=["client", "namespace"]
        )
        for client, had in usage.seconds.items():
            for namespace, value in had.items():
                seconds.add_metric([client, namespace], value)
        yield seconds
        for name, what, found in (
            (
                "kyb_proxy_client_requests",
                "Requests of the client that were at a seat and are over.",
                usage.requests,
            ),
            (
                "kyb_proxy_client_wakes",
                "Times that a request of the client was the first to wait for a model.",
                usage.wakes,
            ),
        ):
            family = CounterMetricFamily(name, what, labels=["client"])
            for client, value in found.items():
                family.add_metric([client], value)
            yield family
