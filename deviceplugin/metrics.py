"""The plugin's metrics, on the process's registry."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from kybernate.core.doctor.health import Readings

REGISTRATIONS = Counter(
    "kyb_device_plugin_registrations", "Registrations at the kubelet.", ["resource", "result"]
)
ALLOCATIONS = Counter(
    "kyb_device_plugin_allocations", "Containers that were allocated a seat.", ["resource"]
)
PRESTART_SECONDS = Histogram(
    "kyb_device_plugin_prestart_seconds",
    "Time that the agent took to prepare a seat.",
    ["resource"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25),
)
PRESTART_FAILURES = Counter(
    "kyb_device_plugin_prestart_failures",
    "Seats that were not prepared, by gRPC status.",
    ["resource", "code"],
)
REPORTS = Counter("kyb_device_plugin_reports", "Inventories reported to the agent.", ["result"])
DISCOVERY_FAILURES = Counter(
    "kyb_device_plugin_discovery_failures", "Looks at the GPUs that the driver didn't answer."
)
SEATS = Gauge("kyb_device_plugin_seats", "Seats offered.", ["resource", "health"])
WITHHELD = Gauge(
    "kyb_device_plugin_seats_withheld",
    "Free seats not offered because the host's memory couldn't hold them parked.",
    ["resource"],
)
GPU_HEALTHY = Gauge("kyb_device_plugin_gpu_healthy", "1 if the GPU is well.", ["gpu"])
GPU_MEMORY_USED = Gauge(
    "kyb_device_plugin_gpu_memory_used_bytes", "Memory in use by anyone, as NVML says.", ["gpu"]
)
GPU_MEMORY = Gauge("kyb_device_plugin_gpu_memory_bytes", "Memory that the GPU has.", ["gpu"])
GPU_BUSY = Gauge(
    "kyb_device_plugin_gpu_busy_ratio",
    "Part of NVML's last sample in which the GPU computed, 0 to 1.",
    ["gpu"],
)
GPU_POWER = Gauge("kyb_device_plugin_gpu_power_watts", "Power that the GPU takes.", ["gpu"])
GPU_TEMPERATURE = Gauge(
    "kyb_device_plugin_gpu_temperature_celsius", "Temperature of the GPU.", ["gpu"]
)
GPU_EVENTS = Counter(
    "kyb_device_plugin_gpu_events",
    "Events that the driver told, by kind; the number is that of an Xid.",
    ["gpu", "kind", "number"],
)
DRIVER_RELOADS = Counter(
    "kyb_device_plugin_driver_reloads",
    "Sessions with the driver that were begun again.",
    ["result"],
)
PROFILES_REFUSED = Gauge(
    "kyb_device_plugin_profiles_refused",
    "1 while the profiles file is wrong and an older one holds.",
)
PROFILES_RELOADS = Counter(
    "kyb_device_plugin_profiles_reloads", "Changes of the profiles file that were read."
)


def show(gpu: str, found: Readings) -> None:
    """Tell what a GPU measures; what it doesn't say any more is no longer told."""
    for metric, value in (
        (GPU_MEMORY_USED, found.memory_used),
        (GPU_MEMORY, found.memory),
        (GPU_BUSY, found.busy),
        (GPU_POWER, found.power),
        (GPU_TEMPERATURE, found.temperature),
    ):
        if value is not None:
            metric.labels(gpu).set(value)
        else:
            with suppress(KeyError):
                metric.remove(gpu)
