"""The ends of a frozen container on the kernel's own freezer: deleted, killed, out of memory.

Real: kyb-init as process 1 of a PID namespace in a pod's cgroup, the freezer (both versions where
the machine has them), the memory controller, seat sockets, /proc, pidfds, the agent's loop. The
GPUs are made up, and the workload uses none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from bench.processes import free_port
from kybernate.adapters.container.seatsocket import SeatSockets
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.adapters.kernel.memory import KernelMemory
from kybernate.adapters.kernel.pidfds import Pidfds
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.settings.agent import AgentSettings
from kybernate.types import Gpu, GpuUuid, Group, GroupName, PodRef, PodUid, SeatName, SeatState
from nodeagent.app.loop import Loop
from nodeagent.app.recover import recover
from nodeagent.guard.announce import Roster
from nodeagent.guard.outside import Outside
from nodeagent.guard.warden import Warden
from nodeagent.seat.leases import Leases
from nodeagent.seat.node import Inventory, Node, World
from nodeagent.seat.record import Seat, SeatIdentity
from tests.kit import machine as fakes
from tests.kit.inits import EveryInit
from tests.kit.node.parking import OwnFreezer
from tests.kit.warden import FakeAnnouncer

ROOT = Path(__file__).resolve().parents[4]
MOUNT = Path("/sys/fs/cgroup")
MIB = 1 << 20
GPU = Gpu(GpuUuid("GPU-0"), 0, "H100", 80 << 30, 0)
RESOURCE = "kyb.ai/gpu-1x-seat"
LIMIT = 60.0
"""Seconds within which anything happens, on a machine that is busy otherwise."""
GROUP = Group(GroupName("G0"), RESOURCE, (GPU.uuid,), 4)

APP = """
import os, socket, sys, time
if os.fork() == 0:
    state = bytearray(int(sys.argv[2]) or 1)
    state[::4096] = b"x" * len(state[::4096])
    open("/proc/self/comm", "w").write("holder")
    time.sleep(600)
server = socket.socket()
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
os.wait()
"""
GLUTTON = """
import time
taken = []
while True:
    taken.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.002)
