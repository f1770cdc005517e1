"""A node agent on a made-up machine, with a proxy of its own, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.adapters.pki import Folder, Validity
from kybernate.core.artifacts.into import Into
from kybernate.errors import ConfigError, NotFoundError, RetryableError
from kybernate.ports import Holder
from kybernate.settings.agent import AgentSettings
from kybernate.types import (
    Gpu,
    GpuUuid,
    Group,
    GroupName,
    PodRef,
    PodUid,
    SeatName,
    SeatState,
    Tier,
)
from nodeagent.api.prepare import Preparer
from nodeagent.app.loop import Loop
from nodeagent.app.recover import recover
from nodeagent.kube.pods import PodCache, PodFacts, read_pod
from nodeagent.offload.arrivals import Arriving, GuardedFreezer
from nodeagent.offload.images.dumper import AgentDumper
from nodeagent.seat.leases import Demand, Leases
from nodeagent.seat.node import Inventory, Node, World
from nodeagent.seat.offloading import Offloading
from nodeagent.seat.record import Seat, SeatIdentity
from tests.kit import machine as fakes
from tests.kit.arrivals import FakeArrivals
from tests.kit.clock import until
from tests.kit.warden import FakeCulprits
from tests.unit.core.swap.invariant import violations

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 1 << 30
GPUS = tuple(Gpu(GpuUuid(f"GPU-{i}"), i, "H100", 80 * GIB, 0) for i in range(2))
RESOURCE = "kyb.ai/gpu-1x-seat"
G0 = Group(GroupName("G0"), RESOURCE, (GPUS[0].uuid,), 4)
G1 = Group(GroupName("G1"), RESOURCE, (GPUS[1].uuid,), 4)
G01 = Group(GroupName("G01"), "kyb.ai/gpu-2x-seat", (GPUS[0].uuid, GPUS[1].uuid), 4)
INVENTORY = Inventory(GPUS, (), (G0, G1, G01), "580", "13.0")


class Observer:
    """Remembers what people would read, and checks the invariant after every change."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.events: list[tuple[str, str]] = []
        self.states: list[tuple[PodUid, SeatState]] = []
        self.broken: list[str] = []

    def seat_changed(self, seat: Seat) -> None:
        self.states.append((seat.uid, seat.state))
        self.broken += violations(self.node.swap_view())

    def seat_gone(self, seat: Seat) -> None:
        self.states.append((seat.uid, SeatState.GONE))

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        self.events.append((reason, sentence))


class Proxy:
    """A proxy with requests of a fixed length. Implements `leases.Outbox`."""

    def __init__(self, loop: Loop, name: str = "p1", service: float = 0.05) -> None:
        self.loop = loop
        self.name = name
        self.service = service
        self.leases: dict[PodUid, int] = {}
        self.draining: dict[PodUid, int] = {}
        self.waiting: dict[PodUid, int] = {}
        self.in_flight: dict[PodUid, int] = {}
        self.answered: dict[PodUid, int] = {}
        self.traces: dict[PodUid, str] = {}
        self.revoked = 0
        self.here = True
        self._idle: list[tuple[PodUid, int]] = []
        loop.proxies.proxy_joined(name, self)

    def request(self, uid: PodUid, gives_back: Iterable[PodUid] = ()) -> None:
        """`gives_back`: seats whose leases go back with what it asks."""
        self.waiting[uid] = self.waiting.get(uid, 0) + 1
        self._idle = [(idle, self.leases.pop(idle)) for idle in gives_back]
        self._pump(uid)

    def cancel(self, uid: PodUid) -> None:
        self.waiting[uid] = 0
        self._report(uid)

    def grant(self, uid: PodUid, generation: int) -> None:
        self.leases[uid] = generation
        self.draining.pop(uid, None)
        self._soon(self._pump, uid)

    def drain(self, uid: PodUid, generation: int) -> None:
        self.draining[uid] = generation
        self._soon(self._maybe_drained, uid)

    def revoke(self, uid: PodUid, generation: int) -> None:
        self.leases.pop(uid, None)
        self.draining.pop(uid, None)
        self.revoked += self.in_flight.get(uid, 0)
        self.in_flight[uid] = 0

    def leave(self) -> None:
        self.here = False
        self.loop.proxies.proxy_left(self.name, self)

    def _soon(self, call: Any, uid: PodUid) -> None:
        asyncio.get_running_loop().call_soon(call, uid)

    def _pump(self, uid: PodUid) -> None:
        if uid in self.leases and uid not in self.draining:
            begun, self.waiting[uid] = self.waiting.get(uid, 0), 0
            self.in_flight[uid] = self.in_flight.get(uid, 0) + begun
            for _ in range(begun):
                asyncio.get_running_loop().call_later(self.service, self._finish, uid)
        self._report(uid)

    def _finish(self, uid: PodUid) -> None:
        if self.in_flight.get(uid, 0):
            self.in_flight[uid] -= 1
            self.answered[uid] = self.answered.get(uid, 0) + 1
        self._report(uid)
        self._maybe_drained(uid)

    def _maybe_drained(self, uid: PodUid) -> None:
        if self.here and uid in self.draining and not self.in_flight.get(uid, 0):
            self.leases.pop(uid, None)
            self.loop.proxies.proxy_drained(self.name, uid, self.draining.pop(uid))

    def _report(self, uid: PodUid) -> None:
        if not self.here:
            return
        now = asyncio.get_running_loop().time()
        demand = Demand(
            self.in_flight.get(uid, 0),
            self.waiting.get(uid, 0),
            now,
            self.answered.get(uid, 0),
            self.traces.get(uid, ""),
        )
        idle, self._idle = self._idle, []
        self.loop.proxies.proxy_demand(self.name, uid, demand, idle)


