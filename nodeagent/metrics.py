"""Prometheus metrics of the agent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from kybernate.core.seat.budget import Lack
from kybernate.errors import DeadlineError, DriverError, KybernateError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

STEP_SECONDS = Histogram(
    "kyb_agent_step_seconds",
    "Seconds of each phase of park, wake, dump, restore, pack and save; phase `all` is the whole.",
    ["operation", "phase"],
    buckets=_SECONDS,
)
WAIT_SECONDS = Histogram(
    "kyb_agent_wake_wait_seconds",
    "Seconds from the first waiting request to the grant of its seat.",
    buckets=_SECONDS,
)
SWAPS = Counter("kyb_agent_swaps_total", "Seats woken.", ["group"])
FAILURES = Counter(
    "kyb_agent_failures_total",
    "Steps that failed, by operation (park, or the seat's state) and cause: the driver's "
    "name of its error (such as `CUDA_ERROR_OUT_OF_MEMORY`), or deadline, disk, process-"
    "gone, gpu-lost, workload, bug.",
    ["operation", "cause"],
)
RESIDENCY_SECONDS = Histogram(
    "kyb_agent_residency_seconds",
    "Seconds that a seat was active between two parks.",
    buckets=(*_SECONDS[6:], 300, 600, 1800, 3600, 14400, 86400),
)
ACTIVE_SECONDS = Counter(
    "kyb_agent_active_seconds_total",
    "Seconds that seats were active, exact over restarts of the agent.",
    ["namespace"],
)
GPU_SECONDS = Counter(
    "kyb_agent_gpu_seconds_total",
    "Seconds that seats were active times their GPUs, exact over restarts of the agent.",
    ["namespace"],
)
NAMESPACE_WAKES = Counter(
    "kyb_agent_namespace_wakes_total",
    "Seats woken, exact over restarts of the agent.",
    ["namespace"],
)
PARKED_GIB_HOURS = Counter(
    "kyb_agent_parked_gib_hours_total",
    "GiB of GPU memory kept in the host's RAM times hours, exact over restarts of the agent.",
    ["namespace"],
)
TURN_SECONDS = Counter(
    "kyb_agent_turn_seconds_total",
    "Seconds that a seat that takes turns held its GPUs.",
    ["namespace", "seat"],
)
TURN_SWAP_SECONDS = Counter(
    "kyb_agent_turn_swap_seconds_total",
    "Seconds, of all GPUs, that swaps took from seats that take turns: among them (turn),"
    " and for requests (request).",
    ["cause"],
)
TURN_SWAP_SHARE = Gauge(
    "kyb_agent_turn_swap_share",
    "Part of the time since the agent began that swaps among seats that take turns took.",
)
EVENTS_DROPPED = Counter(
    "kyb_agent_events_dropped_total", "Kubernetes events left out: their object had too many."
)
SEATS = Gauge("kyb_agent_seats", "Seats by state.", ["state"])
ARRIVALS = Counter(
    "kyb_agent_arrivals_total", "Times that an arrival at its sockets requested a parked seat."
)
JOURNAL_DAMAGED = Counter(
    "kyb_agent_journal_damaged_total",
    "Times that the agent began with a journal that had lost lines.",
)
HELD_PACKETS = Counter(
    "kyb_agent_held_packets_total",
    "TCP packets from and to offloaded pods that were held, or dropped and sent again; "
    "counted once TCP passes again, so not those of pods that ended parked.",
)
ENDED_CONNECTIONS = Counter(
    "kyb_agent_ended_connections_total", "Idle connections that were reset when a seat was parked."
)
LOOP_SECONDS = Histogram(
    "kyb_agent_decide_seconds",
    "Seconds that one swap decision over all seats took.",
    buckets=_SECONDS,
)


REFUSED_CALLS = Counter(
    "kyb_agent_refused_calls_total",
    "Calls of the API that were answered with an error, by cause: role, certificate, "
    "rate, or the gRPC status.",
    ["method", "cause"],
)
OPERATIONS = Counter(
    "kyb_agent_operations_total",
    "Operations asked for by people and controllers that ended.",
    ["kind", "state"],
)
SPOT_NOTICES = Counter(
    "kyb_agent_spot_notices_total", "Times that the cloud said that it takes this instance away."
)
MOVED_BYTES = Counter(
    "kyb_agent_moved_bytes_total",
    "Bytes of device memory that parks and wakes moved.",
    ["operation"],
)


OPEN_DEVICES = Counter(
    "kyb_agent_open_devices_total",
    "Times that a pod could not be kept from its GPUs until its turn.",
)
INTRUDERS = Counter(
    "kyb_agent_intruders_total",
    "Processes found on a GPU without their turn, and seats over what they declare, by what was"
    " wrong and what was done.",
    ["cause", "remedy"],
)
GPU_USED_BYTES = Gauge(
    "kyb_agent_gpu_used_bytes", "GPU memory in use, by whomever, as NVML says.", ["gpu"]
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
    "kyb_agent_parks_refused_total",
    f"Parks that host memory did not allow, by lack: {', '.join(Lack)}.",
    ["lack"],
)
REPORTS = Gauge(
    "kyb_agent_registry_reports", "Reports that the registry has not had yet; 0 unless it is away."
)
TIER_BYTES = Gauge(
    "kyb_agent_tier_bytes",
    "Bytes of parked seats in each tier, with what is on its way to it or from it.",
    ["tier"],
)
SAVED_BYTES = Counter(
    "kyb_agent_saved_bytes_total",
    "Bytes of artifacts written (dump), read (restore), packed into the object store "
    "(pack) and sent to other nodes (send).",
    ["step"],
)
RESTORES_REFUSED = Counter(
    "kyb_agent_restores_refused_total",
    "Times that a pod could not have the artifact that it asks for, by reason: one of the page of "
    "refusals, or `other`.",
    ["reason"],
)
TIER_STEPS = Counter(
    "kyb_agent_tier_moves_total",
    "Steps of a parked state between tiers (dump, restore, pack, fetch, save), by "
    "outcome: done, kept (it stays in RAM), called (it was requested meanwhile), failed.",
    ["step", "outcome"],
)
KILLED_WHILE_PARKED = Counter(
    "kyb_agent_killed_while_parked_total", "Parked seats that lost a process.", ["cause"]
)


_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (DeadlineError, "deadline"),
    (OSError, "disk"),
    (NotFoundError, "process-gone"),
)


def failed(operation: str, event: str = "") -> None:
    """Note a failure. Its cause is the error that is being handled, else it lies in `event`."""
    error = sys.exception()
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    FAILURES.labels(operation, _cause(chain, event)).inc()


def _cause(chain: Sequence[BaseException], event: str) -> str:
    for error in chain:
        if isinstance(error, DriverError):
            return error.name
        known = next((name for kind, name in _CAUSES if isinstance(error, kind)), None)
        if known is not None:
            return known
    if event == "GpuLost":
        return "gpu-lost"
    return "bug" if chain and not isinstance(chain[0], KybernateError) else "workload"


def observe_step(step: str, phases: Mapping[str, float], moved: int) -> None:
    """Note the seconds of each phase of one dump or restore, and its bytes."""
    for phase, seconds in phases.items():
        STEP_SECONDS.labels(step, phase).observe(seconds)
    SAVED_BYTES.labels(step).inc(moved)


def rate_of(step: str) -> float | None:
    """Bytes per second of all dumps, restores or packs since the agent began; None without any."""
    told = {"step": step}
    size = REGISTRY.get_sample_value("kyb_agent_saved_bytes_total", told) or 0.0
    phase = {"operation": step, "phase": "all"}
    seconds = REGISTRY.get_sample_value("kyb_agent_step_seconds_sum", phase) or 0.0
    return size / seconds if size and seconds else None


def observe(operation: str, phases: Mapping[str, float], moved: int) -> None:
    """Note the seconds of each phase of one park or wake, and the bytes it moved."""
    for phase, seconds in phases.items():
        STEP_SECONDS.labels(operation, phase).observe(seconds)
    MOVED_BYTES.labels(operation).inc(moved)
