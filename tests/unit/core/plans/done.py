"""Whether a step has happened, as the ledger shows it: what plans are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.plans.steps import Spot, Step
    from kybernate.types import NodeName, PodUid


def is_done(
    step: Step,
    views: Mapping[NodeName, NodeView],
    successors: Mapping[PodUid, PodUid] | None = None,
) -> bool:
    """Whether the ledger shows that the step has happened. `successors` names the pods that go on
    for others, by whoever made them."""
    if step.target is not None:
        follower = (successors or {}).get(step.pod.uid, step.pod.uid)
        return _holds(views, step.target, {step.pod.uid, follower})
    return step.source is None or not _holds(views, step.source, {step.pod.uid})


def _holds(views: Mapping[NodeName, NodeView], spot: Spot, pods: Collection[PodUid]) -> bool:
    node, group = spot
    there = views[node].claims if node in views else ()
    return any(claim.pod.uid in pods and claim.group == group for claim in there)
