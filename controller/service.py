"""The controller as a process: watches, workers, the sweep, and who of several replicas acts."""

from __future__ import annotations

import socket
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from controller import metrics
from controller.balances import Balances
from controller.base.cluster import Cluster
from controller.base.kinds import CHECKPOINT, REBALANCE, RESTORE
from controller.base.known import Nodes, PodsSeen, Requests, slim_node, slim_request
from controller.base.queue import Queue
from controller.checkpoints.agents import Agents, Sweep
from controller.checkpoints.lost import LostPods, LostWorker, Remains
from controller.checkpoints.worker import Worker
from controller.placements import Placements, PlacementWorker
from controller.placements import slim_node as slim_placed_node
from controller.policies import MANAGED, Policies, PolicyWorker, slim_pod
from controller.preempts import PreemptWorker, Victims, Waiters
from controller.rebalances import Planner, PlanWorker, RebalanceWorker, have_looked_at
from controller.restoring.artifacts import Artifacts, Projection, describing, slim_artifact
from controller.restoring.restores import RestoreWorker, Sources
from controller.shares import Shares
from controller.templates import Templates, TemplateWorker
from controller.zero import SETTLE_S, ZeroWorker
from kybernate import keys
from kybernate.adapters.k8s import OF_USERS, Api, Watcher
from kybernate.adapters.registry.client import Registry
from kybernate.api import pods
from kybernate.core.requests.checkpoint import Pace
from kybernate.core.requests.placement import CopyState, PlacementReason
from kybernate.core.requests.template import TemplateReason
from kybernate.core.requests.turns import Limits
from kybernate.errors import ConfigError
from kybernate.runtime.background import Background
from kybernate.runtime.grants import ArtifactGrants
from kybernate.runtime.lead import Leader, Leases, Terms
from kybernate.runtime.listed import IfServed
from kybernate.runtime.revocations import Revocations
from kybernate.runtime.serve import ProbeServer
from kybernate.settings.common import host_port

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from kybernate.core.requests import rebalance
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence
    from kybernate.settings.controller import ControllerSettings

    Json = dict[str, Any]
    OnEvent = Callable[[str, Json], None]
    Slim = Callable[[Json], Json]

_POLICY_THREADS = 2
_RESTORE_THREADS = 4


