"""What the controller's watches tell, and what is due because of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller.base.kinds import CHECKPOINT, REBALANCE, RESTORE
from controller.base.known import Nodes, PodsSeen, Requests
from controller.base.queue import Queue
from controller.checkpoints.lost import LostPods
from controller.placements import Placements
from controller.placements import slim_node as slim_placed_node
from controller.policies import MANAGED, Policies
from controller.preempts import Waiters
from controller.rebalances import have_looked_at
from controller.restoring.artifacts import Artifacts
from controller.templates import Templates
from controller.zero import SETTLE_S
from kybernate import keys
from kybernate.adapters.k8s import OF_USERS, Api, Watcher
from kybernate.api import pods
from kybernate.api.watched.nodefacts import slim_node
from kybernate.api.watched.slim import slim_artifact, slim_pod, slim_request
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.turns import may_begin
from kybernate.runtime.grants import ArtifactGrants

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.requests import rebalance
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.listed import IfServed

    Json = dict[str, Any]
    OnEvent = Callable[[str, Json], None]
    Slim = Callable[[Json], Json]

_KINDS = ("checkpoint", "restore", "rebalance", "plan", "policy", "template", "placement")
_OTHERS = ("namespace", "pod", "lost")


class Seen:
    """`due`: a queue for each kind of which workers count. `snapshots`: how many of a namespace are
    under way at a time."""

    def __init__(self, snapshots: int) -> None:
        self._snapshots = snapshots
        self.due = due = {kind: Queue() for kind in (*_KINDS, *_OTHERS)}
        self.artifacts, self.grants, self.pods = Artifacts(), ArtifactGrants(), PodsSeen()
        self.placements = Placements(due["placement"].add)
        self.templates = Templates(due["template"].add)
        self.waiters = Waiters(due["pod"].add)
        self.lost = LostPods(due["lost"].add)
        self.nodes = Nodes(self._changed, self.templates.touch)
        self.policies = Policies(due["policy"].add, self._changed)
        self.rebalances = Requests(REBALANCE, due["rebalance"].add, self._moved)
        self.checkpoints = Requests(CHECKPOINT, due["checkpoint"].add, self._told)
        self.restores = Requests(RESTORE, due["restore"].add)

    def on_pod(self, kind: str, item: Json) -> None:
        """A pod that may hold a seat changed."""
        self.policies.on_pod(kind, item)
        self.templates.on_pod(kind, item)
        self.pods.on_event(kind, item)
        self.waiters.on_event(kind, item)
        self.lost.on_event(kind, item)

    def on_artifact(self, kind: str, item: Json) -> None:
        """An Artifact changed."""
        self.artifacts.on_event(kind, item)
        self.placements.on_artifact(kind, item)

    def _changed(self, namespace: str) -> None:
        self.due["namespace"].add((namespace, ""), SETTLE_S)

    def _told(self, request: Request) -> None:
        """What becomes of a snapshot is for its policy or template to know, of a last step for its
        Deployment, and of a move's step for its RebalanceRequest. What people ask for concerns none
        of these, and there may be much of it."""
        have_looked_at(request, self.rebalances, self.due["rebalance"])
        if request.mode is Mode.SNAPSHOT and request.status.reason is not Reason.QUEUED:
            # It may have ended, or have let others go first: whose turn it is now is looked at
            # before all that is due, or a line would grow the longer, the longer it is.
            for one in may_begin(self.checkpoints.of(request.namespace), self._snapshots):
                self.due["checkpoint"].add((one.namespace, one.name), first=True)
        if request.policy or request.deployment:
            self.policies.touch(request.namespace)
            self.templates.touch(request.namespace)

    def _moved(self, request: rebalance.Request) -> None:
        if request.policy:
            self.policies.touch(request.namespace)


def of_nodes(seen: Seen, ours: IfServed) -> Watcher:
    """The watch of GPUNodes."""
    return Watcher(
        *(ours, keys.GPU_NODES_PATH, {}, seen.nodes.on_event, "GPUNodes"), keep=slim_node
    )


def of_people(seen: Seen, ours: IfServed, api: Api) -> tuple[Watcher, ...]:
    """The watches of what people write, of pods, and of nodes."""

    def users(path: str, on_event: OnEvent, name: str, keep: Slim | None = None) -> Watcher:
        return Watcher(*(ours, path, {}, on_event, name), keep=keep, names_only=True, page=OF_USERS)

    checkpoints, restores = seen.checkpoints.on_event, seen.restores.on_event
    rebalances = seen.rebalances.on_event
    return (
        users(keys.CHECKPOINT_REQUESTS_PATH, checkpoints, "CheckpointRequests", slim_request),
        users(keys.CHECKPOINT_POLICIES_PATH, seen.policies.on_event, "CheckpointPolicies"),
        users(keys.SNAPSHOT_TEMPLATES_PATH, seen.templates.on_event, "SnapshotTemplates"),
        users(keys.TIER_PLACEMENTS_PATH, seen.placements.on_event, "TierPlacements"),
        Watcher(
            *(api.of_metadata(), "/api/v1/nodes", {}, seen.placements.on_node, "nodes"),
            keep=slim_placed_node,
        ),
        users(keys.RESTORE_REQUESTS_PATH, restores, "RestoreRequests", slim_request),
        users(keys.REBALANCE_REQUESTS_PATH, rebalances, "RebalanceRequests", slim_request),
        Watcher(*(api, pods.PATH, MANAGED, seen.on_pod, "pods"), keep=slim_pod),
    )


def of_artifacts(seen: Seen, ours: IfServed) -> Watcher:
    """The watch of Artifacts."""
    return Watcher(
        *(ours, keys.ARTIFACTS_PATH, {}, seen.on_artifact, "Artifacts"),
        keep=slim_artifact,
        names_only=True,
    )
