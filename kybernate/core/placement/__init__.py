"""Where a pod goes: one model of demand and supply, the policies, and the choice. Pure."""

from kybernate.core.placement.choosing import Choosing, parse_policies, parse_weights
from kybernate.core.placement.model import FULL, Ask, Demand, Place, Supply
from kybernate.core.placement.outlook import Outlook, expect
from kybernate.core.placement.policies import DEFAULT, POLICIES, Policy, Table, Weights, policies
from kybernate.core.placement.seats import (
    HELPED,
    KINDS,
    Candidates,
    candidates,
    choose,
    choose_group,
    load,
    score,
    usable,
)

__all__ = [
    "DEFAULT",
    "FULL",
    "HELPED",
    "KINDS",
    "POLICIES",
    "Ask",
    "Candidates",
    "Choosing",
    "Demand",
    "Outlook",
    "Place",
    "Policy",
    "Supply",
    "Table",
    "Weights",
    "candidates",
    "choose",
    "choose_group",
    "expect",
    "load",
    "parse_policies",
    "parse_weights",
    "policies",
    "score",
    "usable",
]
