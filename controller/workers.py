"""The controller's threads: for each kind of object those who carry out what is due of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controller.balances import Balances
from controller.base.worker import RequestWorker, Shift
from controller.checkpoints.agents import Sweep
from controller.checkpoints.lost import LostWorker, Remains
from controller.checkpoints.worker import CheckpointCarrier
from controller.placements import PlacementWorker
from controller.policies import PolicyWorker
from controller.preempts import PreemptWorker, Victims
from controller.rebalances import PlanCarrier, Planner, RebalanceCarrier
from controller.restoring.artifacts import Projection, describing
from controller.restoring.restores import RestoreCarrier, Sources
from controller.templates import TemplateWorker
from controller.zero import ZeroWorker
from kybernate.core.requests.checkpoint import Pace
from kybernate.core.requests.turns import Limits
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.base.queue import Queue
    from controller.base.worker import Work
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
    due = seen.due["checkpoint"]
    carrier = CheckpointCarrier(
        *(due, requests, cluster, tools.agents, seen.lost, remains, fence),
        snapshots=settings.snapshots_at_once,
        limits=_limits(settings),
        governing=seen.policies.limiting,
    )
    worker = RequestWorker(carrier, due, requests, cluster, fence)
    lost = LostWorker(seen.due["lost"], seen.lost, requests, cluster, fence)
    sweep = Sweep(
        *(requests, seen.nodes, tools.agents, fence, settings.sweep_s), seen.placements.wanted
    )
    found = _shifts("worker", settings.threads, worker, due, tools)
    return {
        **found,
        "sweep": sweep.run,
        "lost": Shift(lost, seen.due["lost"], fence).run,
    }


def _policies(seen: Seen, tools: Tools) -> Runs:
    due = seen.due["policy"]
    worker = PolicyWorker(
        *(due, seen.policies, seen.checkpoints),
        Balances(seen.rebalances, seen.nodes, tools.cluster, tools.fence),
        *(tools.cluster, tools.agents, tools.fence),
    )
    return _shifts("policies", _POLICY_THREADS, worker, due, tools)


def _templates(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    due = seen.due["template"]
    worker = TemplateWorker(
        *(due, seen.templates, seen.checkpoints, seen.nodes, tools.cluster),
        *(tools.agents, tools.fence, settings.sidecar_image),
    )
    return _shifts("templates", _POLICY_THREADS, worker, due, tools)


def _restores(seen: Seen, tools: Tools) -> Runs:
    known = seen.artifacts, tools.registry, seen.grants.all
    sources = Sources(*known, seen.templates.get)
    carrier, due = RestoreCarrier(tools.cluster, sources, tools.fence), seen.due["restore"]
    worker = RequestWorker(carrier, due, seen.restores, tools.cluster, tools.fence)
    return _shifts("restores", _RESTORE_THREADS, worker, due, tools)


def _rebalances(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    standing, requests, due = settings.plans_standing, seen.rebalances, seen.due
    carrier = RebalanceCarrier(
        *(requests, seen.checkpoints, seen.pods, due["plan"]),
        *(tools.cluster, tools.fence),
        standing=standing,
        withdrawn=seen.policies.moves,
    )
    planner = Planner(settings.extender, settings.tls_dir)
    planning = PlanCarrier(carrier, planner, standing=standing)
    with_ = due["rebalance"], requests, tools.cluster, tools.fence
    worker, plans = RequestWorker(carrier, *with_), RequestWorker(planning, *with_)
    return {
        **_shifts("rebalances", _POLICY_THREADS, worker, due["rebalance"], tools),
        "plans": Shift(plans, due["plan"], tools.fence).run,
        "rebalances-tidy": partial(carrier.keep_tidy, settings.sweep_s),
    }


def _preempts(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    due = seen.due["pod"]
    worker = PreemptWorker(
        *(due, seen.waiters, seen.checkpoints, seen.pods),
        *(Victims(settings.extender, settings.tls_dir), tools.cluster, tools.fence),
        patience=settings.preempt_after_s,
        limits=_limits(settings),
    )
    found = _shifts("preempts", _POLICY_THREADS, worker, due, tools)
    return {**found, "preempts-tidy": worker.keep_tidy}


def _placements(settings: ControllerSettings, seen: Seen, tools: Tools) -> Runs:
    due = seen.due["placement"]
    worker = PlacementWorker(
        *(due, seen.placements, seen.artifacts, seen.nodes),
        *(tools.registry, tools.cluster, tools.agents, tools.fence),
        percent=settings.pins_nvme_percent,
    )
    return _shifts("placements", _POLICY_THREADS, worker, due, tools)


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
    due = seen.due["namespace"]
    worker = ZeroWorker(
        *(due, seen.policies, seen.checkpoints, seen.nodes),
        *(tools.cluster, tools.fence),
    )
    return {"zero": Shift(worker, due, tools.fence).run}


def _shifts(name: str, number: int, work: Work, due: Queue, tools: Tools) -> Runs:
    """So many threads that do it."""
    shift = Shift(work, due, tools.fence)
    return {f"{name}-{one}": shift.run for one in range(number)}


def _limits(settings: ControllerSettings) -> Limits:
    pace = Pace(settings.evict_s_per_gib, settings.evict_idle_s)
    return Limits(settings.evictions_of_node, settings.evictions_at_once, pace)
