"""What comes of a CheckpointPolicy, for its status: whom it selects and governs, and whether it
counts at all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.policy.effective import MOST, governing
from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kybernate.core.policy.balance import Verdict
    from kybernate.core.policy.effective import Policy
    from kybernate.core.policy.snapshots import Made


class PolicyReason(Reasoned):
    """Reasons of the condition Ready of a CheckpointPolicy."""

    GOVERNS = "Governs", DONE, "pods with seats go by it where they say nothing themselves"
    SELECTS_NONE = "SelectsNone", DONE, "the namespace has no pod with a seat that it selects"
    OVERRULED = "Overruled", DONE, "policies that come before it govern all pods that it selects"
    TOO_MANY = "TooMany", OPEN, f"{MOST} policies of the namespace come before it; no more count"
    INVALID = "Invalid", OVER, "it says what can't be; the message names the field"


class Counts(NamedTuple):
    """How many snapshots there are and are being made; when the newest was sealed, 0 for none."""

    total: int
    under_way: int
    newest: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What its status says."""

    reason: PolicyReason
    message: str
    matched: int = 0
    governed: int = 0
    snapshots: Counts | None = None
    balanced: Verdict | None = None


class Labelled(NamedTuple):
    """A pod with a seat, as far as policies look at it."""

    uid: str
    name: str
    labels: Mapping[str, str]


def governed_by(
    policy: Policy, policies: Sequence[Policy], pods: Iterable[Labelled]
) -> tuple[tuple[Labelled, ...], int]:
    """Which of a namespace's pods the policy governs, and how many it selects. `policies` are those
    of the namespace that count, in their order."""
    selected = [one for one in pods if policy.selects(one.labels)]
    mine = [one for one in selected if governing(policies, one.labels) == policy]
    return tuple(mine), len(selected)


def findings(
    policy: Policy,
    policies: Collection[Policy],
    governed: int,
    matched: int,
    made: Sequence[Made] = (),
    problem: str = "",
) -> Findings:
    """What its status is to say. `problem`: what could not be done now, in a sentence."""
    counts = None
    if policy.snapshots is not None or made:
        sealed = [one for one in made if one.sealed]
        under_way = sum(not one.ended_at for one in made)
        counts = Counts(len(sealed), under_way, max((one.ended_at for one in sealed), default=0.0))
    if policy not in policies:
        reason = PolicyReason.TOO_MANY
    elif governed:
        reason = PolicyReason.GOVERNS
    else:
        reason = PolicyReason.OVERRULED if matched else PolicyReason.SELECTS_NONE
    message = "; ".join(filter(None, (reason.told, problem)))
    return Findings(reason, message, matched, governed, counts)
