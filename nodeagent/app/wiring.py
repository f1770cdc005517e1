"""The agent put together: ports to adapters, servers, watch, publishing."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kybernate import keys
from kybernate.adapters.arrivals import SocketArrivals
from kybernate.adapters.container.cdi import CdiSpecs
from kybernate.adapters.container.cri import CriImages
from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.container.podresources import KubeletPodResources
from kybernate.adapters.container.seatsocket import SeatSockets
from kybernate.adapters.devices import device_door
from kybernate.adapters.files.journal import FileJournal
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.adapters.kernel.memory import KernelMemory
from kybernate.adapters.kernel.pidfds import Pidfds
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.adapters.nvml import Nvml
from kybernate.api import pods
from kybernate.core.seat.operations import Kind
from kybernate.errors import ConfigError, DeadlineError, KybernateError, RetryableError
from kybernate.lib.retry import Pauses, retry
from kybernate.runtime.artifacts import Placements, SnapshotTemplates
from kybernate.runtime.grants import ArtifactGrants
from kybernate.runtime.identity import Identity
from kybernate.runtime.policies import CheckpointPolicies, Shares
from kybernate.runtime.revocations import Revocations
from nodeagent.api.doorkeeper import Doorkeeper, Rates
from nodeagent.api.guests import Guests
from nodeagent.api.prepare import Preparer
from nodeagent.api.runtimedoor import RuntimeDoor
from nodeagent.api.runtimemarks import Imaging, Marks
from nodeagent.api.servers import serve_network, serve_node
from nodeagent.api.service import NodeApi, Parts
from nodeagent.api.streams import Streams
from nodeagent.api.teller import Teller
from nodeagent.app.install import install_kyb_init, kyb_inits
from nodeagent.app.loop import Loop
from nodeagent.app.makeregistry import with_registry
from nodeagent.app.recover import recover
from nodeagent.app.recoveroffload import clear_of_the_gone
from nodeagent.artifacts.succession import outlast_boot
from nodeagent.guard.announce import Roster
from nodeagent.guard.outside import Outside
from nodeagent.guard.warden import Warden
from nodeagent.kube.activity import Activity
from nodeagent.kube.attendance import Attendance
from nodeagent.kube.podreader import PodReader
from nodeagent.kube.pods import PodCache, read_pod
from nodeagent.kube.publish import Publisher
from nodeagent.kube.replacement import Replacements
from nodeagent.kube.resizes import Resizes
from nodeagent.migration.spot import SpotWatch
from nodeagent.offload.arrivals import Arriving, GuardedFreezer
from nodeagent.operations.operations import Operations
from nodeagent.operations.placing import Placing
from nodeagent.seat.changes import Changes
from nodeagent.seat.leases import Leases
from nodeagent.seat.node import Node, World
from nodeagent.seat.quotas import Quotas
from nodeagent.seat.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import grpc

    from kybernate.adapters.cuda.driver import CudaHelpers
    from kybernate.adapters.k8s import Api, Watcher
    from kybernate.ports import Freezer, Images, Inits, Journal
    from kybernate.settings.agent import AgentSettings
    from nodeagent.api.peersapi import PeersApi
    from nodeagent.app.spans import Spans
    from nodeagent.seat.node import Inventory
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

T = TypeVar("T")

_PARK_SHARE = 0.9
_COLLECT_AFTER = 2.0
_ADOPT_AGAIN = Pauses(0.5, 8.0)
_SEATS_FIRST = 1.0
_POLICIES_S = 5.0
_SHARES_S = 0.2
"""Seconds for which Shares that follow are waited for."""
_SHARED = 10
"""How many peers' calls the node's socket takes: all who use it count as one."""


class Agent:
    """One agent. `helpers` are started by the caller, before all else, for their slow import;
    `journal` is `file_journal`'s, unless another is given."""

    def __init__(
        self, settings: AgentSettings, helpers: CudaHelpers, journal: Journal | None = None
    ) -> None:
        self._settings = settings
        self._images = CriImages(settings.cri_socket)
        journal = journal or file_journal(settings)
        cgroups = CgroupFreezer()
        arrivals = SocketArrivals(cgroups.pids)
        freezer = GuardedFreezer(cgroups, arrivals)
        self._grants, self._placements = ArtifactGrants(), Placements()
        self._templates, self._policies = (
            SnapshotTemplates(),
            CheckpointPolicies(self._policies_changed),
        )
        inits = KernelInits(kyb_inits(settings))
        own = settings.state_dir / "identity" if settings.own_key else None
        shared = settings.shared_agent_keys
        self._identity = Identity(settings.node, settings.tls_dir, own, shared=shared)
        offloading = self._offloading(freezer, inits)
        marks, procs = Marks(settings.run_dir / "containers"), Procfs()
        imaging = Imaging(marks, cgroups, procs, procs)
        world = _world(settings, helpers, self._images, journal, freezer, inits, offloading)
        world = replace(
            world,
            imaging=imaging,
            templates=self._templates.artifact,
            pinned=self._placements.pinned,
            resizing=self._resizing(),
        )
        self._revocations = Revocations(self._revoked)
        self._guests = Guests(self._revocations, time.time, shared=shared)
        self.world, reports = with_registry(world, settings, self._identity)
        leases, budget = Leases(settings.lease_break_s), settings.park_bytes or _host_memory()
        self.node = Node(settings, self.world, leases, park_budget=budget)
        self.loop = Loop(self.node, reports, KernelMemory())
        operators = self.loop.operators
        self.streams = Streams(self.loop.proxies, self.loop.offload.departures)
        self.arriving = Arriving(self.loop.proxies, operators, arrivals, freezer)
        self.node.observe(Teller(self.world.doors), self.arriving)
        self.runtime = RuntimeDoor(
            self.loop, self.loop.doors.on_lost, marks, imaging, procs, settings.run_dir
        )
        self.operations = Operations(
            *(operators, self.loop.offload, self.loop.life, self.loop.policy),
            self._tell_node,
        )
        self.changes = Changes()
        self.usage, self.activity = Usage(self.node), Activity(self.node)
        self.quotas = Quotas(self.node, self.usage, self.loop.kick)
        self._shares, self._shares_due = Shares(self._shares_changed), False
        self._roster = Roster()
        self._pods_known = self._recovered = False
        self._api: asyncio.Task[Api] | None = None
        self._serving = asyncio.Event()
        self._watcher: Watcher | None = None
        self._servers: list[grpc.aio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _inventory(self) -> Inventory | None:
        return self.node.inventory

    def _revoked(self, nodes: frozenset[str]) -> None:
        for tell in self._guests.left:
            self._running.call_soon_threadsafe(tell, nodes)

    def _policies_changed(self) -> None:
        self._running.call_soon_threadsafe(self._cache.outdated)

    def _shares_changed(self) -> None:
        """Told of each by itself, also of all that are listed at once."""
        if not self._shares_due:
            self._shares_due = True
            later = self._running.call_later
            self._running.call_soon_threadsafe(later, _SHARES_S, self._take_shares)

    def _take_shares(self) -> None:
        self._shares_due = False
        self.quotas.set_shares(self._shares.all(), listed=self._shares.unlisted is None)

    def _tell_node(self, kind: str, reason: str, sentence: str) -> None:
        self._publisher.told_node(kind, reason, sentence)

    def _seats(self) -> tuple[Seat, ...]:
        """Any thread may ask."""
        return tuple(self.node.seats.values())

    def _offloading(self, freezer: GuardedFreezer, inits: Inits) -> Offloading | None:
        if self._settings.criu is None:
            return None
        from nodeagent.app.makeoffload import make_offload  # noqa: PLC0415 - slow, only where it is used

        given = self._settings, freezer, inits, self._inventory, self._images
        return make_offload(*given, self._grants.all, self._identity, seats=self._seats)

    def _resizing(self) -> Resizes | None:
        wait = self._settings.resize_wait_s
        return Resizes(self._get_api, wait) if wait else None

    def not_ready(self) -> str | None:
        """Why the agent can't do its work, as a sentence, or None. Any thread may ask."""
        if not self._recovered:
            return "the journal is being read"
        watcher = self._watcher
        if watcher is None or not watcher.synced.is_set():
            return "the pods of this node have not been listed yet"
        return watcher.last_error

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Seats stay as they are when it ends."""
        self._running = asyncio.get_running_loop()
        self._api = asyncio.create_task(self._connect())
        attendance = Attendance()
        told = self.loop.places.rows, self.operations.under_way
        publisher = Publisher(self.node, self._get_api, self._address(), attendance, *told)
        self._publisher = publisher
        self.operations.on_end(publisher.hurry)
        cache = PodCache(self.loop.pod_changed, self.loop.pod_gone, self._policies.judge)
        self._cache = cache
        preparer = self._preparer(cache, publisher)
        warden = self._warden(publisher)
        self.node.observe(self.streams, publisher, self.changes, self.operations)
        if self.world.resizing is not None:
            self.node.observe(self.world.resizing)
        records = await recover(self.loop)
        self.arriving.join()
        moving = self._moving(records)
        placing = self._placing()
        self.operations.resume(records)
        self.usage.resume(records)
        self.quotas.resume(records)
        self.activity.resume(records)
        self.node.observe(self.usage, self.activity)
        self.node.hear_demand(self.activity)
        self.node.hear_demand(self.streams)
        self._recovered = True
        await self._serve(preparer, publisher, attendance, moving)
        self._begin(
            publisher.run(),
            self.usage.run(),
            self.quotas.run(),
            self.activity.run(),
            self._watch(cache, preparer, publisher),
            cache.reviews(),
            self._collect(preparer),
            warden.run(),
            self.loop.watch_memory(),
            self.loop.reports.run(),
            self.loop.succession.run(),
            self._identity.run(self._get_api),
        )
        if placing is not None:
            self._begin(placing.run())
        if self._settings.spot:
            self._begin(self._spot_watch().run())
        await stop.wait()
        await self._end()

    def _placing(self) -> Placing | None:
        """What copies artifacts to where TierPlacements want them; None without tiers below RAM."""
        offloading, told = self.world.offloading, self.loop.reports
        if offloading is None:
            return None
        reports = told if self.world.registry is not None else None
        noted = self.operations.advanced
        placing = Placing(self.loop.offload, offloading.placed, self._placements, reports, noted)
        self.operations.carry(Kind.PLACE, placing)
        return placing

    def _spot_watch(self) -> SpotWatch:
        from kybernate.adapters.spot import CLOUDS  # noqa: PLC0415 - only where it is used

        notice, address = CLOUDS[self._settings.spot], self._settings.spot_address
        return SpotWatch(notice, address, _boot_id(), self.node, self.operations)

    def _warden(self, publisher: Publisher) -> Warden:
        outside = Outside(
            culprits=Procfs(),
            memory=KernelMemory(),
            deaths=Pidfds(),
            announcer=publisher,
            roster=self._roster,
            pods_known=lambda: self._pods_known,
        )
        return Warden(self.loop, outside)

    def _preparer(self, cache: PodCache, publisher: Publisher) -> Preparer:
        settings = self._settings
        kyb_init = install_kyb_init(settings.kyb_init, kyb_inits(settings))
        return Preparer(
            self.loop,
            cache,
            PodReader(
                self._get_api,
                functools.partial(read_pod, judge=self._policies.judge),
                publisher,
                blocking,
                self._images.sandboxes,
            ),
            kyb_init,
        )

    def _begin(self, *what: Awaitable[None]) -> None:
        for one in what:
            task = asyncio.ensure_future(_forever(one))
            self._tasks.append(task)

    async def _serve(
        self,
        preparer: Preparer,
        publisher: Publisher,
        attendance: Attendance,
        peers: PeersApi | None,
    ) -> None:
        settings, loop = self._settings, self.loop
        parts = Parts(
            loop,
            preparer,
            attendance,
            self.changes,
            self.streams,
            self.operations,
            publisher.touch,
        )
        api = NodeApi(parts)
        keeper = self._keeper(unix=False)
        network, _ = await serve_network(api, keeper, settings.listen, self._identity, peers)
        here = settings.run_dir / Path(keys.AGENT_SOCKET).name
        node = await serve_node(api, self._keeper(unix=True), here)
        self._servers += [network, node]
        await self.runtime.serve()
        self._serving.set()
        log.info("serving %d seats of %s", len(self.node.seats), settings.node)

    def _moving(self, records: Mapping[str, Mapping[str, object]]) -> PeersApi | None:
        """What answers other nodes' agents, if this one moves seats."""
        if self.world.offloading is None:
            return None
        from nodeagent.app.makemoves import make_moves  # noqa: PLC0415 - slow, only where it is used

        own = self._identity, self._guests
        return make_moves(self.loop, self.operations, self._get_api, records, *own)

    def _keeper(self, *, unix: bool) -> Doorkeeper:
        settings, times = self._settings, _SHARED if unix else 1
        rates = Rates(
            settings.api_calls_per_s * times, settings.api_burst * times, settings.api_streams
        )
        return Doorkeeper(rates, self.world.now, unix=unix, guests=self._guests)

    def _address(self) -> str:
        return self._settings.advertise or self._settings.listen

    # --- the API server -----------------------------------------------------------------------

    async def _get_api(self) -> Api:
        if self._api is None:
            raise RuntimeError("run() comes first")
        return await asyncio.shield(self._api)

    async def _connect(self) -> Api:
        """The client, whose import takes most of a second: seats that can be woken come first."""
        await self._serving.wait()
        if self.node.seats:
            await asyncio.sleep(_SEATS_FIRST)
        return await retry(
            lambda: asyncio.to_thread(_open_api, self._settings),
            lambda error: log.warning("no access to the API server: %s", error),
            on=ConfigError,
        )

    async def _watch(self, cache: PodCache, preparer: Preparer, publisher: Publisher) -> None:
        from kybernate.adapters.k8s import Watcher  # noqa: PLC0415 - not before serving

        api = await self._get_api()
        if self.world.offloading is not None:
            self._grants.start(api)
            self._templates.start(api)
            self._placements.start(api)
            self._revocations.start(api)
        self._policies.start(api)
        self._shares.start(api)
        # Before pods: none of them is what its annotations alone say, for a moment.
        await asyncio.to_thread(self._policies.settle, _POLICIES_S)
        known = frozenset(self.node.seats)
        running = asyncio.get_running_loop()

        succession = self.loop.succession
        failed = Replacements(publisher, succession.failed, succession.pod_ended)

        def post(kind: str, pod: dict[str, object]) -> None:
            running.call_soon_threadsafe(failed.event, kind, pod)
            running.call_soon_threadsafe(self._roster.event, kind, pod)
            running.call_soon_threadsafe(cache.event, kind, pod)

        params = {"fieldSelector": f"spec.nodeName={self._settings.node}"}
        self._watcher = Watcher(api, pods.PATH, params, post, "pods")
        self._watcher.start()
        await asyncio.to_thread(self._watcher.synced.wait)
        # Everything posted before `synced` is handled before this continues.
        await asyncio.sleep(0)
        succession.pods_known(failed.there)
        preparer.drop_vanished(known)
        await self._adopt(preparer)

    async def _adopt(self, preparer: Preparer) -> None:
        """Until all are found: a pod that isn't known uses GPUs that others may be given."""

        async def adopted() -> None:
            if not await preparer.adopt_pods():
                raise RetryableError("not all of them are known to the kubelet")

        def say(error: Exception) -> None:
            log.warning("pods without a record can't be looked for yet: %s", error)

        await retry(adopted, say, on=KybernateError, pauses=_ADOPT_AGAIN)
        self._pods_known = True
        await clear_of_the_gone(self.loop)

    async def _collect(self, preparer: Preparer) -> None:
        while True:
            await self.loop.device_freed.wait()
            self.loop.device_freed.clear()
            await asyncio.sleep(_COLLECT_AFTER)
            try:
                await preparer.collect()
            except KybernateError as error:
                log.info("CDI files are not cleaned up now: %s", error)
                self.loop.device_freed.set()

    async def _end(self) -> None:
        # First of all nothing is published any more: streams that end now say nothing of the node.
        for task in self._tasks:
            task.cancel()
        for server in self._servers:
            await server.stop(grace=0.2)
        self.runtime.close()
        await asyncio.to_thread(self._grants.stop)
        await asyncio.to_thread(self._templates.stop)
        await asyncio.to_thread(self._placements.stop)
        await asyncio.to_thread(self._policies.stop)
        await asyncio.to_thread(self._shares.stop)
        await asyncio.to_thread(self._revocations.stop)
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.stop)
        self.world.helpers.close()
        self.world.journal.close()


