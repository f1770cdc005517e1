"""What the extender counts, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kybernate.core.views.utilisation import Figures, Used

_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
CALLS = Counter(
    "kyb_extender_calls_total",
    "Calls of the kube-scheduler, by outcome: ok, error.",
    ["verb", "outcome"],
)
SECONDS = Histogram(
    "kyb_extender_call_seconds",
    "Seconds that a call took, without the HTTP server.",
    ["verb"],
    buckets=_BUCKETS,
)
PHASE_SECONDS = Histogram(
    "kyb_extender_phase_seconds",
    "Seconds of each phase of a call: read the body, decide, write the answer; of a "
    "bind's decide, the call to the API server is phase api.",
    ["verb", "phase"],
    buckets=_BUCKETS,
)
UNPLACED = Gauge(
    "kyb_extender_unplaced_seats", "Pods that hold a seat of which nobody wrote the group."
)
NODES = Gauge("kyb_extender_gpu_nodes", "Nodes with a GPUNode.")
WATCHES_BROKEN = Gauge("kyb_extender_watches_interrupted", "Watches that are interrupted now.")
PENDING = Gauge(
    "kyb_extender_pending_pods", "Pods that wait for a seat, by what stands in the way.", ["reason"]
)
NUDGES = Counter(
    "kyb_extender_nudges_total", "How often the scheduler was told to try waiting pods again."
)
LEADING = Gauge(
    "kyb_extender_leading",
    "1 if this one of several replicas leads and answers calls; always 0 beside a "
    "scheduler in the same pod, whose own lease counts.",
)
API_SECONDS = PHASE_SECONDS.labels("bind", "api")


class Use(Collector):
    """How full the cluster is, asked for when it is scraped."""

    def __init__(self) -> None:
        self._figures: Callable[[], Figures | None] = lambda: None

    def set_function(self, figures: Callable[[], Figures | None]) -> None:
        """As a Gauge's."""
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures now."""
        found = self._figures()
        if found is None:
            return
        yield _used("seats", "Seats", ["resource", "product"], found.seats.items())
        memory = [((product,), used) for product, used in found.memory.items()]
        yield _used("gpu_memory_bytes", "Bytes of GPU memory", ["product"], memory)
        for name, value, what in (
            ("free_gpus", found.free_gpus, "What seats leave free, in GPUs."),
            (
                "fragmented_gpus",
                found.fragmented_gpus,
                "Of free_gpus, what a next pod couldn't use on average: FGD's measure, for seats.",
            ),
        ):
            yield GaugeMetricFamily(f"kyb_extender_{name}", what, value)


def _used(
    name: str, what: str, labels: list[str], found: Iterable[tuple[Sequence[str], Used]]
) -> GaugeMetricFamily:
    text = f"{what}: all there are (total), and those that pods may fill (taken)."
    family = GaugeMetricFamily(f"kyb_extender_{name}", text, labels=[*labels, "what"])
    for key, used in found:
        for kind, value in used._asdict().items():
            family.add_metric([*key, kind], value)
    return family


USE = Use()
REGISTRY.register(USE)


class Clock:
    """Takes the times of one verb's calls. Labels are looked up once, not per call."""

    def __init__(self, verb: str) -> None:
        self._whole = SECONDS.labels(verb)
        self._phases = [PHASE_SECONDS.labels(verb, name) for name in ("read", "decide", "write")]
        self._ok, self._error = CALLS.labels(verb, "ok"), CALLS.labels(verb, "error")

    def stop(self, times: tuple[float, float, float, float], *, failed: bool) -> None:
        """A call ended; `times` are its begin and the ends of its phases, in seconds."""
        for at, phase in enumerate(self._phases):
            phase.observe(times[at + 1] - times[at])
        self._whole.observe(times[3] - times[0])
        (self._error if failed else self._ok).inc()
