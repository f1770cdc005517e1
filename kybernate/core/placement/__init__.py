"""Where a pod goes: one model of demand and supply, the policies, and the choice. Pure."""

from kybernate.core.placement.model import FULL, Ask, Demand, Place, Supply
from kybernate.core.placement.seats import (
    KINDS,
    POLICIES,
    Candidates,
    Policy,
    candidates,
    choose_group,
    load,
    score,
    usable,
)

__all__ = [
    "FULL",
    "KINDS",
    "POLICIES",
    "Ask",
    "Candidates",
    "Demand",
    "Place",
    "Policy",
    "Supply",
    "candidates",
    "choose_group",
    "load",
    "score",
    "usable",
]