class Rig:
    """One agent on one machine. `first`: see `Offloading.first`, of each dump."""

    first = 0

    def __init__(
        self,
        machine: fakes.Machine | None = None,
        tiers: dict[Tier, int] | None = None,
        **settings: Any,
    ) -> None:
        self.container = fakes.CONTAINER
        self.machine = machine or fakes.Machine({gpu.uuid: gpu.memory for gpu in GPUS})
        self.settings = AgentSettings(node="n1", **settings)
        self.clock = asyncio.get_running_loop()
        self.arrivals = FakeArrivals()
        freezer = GuardedFreezer(fakes.FakeFreezer(self.machine), self.arrivals)
        world = World(
            gpus=fakes.FakeGpus(self.machine),
            helpers=fakes.FakeHelpers(self.machine),
            freezer=freezer,
            procs=fakes.FakeProcs(self.machine),
            doors=fakes.FakeDoors(self.machine),
            specs=fakes.FakeSpecs(self.machine),
            pod_resources=fakes.FakePodResources(self.machine),
            images=fakes.FakeImages(self.machine),
            journal=fakes.FakeJournal(self.machine),
            blocking=fakes.inline,
            asking=fakes.inline,
            now=self.clock.time,
            wall=lambda: 1_700_000_000 + self.clock.time(),
            offloading=self._offloading(freezer, tiers) if tiers else None,
        )
        self.node = Node(self.settings, world, Leases(self.settings.lease_break_s))
        self.loop = Loop(self.node)
        self.seen = Observer(self.node)
        self.arriving = Arriving(self.loop.proxies, self.loop.operators, self.arrivals, freezer)
        self.node.observe(self.seen, self.arriving)

    def _offloading(self, freezer: GuardedFreezer, tiers: dict[Tier, int]) -> Offloading:
        async def facts(seat: Seat) -> dict[str, object]:
            gpus = [*seat.tree.gpu_map] or seat.identity.gpus
            return {
                "namespace": seat.identity.pod.namespace,
                "pod": seat.identity.pod.name,
                "gpu_pids": list(seat.tree.inner),
                "gpus": list(gpus),
                "held": [seat.tree.held.get(gpu, 0) for gpu in seat.identity.gpus],
                "first": seat.saved.first,
            }

        async def into(seat: Seat) -> Into:
            pod = seat.identity.pod
            return Into(pod.namespace, seat.uid, self.container, parked=not seat.awaits_state)

        return Offloading(
            dumper=AgentDumper(fakes.FakeDumper(self.machine), freezer.forget),
            vault=fakes.FakeVault(self.machine),
            gatekeeper=fakes.FakeGatekeeper(self.machine),
            culprits=FakeCulprits(self.machine),
            facts=facts,
            limits=tiers,
            into=into,
            first=lambda _: self.first,
        )

    def begin(self) -> None:
        self.loop.inventory_reported(INVENTORY)

    async def recover(self) -> None:
        self.machine.carry_on()
        await recover(self.loop)

    async def seat(self, name: str, group: Group = G0, size: int = 40 * GIB, **more: Any) -> PodUid:
        """A pod that is bound and whose container starts now."""
        uid = PodUid(f"uid-{name}")
        app = fakes.App(group.gpus, size, delay=more.pop("delay", 0.5))
        self.machine.apps[uid] = app
        identity = SeatIdentity(
            pod=PodRef("default", name, uid),
            container="main",
            resource=group.resource,
            device_id=f"{name}-token",
            name=SeatName(f"{group.name}-seat-{name}"),
            group=group.name,
            gpus=group.gpus,
            vram=more.pop("vram", None),
            model=name,
            image=more.pop("image", "img"),
            port=more.pop("port", 8000),
            anywhere=more.pop("anywhere", False),
        )
        seat = Seat(identity, self.clock.time(), 0.0)
        seat.contact.pod_ip, seat.wishes.restore = "10.0.0.1", more.pop("restore", None)
        self.loop.add(seat)
        await self.node.world.doors.open(uid)
        self.machine.start_container(uid)
        return uid

    def state(self, uid: PodUid) -> SeatState:
        return self.node.seats[uid].state

    async def until(self, uid: PodUid, state: SeatState, limit: float = 60.0) -> None:
        there = await until(lambda: self._state(uid) is state, limit)
        assert there, f"{uid} is {self._state(uid)}, not {state}: {self.seen.events}"

    def _state(self, uid: PodUid) -> SeatState | None:
        return self.state(uid) if uid in self.node.seats else None

    def check(self) -> None:
        assert self.seen.broken == []
        assert self.machine.breaches == []