class Service:
    """Raises ConfigError if its credentials can't be read."""

    def __init__(self, settings: ControllerSettings) -> None:
        _check(settings)
        self._api = Api(settings.kubeconfig, "kyb-controller")
        # Of our kinds; of those that only a later release's config/ brings there are none.
        self._ours = IfServed(self._api)
        self._revocations, self._artifacts = Revocations(self._revoked), Artifacts()
        self._queue, self._policy_queue, self._zero_queue = Queue(), Queue(), Queue()
        self._template_queue, self._preempt_queue, self._placement_queue = Queue(), Queue(), Queue()
        self._placements = Placements(self._placement_queue.add)
        self._templates = Templates(self._template_queue.add)
        self._waiters = Waiters(self._preempt_queue.add)
        self._nodes = Nodes(self._changed, self._templates.touch)
        self._policies = Policies(self._policy_queue.add, self._changed)
        self._rebalance_queue, self._plan_queue, self._pods = Queue(), Queue(), PodsSeen()
        self._rebalances = Requests(REBALANCE, self._rebalance_queue.add, self._moved)
        self._requests = Requests(CHECKPOINT, self._queue.add, self._told)
        self._restore_queue, self._grants = Queue(), ArtifactGrants()
        self._restores = Requests(RESTORE, self._restore_queue.add)
        self._lost_queue, self._registry = Queue(), _registry(settings)
        self._lost = LostPods(self._lost_queue.add)
        self._node_watch = Watcher(
            *(self._ours, keys.GPU_NODES_PATH, {}, self._nodes.on_event, "GPUNodes"),
            keep=slim_node,
        )
        self._watches = (self._node_watch, *self._watched(), *self._projected(settings))
        self._agents = Agents(
            settings.tls_dir,
            settings.agent_timeout_s,
            self._nodes.address,
            self._why_not,
            shared=settings.shared_agent_keys,
        )
        self._leader, fence = self._lead(settings)
        cluster = Cluster(self._api, settings.api_timeout_s)
        policies = PolicyWorker(
            *(self._policy_queue, self._policies, self._requests),
            Balances(self._rebalances, self._nodes, cluster, fence),
            *(cluster, self._agents, fence),
        )
        zero = ZeroWorker(
            *(self._zero_queue, self._policies, self._requests, self._nodes, cluster, fence)
        )
        templates = TemplateWorker(
            *(self._template_queue, self._templates, self._requests, self._nodes, cluster),
            *(self._agents, fence, settings.sidecar_image),
        )
        workers = self._checkpoints(settings, cluster, fence)
        workers |= {f"policies-{number}": policies.run for number in range(_POLICY_THREADS)}
        workers |= {f"templates-{number}": templates.run for number in range(_POLICY_THREADS)}
        restores = self._restoring(cluster, fence)
        workers |= {f"restores-{number}": restores.run for number in range(_RESTORE_THREADS)}
        workers |= self._rebalancing(settings, cluster, fence)
        workers |= self._preempting(settings, cluster, fence) | self._placing(cluster, fence)
        if settings.registry_url:
            workers["artifacts"] = self._projection(settings, fence).run
        self._shares = Shares(self._nodes, self._policies.pods, self._why_not, cluster, fence)
        workers |= {
            "zero": zero.run,
            "shares": self._shares.run,
        }
        self._threads = Background(**workers)
        self._probes = ProbeServer(*host_port(settings.probe_listen), self.not_ready)
        self._measured(fence)

    def start(self) -> None:
        """Start everything."""
        self._probes.start()
        self._revocations.start(self._api)
        self._grants.start(self._ours)
        self._shares.seen.start(self._ours)
        for watch in self._watches:
            watch.start()
        if self._leader is not None:
            self._leader.start()
        self._threads.start()

    def stop(self) -> None:
        """Stop everything; what is being done ends first, then the lease is given back."""
        for one in self._queues().values():
            one.close()
        self._threads.stop()
        if self._leader is not None:
            self._leader.stop()
        for watch in self._watches:
            watch.stop()
        self._grants.stop()
        self._shares.seen.stop()
        self._revocations.stop()
        self._agents.close()
        self._probes.stop()

    def not_ready(self) -> str | None:
        """Why nothing can be done yet, in a sentence."""
        for watch in self._watches:
            if not watch.synced.is_set():
                return watch.last_error or "not all that the controller watches is listed yet"
        return None if self._revocations.synced else "revoked nodes are not listed yet"

    def refresh(self) -> Callable[[], bool]:
        """See `lead.Knowledge`."""
        # Of an address that is not the agent's any more the call tells.
        asked = [(one, one.refresh()) for one in self._watches if one is not self._node_watch]
        return lambda: all(one.is_fresh(n) for one, n in asked) and self.not_ready() is None

    def _told(self, request: Request) -> None:
        """What becomes of a snapshot is for its policy or template to know, of a last step for its
        Deployment, and of a move's step for its RebalanceRequest. What people ask for concerns none
        of these, and there may be much of it."""
        have_looked_at(request, self._rebalances, self._rebalance_queue)
        if request.policy or request.deployment:
            self._policies.touch(request.namespace)
            self._templates.touch(request.namespace)

    def _moved(self, request: rebalance.Request) -> None:
        if request.policy:
            self._policies.touch(request.namespace)

    def _on_pod(self, kind: str, item: Json) -> None:
        self._policies.on_pod(kind, item)
        self._templates.on_pod(kind, item)
        self._pods.on_event(kind, item)
        self._waiters.on_event(kind, item)
        self._lost.on_event(kind, item)

    def _on_artifact(self, kind: str, item: Json) -> None:
        self._artifacts.on_event(kind, item)
        self._placements.on_artifact(kind, item)

    def _lead(self, settings: ControllerSettings) -> tuple[Leader | None, Fence]:
        if not settings.lease:
            return None, _Alone(self.not_ready)
        timeout = settings.api_timeout_s
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        # A call of either kind must end before the lease can.
        terms = Terms(settings.lease_s, max(timeout, settings.agent_timeout_s))
        leases = Leases(self._api, timeout)
        leader = Leader(leases, settings.lease, identity, terms, self)
        return leader, leader

    def _rebalancing(
        self, settings: ControllerSettings, cluster: Cluster, fence: Fence
    ) -> dict[str, Callable[[threading.Event], None]]:
        standing, requests = settings.plans_standing, self._rebalances
        worker = RebalanceWorker(
            *(self._rebalance_queue, requests, self._requests, self._pods, self._plan_queue),
            *(cluster, fence),
            standing=standing,
            withdrawn=self._policies.moves,
        )
        plans = PlanWorker(
            *(self._plan_queue, self._rebalance_queue, requests, worker),
            *(Planner(settings.extender, settings.tls_dir), cluster, fence),
            standing=standing,
        )
        found = {f"rebalances-{number}": worker.run for number in range(_POLICY_THREADS)}
        tidy = partial(worker.keep_tidy, settings.sweep_s)
        return {**found, "plans": plans.run, "rebalances-tidy": tidy}

    def _preempting(
        self, settings: ControllerSettings, cluster: Cluster, fence: Fence
    ) -> dict[str, Callable[[threading.Event], None]]:
        worker = PreemptWorker(
            *(self._preempt_queue, self._waiters, self._requests, self._pods),
            *(Victims(settings.extender, settings.tls_dir), cluster, fence),
            patience=settings.preempt_after_s,
            limits=_limits(settings),
        )
        found = {f"preempts-{number}": worker.run for number in range(_POLICY_THREADS)}
        return {**found, "preempts-tidy": worker.keep_tidy}

    def _placing(self, cluster: Cluster, fence: Fence) -> dict[str, Any]:
        worker = PlacementWorker(
            *(self._placement_queue, self._placements, self._artifacts, self._nodes),
            *(self._registry, cluster, self._agents, fence),
        )
        return {f"placements-{number}": worker.run for number in range(_POLICY_THREADS)}

    def _checkpoints(
        self, settings: ControllerSettings, cluster: Cluster, fence: Fence
    ) -> dict[str, Any]:
        """Threads that carry out CheckpointRequests, and make those for lost pods."""
        remains, parts = Remains(cluster, self._registry), (self._lost, self._requests, cluster)
        worker = Worker(
            *(self._queue, self._requests, cluster, self._agents, self._lost, remains, fence),
            snapshots=settings.snapshots_at_once,
            limits=_limits(settings),
            governing=self._policies.limiting,
        )
        lost = LostWorker(self._lost_queue, *parts, fence)
        sweep = Sweep(
            *(self._requests, self._nodes, self._agents, fence, settings.sweep_s),
            self._placements.wanted,
        )
        workers = {f"worker-{number}": worker.run for number in range(settings.threads)}
        return workers | {"sweep": sweep.run, "lost": lost.run}

    def _restoring(self, cluster: Cluster, fence: Fence) -> RestoreWorker:
        known = self._artifacts, self._registry, self._grants.all
        sources = Sources(*known, self._templates.get)
        return RestoreWorker(self._restore_queue, self._restores, cluster, sources, fence)

    def _queues(self) -> dict[str, Queue]:
        """What is due, by the kind that its worker counts."""
        return {
            "checkpoint": self._queue,
            "restore": self._restore_queue,
            "rebalance": self._rebalance_queue,
            "plan": self._plan_queue,
            "policy": self._policy_queue,
            "template": self._template_queue,
            "placement": self._placement_queue,
            "namespace": self._zero_queue,
            "pod": self._preempt_queue,
            "lost": self._lost_queue,
        }

    def _measured(self, fence: Fence) -> None:
        metrics.LEADING.set_function(lambda: fence.closed() is None)
        metrics.MISSING.set_function(lambda: self._ours.missing)
        for kind, queue in self._queues().items():
            metrics.QUEUED.labels(kind).set_function(partial(len, queue))
        requests: dict[str, Requests[Any]] = {
            "checkpoint": self._requests,
            "restore": self._restores,
            "rebalance": self._rebalances,
        }
        for kind, known in requests.items():
            metrics.OPEN.labels(kind).set_function(partial(_open, known))
        for reason in TemplateReason:
            number = partial(self._templates.number, reason)
            metrics.TEMPLATES.labels(reason.value).set_function(number)
        for why in PlacementReason:
            counted = partial(self._placements.number, why)
            metrics.PLACEMENTS.labels(why.value).set_function(counted)
        for state in CopyState:
            metrics.COPIES.labels(state.value).set_function(partial(self._placements.copies, state))
        metrics.ARTIFACTS.set_function(lambda: len(self._artifacts.all()))

    def _watched(self) -> tuple[Watcher, ...]:
        """The watches of what people write, and of pods."""

        def users(path: str, on_event: OnEvent, name: str, keep: Slim | None = None) -> Watcher:
            return Watcher(
                *(self._ours, path, {}, on_event, name), keep=keep, names_only=True, page=OF_USERS
            )

        checkpoints, restores = self._requests.on_event, self._restores.on_event
        rebalances = self._rebalances.on_event
        return (
            users(keys.CHECKPOINT_REQUESTS_PATH, checkpoints, "CheckpointRequests", slim_request),
            users(keys.CHECKPOINT_POLICIES_PATH, self._policies.on_event, "CheckpointPolicies"),
            users(keys.SNAPSHOT_TEMPLATES_PATH, self._templates.on_event, "SnapshotTemplates"),
            users(keys.TIER_PLACEMENTS_PATH, self._placements.on_event, "TierPlacements"),
            Watcher(
                *(self._api.of_metadata(), "/api/v1/nodes", {}, self._placements.on_node, "nodes"),
                keep=slim_placed_node,
            ),
            users(keys.RESTORE_REQUESTS_PATH, restores, "RestoreRequests", slim_request),
            users(keys.REBALANCE_REQUESTS_PATH, rebalances, "RebalanceRequests", slim_request),
            Watcher(*(self._api, pods.PATH, MANAGED, self._on_pod, "pods"), keep=slim_pod),
        )

    def _projected(self, settings: ControllerSettings) -> tuple[Watcher, ...]:
        if not settings.registry_url:
            return ()
        seen = Watcher(
            *(self._ours, keys.ARTIFACTS_PATH, {}, self._on_artifact, "Artifacts"),
            keep=slim_artifact,
            names_only=True,
        )
        return (seen,)

    def _projection(self, settings: ControllerSettings, fence: Fence) -> Projection:
        return Projection(
            self._api,
            self._artifacts,
            partial(Registry, settings.registry_url, settings.tls_dir, "controller"),
            partial(describing, self._requests, self._policies),
            fence,
            timeout=settings.api_timeout_s,
            every=settings.artifacts_s,
            each=settings.artifacts_shown,
        )

    def _changed(self, namespace: str) -> None:
        self._zero_queue.add((namespace, ""), SETTLE_S)

    def _why_not(self, node: str) -> str:
        found = self._revocations.of(node)
        return f"node {node} is revoked" if found is not None and found.revoked else ""

    def _revoked(self, nodes: frozenset[str]) -> None:
        self._agents.disconnect(nodes)


def _limits(settings: ControllerSettings) -> Limits:
    pace = Pace(settings.evict_s_per_gib, settings.evict_idle_s)
    return Limits(settings.evictions_of_node, settings.evictions_at_once, pace)


def _open(known: Requests[Any]) -> int:
    return len(known.wanted())


def _registry(settings: ControllerSettings) -> Callable[[], Registry] | None:
    """Gives a client by the certificates of now; None where there is no registry."""
    url = settings.registry_url
    return partial(Registry, url, settings.tls_dir, "controller") if url else None


class _Alone:
    """One controller alone acts as soon as it knows what there is. Implements `lead.Fence`."""

    def __init__(self, not_ready: Callable[[], str | None]) -> None:
        self._not_ready = not_ready

    def closed(self) -> str | None:
        """Why nothing is done yet."""
        return self._not_ready()

    def check(self) -> None:
        """Any call may begin."""


def _check(settings: ControllerSettings) -> None:
    for name in ("ca.crt", "controller.crt", "controller.key"):
        file = settings.tls_dir / name
        if not file.is_file():
            raise ConfigError(
                "tls_dir", f"{file} is missing; `kybernate pki init` makes controller.crt and .key"
            )