async def blocking(call: Callable[[], T], deadline: float) -> T:
    """Implements `node.Blocking` by a thread; a call beyond its deadline is left to itself."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(call), deadline)
    except TimeoutError as error:
        raise DeadlineError(f"no answer within {deadline:g} s") from error


def traced(node: Node, settings: AgentSettings) -> Spans | None:
    """Spans of what the node's seats go through from now on, if they are wanted. Raises ConfigError
    without their library."""
    if not settings.traces:
        return None
    try:
        from nodeagent.app.spans import Spans  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        reason = "spans are made by OpenTelemetry: pip install 'kybernate[traces]'"
        raise ConfigError("traces", reason) from error
    spans = Spans(node, settings.node)
    node.observe(spans)
    return spans


async def _forever(what: Awaitable[None]) -> None:
    try:
        await what
    except Exception:
        # The supervisor restarts an agent that is half dead; the seats live on.
        log.exception("a part of the agent ended unexpectedly")
        os._exit(1)


def file_journal(settings: AgentSettings) -> FileJournal:
    """The journal of the state folder; a boot ends what it says, but for whose seats it told."""
    path = settings.state_dir / "state" / "journal"
    return FileJournal(path, _boot_id(), outlasting=outlast_boot)


def _world(  # noqa: PLR0913, PLR0917 - each is made, or given, once
    settings: AgentSettings,
    helpers: CudaHelpers,
    images: Images,
    journal: Journal,
    freezer: Freezer,
    inits: Inits,
    offloading: Offloading | None,
) -> World:
    procs, nvml = Procfs(), Nvml(renews=True)
    kubelet = settings.kubelet_dir / "pod-resources" / "kubelet.sock"
    return World(
        gpus=nvml,
        helpers=helpers,
        freezer=freezer,
        procs=procs,
        doors=SeatSockets(settings.run_dir / "seats", procs, inits),
        specs=CdiSpecs(settings.cdi_dir, links=settings.run_dir / "ids", door=device_door()),
        pod_resources=KubeletPodResources(kubelet),
        images=images,
        journal=journal,
        blocking=blocking,
        asking=nvml.ask,
        now=time.monotonic,
        wall=time.time,
        offloading=offloading,
    )


def _open_api(settings: AgentSettings) -> Api:
    from kybernate.adapters.k8s import Api  # noqa: PLC0415 - half a second to import

    return Api(settings.kubeconfig, "kyb-agent")


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _host_memory() -> int:
    """Nine tenths of the host's memory: what a park may fill."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(int(line.split()[1]) * 1024 * _PARK_SHARE)
    return 0