@pytest.fixture
def rig() -> type[Rig]:
    return Rig


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of two agents, and a proxy's that calls itself an agent."""
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1", "n2"], Validity(), datetime.now(UTC))
    for kind in ("key", "crt"):
        (folder / f"agent-proxy.{kind}").write_bytes((folder / f"proxy.{kind}").read_bytes())
    return folder


@pytest.fixture
def proxy() -> type[Proxy]:
    return Proxy


@pytest.fixture
def groups() -> dict[str, Group]:
    return {"G0": G0, "G1": G1, "G01": G01}


class FakePods:
    """The API server's pods. Implements `prepare.Pods` and feeds the cache like the watch."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.cache = PodCache(rig.loop.pod_changed, rig.loop.pod_gone)
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.marked: dict[str, str] = {}
        self.touched: list[str] = []
        self.down = False

    def create(self, name: str, token: str, group: str | None = None, **more: Any) -> None:
        notes = {"kyb.ai/assigned-at": more.get("at", "2026-11-21T10:00:00Z")}
        if group:
            notes["kyb.ai/group"] = group
        if "vram" in more:
            notes["kyb.ai/vram"] = more["vram"]
        resource = more.get("resource", RESOURCE)
        pod = {
            "metadata": {
                "namespace": "default",
                "name": name,
                "uid": f"uid-{name}",
                "annotations": notes,
            },
            "spec": {
                "priority": more.get("priority"),
                "terminationGracePeriodSeconds": more.get("grace", 30),
                "containers": [
                    {
                        "name": "main",
                        "image": "img",
                        "ports": [{"containerPort": 8000}],
                        "resources": {"limits": {resource: "1"} if resource else {}},
                    }
                ],
            },
            "status": {"podIP": "10.0.0.9"},
        }
        self.pods["default", name] = pod
        self.rig.machine.holders[token] = Holder("default", name, "main")
        with contextlib.suppress(ConfigError):
            self.cache.event("ADDED", pod)

    def delete(self, name: str) -> None:
        self.cache.event("DELETED", self.pods.pop(("default", name)))

    async def read(self, namespace: str, name: str) -> PodFacts | None:
        if self.down:
            raise RetryableError("the API server does not answer")
        if (namespace, name) not in self.pods:
            raise NotFoundError(f"no pod {namespace}/{name}")
        return read_pod(self.pods[namespace, name])

    async def started(self, namespace: str, name: str) -> frozenset[PodUid]:
        found = self.pods.get((namespace, name))
        return frozenset({PodUid(found["metadata"]["uid"])} if found else ())

    def mark_seat(self, facts: PodFacts, seat: SeatName) -> None:
        self.marked[facts.ref.uid] = seat

    def touch(self, pod: PodRef) -> None:
        self.touched.append(pod.uid)


@pytest.fixture
def prepared() -> Any:
    def make(rig: type[Rig]) -> tuple[Rig, Preparer, FakePods]:
        r = rig()
        pods = FakePods(r)
        return r, Preparer(r.loop, pods.cache, pods, Path("/x/kyb-init-1")), pods

    return make
