"""A pod without Kubernetes and runtime: a real kyb-init in namespaces and cgroups of its own, and
the agent's loop above it with CRIU, the vault, the freezer and the gate as they are.

Only GPUs and their driver are made up: the workload uses none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals import SocketArrivals
from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.container.seatsocket import SeatSockets
from kybernate.adapters.files.journal import FileJournal
from kybernate.adapters.kernel.procfs import Procfs
from kybernate.runtime.identity import Identity
from kybernate.types import Gpu, GpuUuid, Group, GroupName, PodRef, PodUid, SeatName
from nodeagent.app.loop import Loop
from nodeagent.app.makeoffload import make_offload
from nodeagent.app.makeregistry import with_registry
from nodeagent.app.recover import recover
from nodeagent.app.wiring import blocking
from nodeagent.offload.arrivals import Arriving, GuardedFreezer
from nodeagent.seat.leases import Leases
from nodeagent.seat.node import Inventory, Node, World
from nodeagent.seat.record import Seat, SeatIdentity
from tests.cluster.layout import REPOSITORY
from tests.kit import machine as fakes
from tests.kit.node.cable import THERE, lay_cable, take_cable
from tests.kit.node.parking import OwnFreezer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.ports import Journal
    from kybernate.settings.agent import AgentSettings
    from kybernate.types import SeatState, Tier


PORT = 8000
CGROUPS = Path("/sys/fs/cgroup")
GPU = Gpu(GpuUuid("GPU-0"), 0, "H100", 80 << 30, 0)
GROUP = Group(GroupName("G0"), "kyb.ai/gpu-1x-seat", (GPU.uuid,), 4)
WORKLOAD = Path(__file__).with_name("workload.py")


class Pod:
    """Network namespace, cgroups and container of one pod; `log` is what its command prints."""

    def __init__(self, uid: PodUid, work: Path) -> None:
        self.name = f"kybt{os.getpid() % 10000}"
        self.work = work
        self.log = work / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._uid = uid
        self._groups: list[Path] = []
        lay_cable(self.name)

    def _make_groups(self) -> list[Path]:
        """The cgroups of one more container."""
        container = f"{len(self._groups):064x}"
        made = [
            CGROUPS / controller / self.name / f"pod{self._uid}" / container
            for controller in ("freezer", "memory", "cpu", ".")
            if (CGROUPS / controller / "cgroup.procs").exists()
        ]
        for group in made:
            group.mkdir(parents=True)
        self._groups += made
        return made

    def start(self, door: Path) -> None:
        """A container, with the seat's socket where kyb-init looks for it; the next one where one
        has ended."""
        joins = "; ".join(f"echo $$ >{group}/cgroup.procs" for group in self._make_groups())
        spaces = "--pid --fork --mount --ipc --uts --cgroup --mount-proc"
        inner = shlex.quote(self._inner(door))
        script = f"{joins}; exec ip netns exec {self.name} unshare {spaces} sh -c {inner}"
        read, write = os.pipe()
        self.process = subprocess.Popen(
            ["sh", "-c", script], stdout=write, stderr=write, start_new_session=True
        )
        os.close(write)
        self._reader = threading.Thread(target=self._read, args=(read,), daemon=True)
        self._reader.start()

    def _inner(self, door: Path) -> str:
        """What a shell does in the container's namespaces: kyb-init is the last of it."""
        return (
            f"mkdir -p /run/kyb && mount --bind {door} /run/kyb && "
            f"exec {REPOSITORY}/build/kyb-init -- {sys.executable} {WORKLOAD} {PORT} </dev/null"
        )

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, "rb", buffering=0) as source, self.log.open("ab", 0) as log:
            while data := source.read(65536):
                log.write(data)

    def lines(self) -> list[str]:
        """What the command has printed so far."""
        return self.log.read_text().splitlines()

    def close(self) -> None:
        """End all that is left."""
        for group in (one for base in self._groups for one in (base / "kyb", base)):
            with contextlib.suppress(OSError):
                (group / "freezer.state").write_text("THAWED")
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
        if self.process is not None:
            self.process.wait(10)
        if self._reader is not None:
            self._reader.join(10)
        self._remove()

    def _remove(self) -> None:
        own = [group for base in self._groups for group in (base / "kyb", base)]
        above = {base.parent for base in self._groups}
        for group in (*own, *above, *(pod.parent for pod in above)):
            end = time.monotonic() + 5
            while group.exists() and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.01)
        take_cable(self.name)


