"""Start the extender."""

from __future__ import annotations

import socket
import time
import uuid
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from extender import metrics
from extender.bind.binder import Binder
from extender.bind.cluster import ApiCluster
from extender.bind.consulted import Consulted
from extender.bind.events import ApiWrites, Events
from extender.bind.requeue import Nudge, Requeue, Waiting
from extender.gangs.gangs import Gangs
from extender.gangs.planner import GangPlanner, Means
from extender.gangs.rendezvous import Rendezvous
from extender.http.app import Verbs, create_app, refuse_caller
from extender.http.server import make_server
from extender.lead.endpoints import Endpoint
from extender.lead.schedulerlease import SchedulerLease
from extender.pages.defrag import Defragmenter
from extender.pages.explain import Explainer
from extender.pages.pages import register, register_whole
from extender.pages.preempting import Preemption
from extender.state.evicted import Evicted
from extender.state.learner import Learner
from extender.state.nodes import Nodes, NodeWatch, gpu_node_reader
from extender.state.objects import Rules
from extender.state.policies import Policies
from extender.state.snapshot import Snapshot
from extender.state.watches import Watches
from kybernate.adapters.k8s import Api
from kybernate.api.events import stamp
from kybernate.core.ledger.sharing import parse_sharing
from kybernate.core.placement import Choosing, Table, candidates, parse_policies, parse_weights
from kybernate.errors import ConfigError
from kybernate.runtime.background import Background
from kybernate.runtime.lead import Leader, Leases, Open, Terms
from kybernate.runtime.load import command
from kybernate.runtime.serve import ProbeServer, configure_logging
from kybernate.settings.common import host_port
from kybernate.settings.extender import ExtenderSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flask import Flask

    from kybernate.adapters.k8s import Watcher
    from kybernate.core.placement import Demand
    from kybernate.runtime.lead import Fence
    from kybernate.types import NodeName


