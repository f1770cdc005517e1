"""What the extender counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CALLS = Counter(
    "kyb_extender_calls_total", "Calls of the kube-scheduler, by outcome", ["verb", "outcome"]
)
SECONDS = Histogram(
    "kyb_extender_call_seconds",
    "How long a call took",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
UNPLACED = Gauge(
    "kyb_extender_unplaced_seats", "Pods that hold a seat of which nobody wrote the group"
)
NODES = Gauge("kyb_extender_gpu_nodes", "Nodes with a GPUNode")
WATCHES_BROKEN = Gauge("kyb_extender_watches_interrupted", "Watches that are interrupted now")
LEADING = Gauge("kyb_extender_leading", "1 if this replica answers calls, as leader or alone")
