"""The controller's threads: for each kind of object those who carry out what is due of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controller.balances import Balances
from controller.checkpoints.agents import Sweep
from controller.checkpoints.lost import LostWorker, Remains
from controller.checkpoints.worker import Worker
from controller.placements import PlacementWorker
from controller.policies import PolicyWorker
from controller.preempts import PreemptWorker, Victims
from controller.rebalances import Planner, PlanWorker, RebalanceWorker
from controller.restoring.artifacts import Projection, describing
from controller.restoring.restores import RestoreWorker, Sources
from controller.templates import TemplateWorker
from controller.zero import ZeroWorker
from kybernate.core.requests.checkpoint import Pace
from kybernate.core.requests.turns import Limits
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.checkpoints.agents import Agents
    from controller.seen import Seen
    from kybernate.adapters.k8s import Api
    from kybernate.adapters.registry.client import Registry
    from kybernate.runtime.lead import Fence
    from kybernate.settings.controller import ControllerSettings

    Runs = dict[str, Callable[[threading.Event], None]]

_POLICY_THREADS = 2
_RESTORE_THREADS = 4


@dataclass(frozen=True, slots=True)
class Tools:
    """What the workers act with, and the fence that says whether they may. `registry` gives a
    client by the certificates of now; None where there is no registry."""

    api: Api
    cluster: Cluster
    agents: Agents
    registry: Callable[[], Registry] | None
    fence: Fence


def workers(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    """All of them, by their threads' names."""
    return {
        **_checkpoints(settings, seen, tools),
        **_policies(seen, tools),
        **_templates(settings, seen, tools),
        **_restores(seen, tools),
        **_rebalances(settings, seen, tools),
        **_preempts(settings, seen, tools),
        **_placements(settings, seen, tools),
        **_projection(settings, seen, tools),
        **_zero(seen, tools),
    }


def _checkpoints(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    """Those who carry out CheckpointRequests, and make those for lost pods."""
    requests, cluster, fence = seen.checkpoints, tools.cluster, tools.fence
    remains = Remains(cluster, tools.registry)
    worker = Worker(
        *(seen.due["checkpoint"], requests, cluster, tools.agents, seen.lost, remains, fence),
        snapshots=settings.snapshots_at_once,
        limits=_limits(settings),
        governing=seen.policies.limiting,
    )
    lost = LostWorker(seen.due["lost"], seen.lost, requests, cluster, fence)
    sweep = Sweep(
        *(requests, seen.nodes, tools.agents, fence, settings.sweep_s), seen.placements.wanted
    )
    found = {f"worker-{number}": worker.run for number in range(settings.threads)}
    return {**found, "sweep": sweep.run, "lost": lost.run}


def _policies(seen: Seen, tools: Tools) -> Runs:
    worker = PolicyWorker(
        *(seen.due["policy"], seen.policies, seen.checkpoints),
        Balances(seen.rebalances, seen.nodes, tools.cluster, tools.fence),
        *(tools.cluster, tools.agents, tools.fence),
    )
    return {f"policies-{number}": worker.run for number in range(_POLICY_THREADS)}


def _templates(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    worker = TemplateWorker(
        *(seen.due["template"], seen.templates, seen.checkpoints, seen.nodes, tools.cluster),
        *(tools.agents, tools.fence, settings.sidecar_image),
    )
    return {f"templates-{number}": worker.run for number in range(_POLICY_THREADS)}


def _restores(seen: Seen, tools: Tools) -> Runs:
    known = seen.artifacts, tools.registry, seen.grants.all
    sources = Sources(*known, seen.templates.get)
    worker = RestoreWorker(seen.due["restore"], seen.restores, tools.cluster, sources, tools.fence)
    return {f"restores-{number}": worker.run for number in range(_RESTORE_THREADS)}


def _rebalances(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    standing, requests, due = settings.plans_standing, seen.rebalances, seen.due
    worker = RebalanceWorker(
        *(due["rebalance"], requests, seen.checkpoints, seen.pods, due["plan"]),
        *(tools.cluster, tools.fence),
        standing=standing,
        withdrawn=seen.policies.moves,
    )
    plans = PlanWorker(
        *(due["plan"], due["rebalance"], requests, worker),
        *(Planner(settings.extender, settings.tls_dir), tools.cluster, tools.fence),
        standing=standing,
    )
    found = {f"rebalances-{number}": worker.run for number in range(_POLICY_THREADS)}
    tidy = partial(worker.keep_tidy, settings.sweep_s)
    return {**found, "plans": plans.run, "rebalances-tidy": tidy}


def _preempts(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    worker = PreemptWorker(
        *(seen.due["pod"], seen.waiters, seen.checkpoints, seen.pods),
        *(Victims(settings.extender, settings.tls_dir), tools.cluster, tools.fence),
        patience=settings.preempt_after_s,
        limits=_limits(settings),
    )
    found = {f"preempts-{number}": worker.run for number in range(_POLICY_THREADS)}
    return {**found, "preempts-tidy": worker.keep_tidy}


def _placements(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    worker = PlacementWorker(
        *(seen.due["placement"], seen.placements, seen.artifacts, seen.nodes),
        *(tools.registry, tools.cluster, tools.agents, tools.fence),
        percent=settings.pins_nvme_percent,
    )
    return {f"placements-{number}": worker.run for number in range(_POLICY_THREADS)}


def _projection(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    """Shows artifacts as objects, where there is a registry that knows them."""
    if tools.registry is None:
        return {}
    shown = Projection(
        *(tools.api, seen.artifacts, tools.registry),
        partial(describing, seen.checkpoints, seen.policies),
        tools.fence,
        timeout=settings.api_timeout_s,
        every=settings.artifacts_s,
        each=settings.artifacts_shown,
    )
    return {"artifacts": shown.run}


def _zero(seen: Seen, tools: Tools) -> Runs:
    worker = ZeroWorker(
        *(seen.due["namespace"], seen.policies, seen.checkpoints, seen.nodes),
        *(tools.cluster, tools.fence),
    )
    return {"zero": worker.run}


def _limits(settings: ControllerSettings) -> Limits:
    pace = Pace(settings.evict_s_per_gib, settings.evict_idle_s)
    return Limits(settings.evictions_of_node, settings.evictions_at_once, pace)
