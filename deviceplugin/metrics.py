"""The plugin's metrics, on the process's registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

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
