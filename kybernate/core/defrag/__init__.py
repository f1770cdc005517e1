"""Which pods to move so that pending ones fit: the cheapest moves, in a safe order. Pure."""

from kybernate.core.defrag.explain import sentences
from kybernate.core.defrag.model import (
    Budget,
    Cluster,
    NoPlan,
    Pending,
    Plan,
    Seated,
)
from kybernate.core.defrag.planner import plan
from kybernate.core.defrag.report import document
from kybernate.core.plans.steps import Kind, Step

__all__ = [
    "Budget",
    "Cluster",
    "Kind",
    "NoPlan",
    "Pending",
    "Plan",
    "Seated",
    "Step",
    "document",
    "plan",
    "sentences",
]