def run(settings: ExtenderSettings) -> None:
    """Wire the parts and serve until SIGTERM."""
    configure_logging(settings.log_level)
    api, table, rules = _checked(settings)
    snapshot = Snapshot(time.monotonic, settings.reserve_bytes, table, rules)
    nodes = Nodes(snapshot.node_event, gpu_node_reader(api, settings.api_timeout_s))
    node_watch = NodeWatch(api, nodes)
    gangs: Gangs
    # It needs the fence, which needs the watches; these are started when all are made.
    hear = lambda kind, pod: gangs.pod_event(kind, pod)  # noqa: E731, PLW0108 - not made yet
    watches = Watches(api, snapshot, nodes.gpu_node_event, hear)
    cluster = ApiCluster(api, settings.api_timeout_s)
    fence, leader = _fence(settings, api, watches)
    evicted = Evicted(api, snapshot, settings.api_timeout_s)
    nudge = Nudge(api, settings.api_timeout_s)
    gangs, planner, events = _gangs(settings, api, snapshot, fence, nudge)
    policies = Policies(api)
    preemption = Preemption(snapshot, cluster, expendable=policies.expendable)
    consulted = Consulted(
        *(gangs.narrow, gangs.admit, evicted.claim, evicted.target),
        *(preemption.veto, evicted.kept_from, preemption.heard),
    )
    binder = Binder(
        *(snapshot, cluster, _now, settings.reservation_s, fence, consulted),
        places=settings.threads,
    )
    closed = _either(watches.not_ready, node_watch.not_ready, gangs.not_ready, fence.closed)
    waiting = Waiting(snapshot.follow(), _fitting(snapshot), snapshot.pod)
    verbs = Verbs(snapshot, binder, consulted, waiting.rejected, settings.most_offered)
    app = create_app(verbs, closed, refuse_caller, settings.max_body_bytes)
    explainer = Explainer(snapshot, cluster, gangs, events, fence)
    pages = {
        "preemption": preemption.page,
        "explain": explainer.page,
        "defrag": Defragmenter(snapshot, cluster).page,
    }
    register(app, pages, closed, refuse_caller)
    register_whole(app, "dump", lambda: snapshot.dump(_now()), closed, refuse_caller)
    probes = _probes(settings, watches)
    threads = Background(
        gangs=partial(planner.run, closed),
        events=events.run,
        requeue=Requeue(waiting, nudge, closed).run,
        nodes=node_watch.run,
        explain=partial(explainer.run, closed),
        learn=partial(Learner(snapshot).run, closed),
    )

    every = (watches, evicted.requests.watch, policies.watch)
    try:
        server = make_server(
            settings,
            _serving(app, probes, every, leader, threads),
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    server.run()


@contextmanager
def _serving(
    app: Flask,
    probes: ProbeServer,
    watches: Iterable[Watches | Watcher],
    leader: Leader | None,
    threads: Background,
) -> Iterator[Flask]:
    """The application, with what runs beside its calls; what was started first ends last."""
    with ExitStack() as stack:
        probes.start()
        stack.callback(probes.stop)
        for watch in watches:
            watch.start()
            stack.callback(watch.stop)
        if leader is not None:
            leader.start()
            stack.callback(leader.stop)
        threads.start()
        stack.callback(threads.stop)
        yield app


def _checked(settings: ExtenderSettings) -> tuple[Api, Table, Rules]:
    """What is made of settings that can be wrong in ways that their types don't see."""
    try:
        table = Table(settings.policy, parse_weights(settings.weights, "weights"))
        rules = Rules(parse_sharing(settings.sharing), settings.hot_apart, _choosing(settings))
        return Api(settings.kubeconfig, "kyb-extender"), table, rules
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def _choosing(settings: ExtenderSettings) -> Choosing:
    """Who is placed by which policy. Raises ConfigError."""
    return Choosing(
        parse_policies(settings.namespace_policies, "namespace_policies"),
        parse_policies(settings.profile_policies, "profile_policies"),
    )


def _probes(settings: ExtenderSettings, watches: Watches) -> ProbeServer:
    return ProbeServer(*host_port(settings.probe_listen), watches.not_ready)


def _fence(settings: ExtenderSettings, api: Api, watches: Watches) -> tuple[Fence, Leader | None]:
    """What decides whether this replica may bind, and the thread that it takes."""
    timeout, host = settings.api_timeout_s, socket.gethostname()
    leases = Leases(api, timeout)
    if settings.scheduler_lease:
        beside = SchedulerLease(leases, settings.scheduler_lease, host, watches, 2 * timeout)
        return beside, None
    if not settings.lease:
        return Open(), None
    # A worker that gunicorn starts again continues as the same candidate: the one before is dead.
    identity = f"{host}_{uuid.uuid4()}"
    announce = Endpoint(api, settings.advertise, timeout).publish if settings.advertise else None
    leader = Leader(
        *(leases, settings.lease, identity, Terms(settings.lease_s, timeout), watches),
        announce=announce,
    )
    metrics.LEADING.set_function(lambda: leader.closed() is None)
    return leader, leader


def _gangs(
    settings: ExtenderSettings, api: Api, snapshot: Snapshot, fence: Fence, nudge: Nudge
) -> tuple[Gangs, GangPlanner, Events]:
    """What knows gangs, what plans them, and what tells of them."""
    writes = ApiWrites(api, settings.api_timeout_s)
    events = Events(writes.event, time.monotonic, time.time)
    meeting = Rendezvous(time.monotonic, settings.gang_wait_s)
    means = Means(
        snapshot=snapshot,
        pods=writes,
        fence=fence,
        meeting=meeting,
        clock=time.monotonic,
        wall=time.time,
        tell=events.tell,
        nudge=nudge,
        hold_s=settings.gang_hold_s,
    )
    gangs = Gangs(snapshot, meeting, time.time)
    return gangs, GangPlanner(gangs, means), events


def _fitting(snapshot: Snapshot) -> Callable[[Demand, set[NodeName]], set[NodeName]]:
    """Which of the nodes can take a demand now."""

    def fitting(demand: Demand, names: set[NodeName]) -> set[NodeName]:
        views = snapshot.views(names)
        return {name for name, view in views.items() if view and candidates(view, demand).groups}

    return fitting


def _either(*reasons: Callable[[], str | None]) -> Callable[[], str | None]:
    """The first reason that there is."""
    return lambda: next((found for reason in reasons if (found := reason())), None)


def _now() -> str:
    return stamp(time.time())


main = command(ExtenderSettings, "KYB_EXTENDER", run, "Serve the kube-scheduler's extender calls.")

if __name__ == "__main__":
    main()
