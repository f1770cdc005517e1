"""The proxy's parts, wired: HTTP in front, agents behind, the watch that finds them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kybernate import keys
from kybernate.adapters.k8s import Api, Watcher
from kybernate.adapters.registry.client import Registry
from kybernate.errors import ConfigError
from kybernate.runtime.revocations import Revocations
from kybernate.settings.common import host_port
from proxy.actions import Limits
from proxy.admission import Admission
from proxy.agents import Agents
from proxy.app import Front
from proxy.aside.asleep import Asleep
from proxy.aside.records import Records, Words
from proxy.clients import Clients
from proxy.desk import Desk
from proxy.metrics import Metrics
from proxy.page.board import Board
from proxy.page.shape import Scene
from proxy.relay.pickers import Pickers
from proxy.relay.pools import Pools
from proxy.relay.visits import Visits, traces

if TYPE_CHECKING:
    from kybernate.settings.proxy import ProxySettings
    from proxy.actions import Verify

log = logging.getLogger(__name__)


class Service:
    """One proxy. Create it on a running event loop."""

    def __init__(self, settings: ProxySettings) -> None:
        self.port = 0
        """Where it listens, once started."""
        self._settings = settings
        self._stopping = False
        self._pools = Pools(settings)
        limits = Limits(
            settings.wait_limit_s,
            settings.max_waiting_per_model,
            settings.lease_break_s,
            settings.first_namespaces,
            settings.name_memory_s,
            settings.max_held_bytes,
            settings.client_bytes,
            settings.wakes_per_minute_per_client,
            settings.wakes_per_minute_per_namespace,
            settings.max_in_flight_per_seat,
            registry=bool(settings.registry_url),
        )
        self._admission = Admission(limits)
        cluster = Scene("cluster", commands=True)
        board = Board(self._admission, lambda: cluster)
        self._desk = Desk(self._admission, self._pools, board, self._rouse, self._verify)
        self._agents = Agents(self._desk, settings)
        self._watcher: Watcher | None = None
        self._asleep: Asleep | None = None
        self._pickers = Pickers(self._desk, settings.pickers)
        self._clients = Clients(settings)
        metrics = Metrics(self._admission)
        self._records = _records(settings, metrics)
        self._words = Words(self._records, self._desk) if self._records else None
        self._traces = traces(wanted=settings.traces)
        # A key of ours is for us; where certificates alone count, the header is the seat's.
        ours = {"authorization"} if settings.auth in ("keys", "either") else set()
        visits = Visits(self._desk, self._pools, metrics, settings, ours, self._traces)
        front = Front(self._desk, visits, metrics, settings, self._clients, board, self.not_ready)
        self._runner = web.AppRunner(
            front.application(),
            handler_cancellation=True,
            access_log=None,
            # Also what a client has for a request's headers: its clock runs till they are here.
            keepalive_timeout=settings.idle_client_s,
            shutdown_timeout=settings.shutdown_limit_s,
        )

    async def start(self) -> None:
        """Connect to agents and listen. Raises ConfigError if a setting can't be used."""
        for name in ("ca.crt", "proxy.crt", "proxy.key"):
            if not (self._settings.tls_dir / name).is_file():
                raise ConfigError("tls_dir", f"{self._settings.tls_dir}/{name} doesn't exist")
        self._clients.start()
        if self._words is not None:
            self._words.start()
        self._find_agents()
        self._pickers.start()
        await self._runner.setup()
        host, port = host_port(self._settings.listen)
        site = web.TCPSite(self._runner, host, port, ssl_context=self._clients.ssl_context)
        await site.start()
        self.port = self._runner.addresses[0][1]
        log.info("listening on %s:%d", host, self.port)

    async def stop(self) -> None:
        """Accept nothing new, let requests finish, give the leases back, then end the streams."""
        self._stopping = True
        self._desk.end_within(self._settings.shutdown_limit_s)
        await self._pickers.stop()
        await self._runner.cleanup()
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.stop)
            await asyncio.to_thread(self._revocations.stop)
        if self._asleep is not None:
            await self._asleep.stop()
        await self._clients.stop()
        await self._agents.stop()
        if self._words is not None:
            await self._words.stop()
        await self._pools.close()
        await asyncio.to_thread(self._traces.close)

    def not_ready(self) -> str | None:
        """Why requests can't be served now, or None."""
        if self._stopping:
            return "shutting down"
        if self._watcher is not None and not self._watcher.synced.is_set():
            return self._watcher.last_error or "the GPUNodes are not listed yet"
        return self._agents.not_ready()

    def _rouse(self, model: str) -> None:
        if self._asleep is not None:
            self._asleep.rouse(model)

    def _verify(self, said: Verify) -> None:
        if self._words is not None:
            self._words.verify(said)

    def _find_agents(self) -> None:
        for node, address in self._settings.agents.items():
            self._agents.set(node, address)
        if self._settings.agents:
            return
        loop = asyncio.get_running_loop()

        def on_event(kind: str, item: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(self._agents.on_node, kind, item)

        def revoked(nodes: frozenset[str]) -> None:
            loop.call_soon_threadsafe(self._agents.revoked, nodes)

        api = Api(self._settings.kubeconfig, "kyb-proxy")
        self._revocations = Revocations(revoked)
        self._revocations.start(api)
        self._watcher = Watcher(api, keys.GPU_NODES_PATH, {}, on_event, "gpunodes")
        self._watcher.start()
        self._asleep = Asleep(api, self._desk, self._records)
        self._asleep.start()


def _records(settings: ProxySettings, metrics: Metrics) -> Records | None:
    """What asks the registry; None where there is none."""

    def open_registry() -> Registry:
        return Registry(settings.registry_url, settings.tls_dir, "proxy")

    def failed(what: str) -> None:
        metrics.unanswered.labels(what).inc()

    return Records(open_registry, failed) if settings.registry_url else None
