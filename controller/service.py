"""The controller as a process: watches, workers, the sweep, and who of several replicas acts."""

from __future__ import annotations

import socket
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from controller import metrics
from controller.base.cluster import Cluster
from controller.checkpoints.agents import Agents
from controller.seen import Seen, of_artifacts, of_nodes, of_people
from controller.shares import Shares
from controller.workers import Tools, workers
from kybernate.adapters.k8s import Api
from kybernate.adapters.registry.client import Registry
from kybernate.core.requests.placement import CopyState, PlacementReason
from kybernate.core.requests.template import TemplateReason
from kybernate.errors import ConfigError
from kybernate.runtime.background import Background
from kybernate.runtime.lead import Leader, Leases, Terms
from kybernate.runtime.listed import IfServed
from kybernate.runtime.revocations import Revocations
from kybernate.runtime.serve import ProbeServer
from kybernate.settings.common import host_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.known import Requests
    from kybernate.runtime.lead import Fence
    from kybernate.settings.controller import ControllerSettings


class Service:
    """Raises ConfigError if its credentials can't be read."""

    def __init__(self, settings: ControllerSettings) -> None:
        _check(settings)
        self._api = Api(settings.kubeconfig, "kyb-controller")
        self._seen = Seen(settings.snapshots_at_once)
        # Of our kinds; of those that only a later release's config/ brings there are none.
        self._ours = IfServed(self._api)
        self._revocations = Revocations(self._revoked)
        self._node_watch = of_nodes(self._seen, self._ours)
        self._watches = (self._node_watch, *of_people(self._seen, self._ours, self._api))
        if settings.registry_url:
            self._watches += (of_artifacts(self._seen, self._ours),)
        self._leader, fence = self._lead(settings)
        tools = self._tools(settings, fence)
        self._agents, cluster = tools.agents, tools.cluster
        pods = self._seen.policies.pods
        self._shares = Shares(self._seen.nodes, pods, self._why_not, cluster, fence)
        runs = workers(settings, self._seen, tools)
        self._threads = Background(**runs, shares=self._shares.run)
        self._probes = ProbeServer(*host_port(settings.probe_listen), self.not_ready)
        self._measured(fence)

    def _tools(self, settings: ControllerSettings, fence: Fence) -> Tools:
        agents = Agents(
            settings.tls_dir,
            settings.agent_timeout_s,
            self._seen.nodes.address,
            self._why_not,
            shared=settings.shared_agent_keys,
        )
        cluster = Cluster(self._api, settings.api_timeout_s)
        return Tools(self._api, cluster, agents, _registry(settings), fence)

    def start(self) -> None:
        """Start everything."""
        self._probes.start()
        self._revocations.start(self._api)
        self._seen.grants.start(self._ours)
        self._shares.seen.start(self._ours)
        for watch in self._watches:
            watch.start()
        if self._leader is not None:
            self._leader.start()
        self._threads.start()

    def stop(self) -> None:
        """Stop everything; what is being done ends first, then the lease is given back."""
        for one in self._seen.due.values():
            one.close()
        self._threads.stop()
        if self._leader is not None:
            self._leader.stop()
        for watch in self._watches:
            watch.stop()
        self._seen.grants.stop()
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

    def _measured(self, fence: Fence) -> None:
        metrics.LEADING.set_function(lambda: fence.closed() is None)
        metrics.MISSING.set_function(lambda: self._ours.missing)
        for kind, queue in self._seen.due.items():
            metrics.QUEUED.labels(kind).set_function(partial(len, queue))
        requests: dict[str, Requests[Any]] = {
            "checkpoint": self._seen.checkpoints,
            "restore": self._seen.restores,
            "rebalance": self._seen.rebalances,
        }
        for kind, known in requests.items():
            metrics.OPEN.labels(kind).set_function(partial(_open, known))
        for reason in TemplateReason:
            number = partial(self._seen.templates.number, reason)
            metrics.TEMPLATES.labels(reason.value).set_function(number)
        for why in PlacementReason:
            counted = partial(self._seen.placements.number, why)
            metrics.PLACEMENTS.labels(why.value).set_function(counted)
        for state in CopyState:
            metrics.COPIES.labels(state.value).set_function(
                partial(self._seen.placements.copies, state)
            )
        metrics.ARTIFACTS.set_function(lambda: len(self._seen.artifacts.all()))

    def _why_not(self, node: str) -> str:
        found = self._revocations.of(node)
        return f"node {node} is revoked" if found is not None and found.revoked else ""

    def _revoked(self, nodes: frozenset[str]) -> None:
        self._agents.disconnect(nodes)


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