class Above:
    """An agent above a pod that somebody else has. `settings` are the agent's."""

    def __init__(self, settings: AgentSettings, uid: PodUid, journal: Journal) -> None:
        self.settings = settings
        self.uid = uid
        self.journal = journal
        self.loop: Loop | None = None

    async def agent(self) -> Loop:
        """A new agent: the first, or the next after one that was killed."""
        cgroups = OwnFreezer(self.uid)
        arrivals = SocketArrivals(cgroups.pids)
        freezer = GuardedFreezer(cgroups, arrivals)
        machine, procs = fakes.Machine({GPU.uuid: GPU.memory}), Procfs()
        inits = KernelInits(REPOSITORY / "build")
        world = World(
            gpus=fakes.FakeGpus(machine),
            helpers=fakes.FakeHelpers(machine),
            freezer=freezer,
            procs=procs,
            doors=SeatSockets(self.settings.run_dir / "seats", procs, inits),
            specs=fakes.FakeSpecs(machine),
            pod_resources=fakes.FakePodResources(machine),
            images=fakes.FakeImages(machine),
            journal=self.journal,
            blocking=blocking,
            asking=blocking,
            now=time.monotonic,
            wall=time.time,
            offloading=make_offload(
                self.settings, freezer, inits, lambda: None, fakes.FakeImages(machine)
            ),
        )
        own = Identity(self.settings.node, self.settings.tls_dir)
        world, reports = with_registry(world, self.settings, own)
        node = Node(self.settings, world, Leases(5.0))
        node.park_budget = 1 << 40
        self.loop = loop = Loop(node, reports)
        node.observe(Arriving(loop.proxies, loop.operators, arrivals, freezer))
        await recover(loop)
        loop.inventory_reported(Inventory((GPU,), (), (GROUP,), "580", "13.0"))
        return loop

    async def add(self) -> Path:
        """The pod's seat; returns the folder of its door."""
        assert self.loop is not None
        identity = SeatIdentity(
            pod=PodRef("default", "a", self.uid),
            container="main",
            resource=GROUP.resource,
            device_id="token",
            name=SeatName("G0-seat-1"),
            group=GROUP.name,
            gpus=GROUP.gpus,
            vram=None,
            model="a",
            image="img",
            port=PORT,
        )
        seat = Seat(identity, time.monotonic(), time.time())
        seat.wishes.keep_connections = True
        seat.contact.pod_ip = THERE
        self.loop.add(seat)
        return await self.loop.node.world.doors.open(self.uid)

    def seat(self) -> Seat:
        """The seat as the present agent has it."""
        assert self.loop is not None
        return self.loop.node.seats[self.uid]

    def park(self, tier: Tier) -> None:
        """As an operator asks for it."""
        assert self.loop is not None
        self.loop.operators.ask_for_tier(self.uid, tier)
        self.loop.operators.send_away(self.uid, "a test")

    async def until(self, state: SeatState, limit: float = 40.0) -> None:
        """Until the seat is in this state."""
        end = time.monotonic() + limit
        while self.seat().state is not state:
            assert time.monotonic() < end, (self.seat().state, self.seat().history.reason)
            await asyncio.sleep(0.005)


class Room(Above):
    """One agent above one pod of its own."""

    def __init__(
        self, work: Path, settings: AgentSettings, make: Callable[[PodUid, Path], Pod] = Pod
    ) -> None:
        uid = PodUid(str(uuid.uuid4()))
        super().__init__(settings, uid, FileJournal(work / "journal", "a boot"))
        self.pod = make(uid, work)

    async def begin(self, state: SeatState) -> Seat:
        """The pod's container is started, and comes to this state."""
        await self.agent()
        self.pod.start(await self.add())
        await self.until(state)
        return self.seat()

    async def more_than(self, lines: int, limit: float = 40.0) -> None:
        """Until the tree has written more than so many lines: it runs."""
        end = time.monotonic() + limit
        while len(self.pod.lines()) <= lines:
            assert time.monotonic() < end, f"still {lines} lines"
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """The agent lets go of all that it has open."""
        if self.loop is not None:
            await self.loop.node.world.doors.close(self.uid)
            self.loop.node.world.freezer.thaw(self.seat().tree.handle)
        self.journal.close()
        await asyncio.sleep(0.1)
