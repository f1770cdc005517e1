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
ARRIVALS = Counter(
    "kyb_agent_arrivals_total", "Times that something at its sockets called for a parked seat."
)
ENDED_CONNECTIONS = Counter(
    "kyb_agent_ended_connections_total", "Idle connections that were reset when a seat was parked."
)
LOOP_SECONDS = Histogram(
    "kyb_agent_decide_seconds", "Seconds that one swap decision took.", buckets=_SECONDS
)


REFUSED_CALLS = Counter(
    "kyb_agent_refused_calls_total",
    "Calls of the API that were answered with an error.",
    ["method", "cause"],
)
OPERATIONS = Counter(
    "kyb_agent_operations_total",
    "Operations asked for by people and controllers that ended.",
    ["kind", "state"],
)
MOVED_BYTES = Counter(
    "kyb_agent_moved_bytes_total", "Bytes of device memory moved by parks and wakes.", ["operation"]
)


INTRUDERS = Counter(
    "kyb_agent_intruders_total",
    "Processes found on a GPU without their turn, by what was wrong and what was done.",
    ["cause", "remedy"],
)
FOREIGN_BYTES = Gauge(
    "kyb_agent_foreign_bytes", "GPU memory of processes that belong to no seat.", ["gpu"]
)
HOST_AVAILABLE = Gauge(
    "kyb_agent_host_available_bytes", "Host memory that is available, as the kernel says."
)
HOST_STALLED = Gauge(
    "kyb_agent_host_stalled_percent",
    "Share of the last 10 s in which all tasks stood still for want of memory.",
)
PARKS_REFUSED = Counter(
    "kyb_agent_parks_refused_total", "Parks that host memory did not allow.", ["lack"]
)
KILLED_WHILE_PARKED = Counter(
    "kyb_agent_killed_while_parked_total", "Parked seats that lost a process.", ["cause"]
)


def observe(operation: str, phases: Mapping[str, float], moved: int) -> None:
    """Note the seconds of each phase of one park or wake, and the bytes it moved."""
    for phase, seconds in phases.items():
        STEP_SECONDS.labels(operation, phase).observe(seconds)
    MOVED_BYTES.labels(operation).inc(moved)