"""


def usable(folder: Path) -> bool:
    procs = folder / "cgroup.procs"
    return os.geteuid() == 0 and shutil.which("unshare") is not None and os.access(procs, os.W_OK)


V1 = MOUNT / "freezer"
V2 = next((path for path in (MOUNT / "unified", MOUNT) if usable(path)), MOUNT)
needs = {
    "v1": pytest.mark.skipif(not usable(V1), reason="needs root and a cgroup v1 freezer"),
    "v2": pytest.mark.skipif(not usable(V2), reason="needs root and a cgroup v2"),
}


class Container:
    """kyb-init in the cgroups of a pod's container."""

    def __init__(self, base: Path, tmp: Path) -> None:
        self.uid = PodUid(str(uuid.uuid4()))
        self.top = f"kyb-test-{uuid.uuid4().hex[:8]}"
        path = f"{self.top}/pod{self.uid}/{uuid.uuid4().hex * 2}"
        self.groups = [base / path]
        if usable(MOUNT / "memory"):
            self.groups.append(MOUNT / "memory" / path)
        for group in self.groups:
            group.mkdir(parents=True)
        self.base, self.seats = base, tmp / "seats"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def enter(self) -> None:
        for group in self.groups:
            (group / "cgroup.procs").write_text("0")

    def start(self, binary: Path, size: int) -> None:
        command = [sys.executable, "-c", APP, str(self.port), str(size)]
        self.process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", binary, "--", *command],
            env={
                "PATH": "/usr/bin:/bin",
                "KYB_SEAT_SOCKET": str(self.seats / self.uid / "seat.sock"),
                "KYB_POD_SOCKET": str(self.seats / "init.sock"),
            },
            preexec_fn=self.enter,  # noqa: PLW1509  (nothing else runs here yet)
            stdin=subprocess.DEVNULL,
        )

    def also(self, script: str) -> subprocess.Popen[bytes]:
        """What `kubectl exec` would start: in the container's cgroups, outside of its tree."""
        return subprocess.Popen([sys.executable, "-c", script], preexec_fn=self.enter)  # noqa: PLW1509

    @property
    def filled(self) -> bool:
        """Whether its memory is: then it calls itself so."""
        for pid in (self.groups[0] / "kyb/cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "holder\n":
                    return True
        return False

    @property
    def gone(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def remove(self) -> None:
        if self.process is not None:
            self.process.kill()
            asyncio.run(CgroupFreezer(self.mount).kill(str(self.groups[0] / "kyb"), LIMIT))
            self.process.wait(LIMIT)
        end = time.monotonic() + LIMIT
        for group in self.groups:
            for folder in (group / "kyb", group, group.parent, group.parent.parent):
                while folder.exists():
                    assert time.monotonic() < end, f"{folder} can't be removed"
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    @property
    def mount(self) -> Path:
        return self.base.parent if self.base == V1 else self.base


@pytest.fixture(scope="module")
def kyb_init(tmp_path_factory):
    out = tmp_path_factory.mktemp("kyb-init")
    source = ROOT / "native" / "kyb-init"
    subprocess.run(["make", "-s", "-C", source, f"OUT={out}", "TEST_PATHS=1", "all"], check=True)
    return out / "kyb-init"


@pytest.fixture(
    params=[
        pytest.param(V1, marks=needs["v1"], id="v1"),
        pytest.param(V2, marks=needs["v2"], id="v2"),
    ]
)
def container(request):
    # pytest's own folders have names too long for a socket's.
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder:
        made = Container(request.param, Path(folder))
        yield made
        made.remove()


class Agent:
    """One life of an agent; `machine` keeps its journal from one life to the next."""

    def __init__(self, container: Container, machine: fakes.Machine) -> None:
        settings, procs = AgentSettings(node="n1", min_residency_s=0.0), Procfs()
        world = World(
            gpus=fakes.FakeGpus(machine),
            helpers=fakes.FakeHelpers(machine),
            freezer=OwnFreezer(container.uid, container.mount),
            procs=procs,
            doors=SeatSockets(container.seats, procs, EveryInit()),
            specs=fakes.FakeSpecs(machine),
            pod_resources=fakes.FakePodResources(machine),
            images=fakes.FakeImages(machine),
            journal=fakes.FakeJournal(machine),
            blocking=fakes.inline,
            asking=fakes.inline,
            now=time.monotonic,
            wall=time.time,
        )
        self.node = Node(settings, world, Leases(5.0))
        self.node.park_budget = 1 << 40
        self.loop = Loop(self.node)
        self.events: list[tuple[str, str]] = []
        self.node.observe(self)
        self.uid, self.machine = container.uid, machine
        outside = Outside(
            procs, KernelMemory(), Pidfds(), FakeAnnouncer(), Roster(), pods_known=lambda: True
        )
        self.warden = Warden(self.loop, outside)

    def seat_changed(self, seat: Seat) -> None: ...

    def seat_gone(self, seat: Seat) -> None: ...

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        self.events.append((reason, sentence))

    @contextlib.asynccontextmanager
    async def alive(self):
        await recover(self.loop)
        self.loop.inventory_reported(Inventory((GPU,), (), (GROUP,), "580", "13.0"))
        watching = asyncio.create_task(self.warden.run())
        try:
            yield self
        finally:
            watching.cancel()
            await self.node.world.doors.close(self.uid)

    async def park(self, container: Container, kyb_init: Path, size: int = 0) -> None:
        """Its command serves, and is frozen."""
        ref = PodRef("default", "a", self.uid)
        identity = SeatIdentity(
            ref,
            "main",
            RESOURCE,
            "t",
            SeatName("G0-seat-1"),
            GROUP.name,
            GROUP.gpus,
            1,
            "a",
            "img",
            container.port,
        )
        self.loop.add(Seat(identity, time.monotonic(), time.time()))
        await self.node.world.doors.open(self.uid)
        container.start(kyb_init, size)
        await self.until(lambda: self.state is SeatState.ACTIVE)
        if size:
            await self.until(lambda: container.filled)
        self.loop.operators.send_away(self.uid, "a test wants it parked")
        await self.until(lambda: self.state is SeatState.PARKED)
        assert self.node.world.freezer.frozen() >= {self.node.seats[self.uid].tree.handle}

    @property
    def state(self) -> SeatState | None:
        seat = self.node.seats.get(self.uid)
        return seat.state if seat else None

    @property
    def init(self) -> int:
        init = self.node.seats[self.uid].tree.init
        assert init is not None
        return init.pid

    async def until(self, condition) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, (self.state, self.events)
            await asyncio.sleep(0.01)


def new_machine() -> fakes.Machine:
    return fakes.Machine({GPU.uuid: GPU.memory})


@pytest.mark.real_time
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
async def test_a_frozen_container_that_is_asked_to_end_is_gone_at_once(container, kyb_init, signum):
    async with Agent(container, new_machine()).alive() as agent:
        await agent.park(container, kyb_init)
        os.kill(agent.init, signum)
        await agent.until(lambda: container.gone)
        await agent.until(lambda: agent.state is SeatState.WAITING)


@pytest.mark.real_time
async def test_a_pod_deleted_at_the_api_server_is_gone_before_any_signal(container, kyb_init):
    async with Agent(container, new_machine()).alive() as agent:
        await agent.park(container, kyb_init)
        agent.loop.pod_gone(agent.uid)
        await agent.until(lambda: container.gone)
        await agent.until(lambda: agent.state is None)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_deleted_while_the_agent_is_away_it_is_gone_soon_after_it_is_back(
    container, kyb_init, signum
):
    machine = new_machine()

    async def before():
        async with Agent(container, machine).alive() as agent:
            await agent.park(container, kyb_init)
            return agent.init

    async def after():
        async with Agent(container, machine).alive() as agent:
            await agent.until(lambda: container.gone)
            await agent.until(lambda: agent.state is SeatState.WAITING)

    init = asyncio.run(before())
    os.kill(init, signum)
    # Longer than kyb-init waits for the agent: it has passed the signal on, to a frozen tree.
    time.sleep(2.3)
    if container.base == V1:
        assert not container.gone
    asyncio.run(after())


@pytest.mark.real_time
async def test_an_oom_kill_of_a_frozen_process_is_noticed(container, kyb_init):
    if len(container.groups) < 2:
        pytest.skip("no cgroup v1 memory controller to limit the container with")

    (container.groups[1] / "memory.limit_in_bytes").write_text(str(150 * MIB))
    async with Agent(container, new_machine()).alive() as agent:
        await agent.park(container, kyb_init, 90 * MIB)
        glutton = container.also(GLUTTON)
        try:
            await agent.until(lambda: agent.events)
            reason, sentence = agent.events[0]
            assert reason == "OutOfMemory"
            assert "OOM" in sentence
            assert glutton.poll() is None, "the kernel chose another victim"
        finally:
            glutton.kill()
            glutton.wait()
        await agent.until(lambda: container.gone)
        await agent.until(lambda: agent.state is SeatState.WAITING)
