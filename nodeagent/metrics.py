"""Prometheus metrics of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

STEP_SECONDS = Histogram(
    "kyb_agent_step_seconds",
    "Seconds that a phase of parking or waking took.",
    ["operation", "phase"],
    buckets=_SECONDS,
)
WAIT_SECONDS = Histogram(
    "kyb_agent_wake_wait_seconds",
    "Seconds from the first waiting request to the grant of its seat.",
    buckets=_SECONDS,
)
SWAPS = Counter("kyb_agent_swaps_total", "Seats woken.", ["group"])
FAILURES = Counter("kyb_agent_failures_total", "Steps that failed.", ["operation"])
SEATS = Gauge("kyb_agent_seats", "Seats by state.", ["state"])
LOOP_SECONDS = Histogram(
    "kyb_agent_decide_seconds", "Seconds that one swap decision took.", buckets=_SECONDS
)


OPERATIONS = Counter(
    "kyb_agent_operations_total",
    "Operations asked for by people and controllers that ended.",
    ["kind", "state"],
)
MOVED_BYTES = Counter(
    "kyb_agent_moved_bytes_total", "Bytes of device memory moved by parks and wakes.", ["operation"]
)


def observe(operation: str, phases: Mapping[str, float], moved: int) -> None:
    """Note the seconds of each phase of one park or wake, and the bytes it moved."""
    for phase, seconds in phases.items():
        STEP_SECONDS.labels(operation, phase).observe(seconds)
    MOVED_BYTES.labels(operation).inc(moved)
