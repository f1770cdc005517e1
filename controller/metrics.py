"""What the controller counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

LEADING = Gauge("kyb_controller_leading", "1 if this one of several replicas acts.")
MISSING = Gauge(
    "kyb_controller_kinds_missing",
    "Kinds of kyb.ai that the API server does not serve, and of which nothing is done: apply "
    "config/crd of the controller's release.",
)
RECONCILES = Counter(
    "kyb_controller_reconciles_total",
    "Looks at objects, by kind; outcome is done, conflict, error or fault.",
    ["kind", "outcome"],
)
SECONDS = Histogram(
    "kyb_controller_reconcile_seconds",
    "How long a look at an object took, with the calls that it made.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
QUEUED = Gauge("kyb_controller_queue", "Objects that are due to be looked at.", ["kind"])
OPEN = Gauge("kyb_controller_requests_open", "Requests that are not done yet.", ["kind"])
TEMPLATES = Gauge(
    "kyb_controller_templates", "SnapshotTemplates, by the reason of their condition.", ["reason"]
)
PLACEMENTS = Gauge(
    "kyb_controller_placements", "TierPlacements, by the reason of their condition.", ["reason"]
)
COPIES = Gauge(
    "kyb_controller_copies", "Copies that TierPlacements want, by how far they are.", ["state"]
)
ARTIFACTS = Gauge("kyb_controller_artifacts", "Artifacts that are shown as objects.")
SCALES = Counter(
    "kyb_controller_scales_total",
    "Deployments that were scaled to zero, or back since a request came.",
    ["to"],
)
# A rate needs two values: each is zero before it counts.
for _to in ("zero", "back"):
    SCALES.labels(_to)
ENDED = Counter(
    "kyb_controller_requests_ended_total", "Requests that have ended.", ["mode", "reason"]
)
STRAYS = Counter(
    "kyb_controller_strays_total",
    "Operations that were cancelled on agents since their request is gone or has ended.",
)
ARTIFACT_WRITES = Counter(
    "kyb_controller_artifact_writes_total",
    "Writes of Artifacts; outcome is made, changed, dropped or failed.",
    ["outcome"],
)
