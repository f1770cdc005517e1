"""What the registry counts, for Prometheus."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kybernate.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

CALLS = Counter(
    "kyb_registry_calls_total", "Calls, by operation and HTTP status.", ["operation", "status"]
)
SECONDS = Histogram(
    "kyb_registry_call_seconds", "Seconds that a call took.", ["operation"], buckets=_BUCKETS
)
FAULTS = Counter(
    "kyb_registry_database_faults_total",
    "Transactions that failed: every connection in use (busy), connection lost (lost), "
    "anything else (failed).",
    ["cause"],
)
REFUSED_WRITES = Counter(
    "kyb_registry_conflicts_total",
    "Changes refused because the state is not what the caller expected.",
    ["operation"],
)


DESTROYED = Counter(
    "kyb_registry_keys_destroyed_total", "Namespaces' keys that were destroyed, here and in places."
)
TO_DESTROY = Gauge(
    "kyb_registry_keys_to_destroy", "Namespaces' keys that are to be destroyed, now or later."
)


class Copies(Collector):
    """How many copies there are, counted when it is scraped."""

    def __init__(self) -> None:
        self._count: Callable[[], Iterable[tuple[str, str, int]]] = tuple

    def set_function(self, count: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """As a Gauge's: `count` gives (place, state, copies)."""
        self._count = count

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures now; none while the database does not answer."""
        family = GaugeMetricFamily(
            "kyb_registry_copies",
            "Copies of artifacts; none while the database doesn't answer.",
            labels=["place", "state"],
        )
        with suppress(RetryableError):
            for place, state, count in self._count():
                family.add_metric([place, state], count)
        yield family


COPIES = Copies()
REGISTRY.register(COPIES)
