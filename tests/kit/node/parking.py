"""A container as a seat: parked and resumed through the agent's own adapters."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.adapters.arrivals.gate import NetworkGate
from kybernate.adapters.criu import Criu
from kybernate.adapters.kernel.freezer import SUB_CGROUP, CgroupFreezer
from kybernate.adapters.kernel.procfs import Procfs
from tests.cluster.parts.host import CGROUPS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kybernate.ports import Phases
    from kybernate.types import PodUid
    from tests.kit.node.containers import Container, Node

T = TypeVar("T")

LIMIT = 60.0


class OwnFreezer(CgroupFreezer):
    """As on a node where this pod is alone: an agent that starts thaws all that is frozen and none
    of its own, and tests beside this one have frozen pods that are none of its own."""

    def __init__(self, uid: PodUid, mount: Path = CGROUPS) -> None:
        super().__init__(mount)
        self._uid = uid

    def frozen(self) -> frozenset[str]:
        """See `CgroupFreezer`."""
        return frozenset(one for one in super().frozen() if self._uid in one)


class Seat:
    """One container's tree. `images` is made anew by each dump. Its gate is shut while it is
    parked, as the agent has it: without one a packet to a tree that is away, and be it a late
    acknowledgement, is answered by a reset."""

    def __init__(self, node: Node, container: Container) -> None:
        self.node, self.container = node, container
        self.images = node.work / f"{container.name}.images"
        self.freezer = CgroupFreezer()
        self.criu = self.another_agent()
        self.gate = NetworkGate(node.work / "gates", Procfs().descendants)
        self.handle = self._place()
        self._runner = asyncio.Runner()

    def _place(self) -> str:
        """The freezer's cgroup; one that is empty yet for a container that was born parked."""
        if self.container.children(self.container.init):
            return self.freezer.place(self.container.tree)
        lines = Path(f"/proc/{self.container.init}/cgroup").read_text().splitlines()
        words = [line.split(":", 2) for line in lines]
        path = next((at for _, names, at in words if names == "freezer"), words[-1][2])
        base = CGROUPS / "freezer" if any(names == "freezer" for _, names, _ in words) else CGROUPS
        return str(base / path.lstrip("/") / SUB_CGROUP)

    def another_agent(self) -> Criu:
        """As one that has just been started, and finds what the one before has left."""
        return Criu(self.node.tools, self.freezer, self.node.work / "criu")

    def close(self) -> None:
        """The gate's and the event loop's end."""

        async def close_gate() -> None:
            self.gate.close()

        self.run(close_gate())
        self._runner.close()

    def freeze(self) -> None:
        """Every process of the tree stands still."""
        self._runner.run(self.freezer.freeze(self.handle, LIMIT))

    def thaw(self) -> None:
        """They run on, and are heard."""
        self.run(self.gate.open(self.container.init, LIMIT))
        self.freezer.thaw(self.handle)

    def check(self) -> tuple[str, ...]:
        """Why it can't be dumped."""
        return self._runner.run(self.criu.check(self.container.init, self.handle, LIMIT))

    def dump(self, deadline: float = LIMIT, *, continues: bool = False) -> Phases:
        """From frozen to frozen."""
        self.renew()
        init, images = self.container.init, self.images
        dump = self.criu.dump(init, self.handle, images, deadline, continues=continues)
        return self._runner.run(dump)

    def end(self) -> None:
        """Commit."""
        self._runner.run(self.criu.end(self.container.init, self.handle, LIMIT))

    def keep(self) -> None:
        """Abort."""
        self._runner.run(self.criu.keep(self.container.init, self.handle, LIMIT))

    def restore(
        self, *, lazy: bool = False, stopped: bool = False, deadline: float = LIMIT
    ) -> Phases:
        """From parked to frozen."""
        init, how = self.container.init, {"lazy": lazy, "stopped": stopped}
        return self._runner.run(self.criu.restore(init, self.handle, self.images, deadline, **how))

    def pages_done(self) -> None:
        """All memory of a lazy restore is in."""
        self._runner.run(self.criu.pages_done(self.container.init, LIMIT))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Its result, on the event loop that all calls of this seat share."""
        return self._runner.run(call)

    def renew(self) -> None:
        """An empty folder for images."""
        shutil.rmtree(self.images, ignore_errors=True)
        self.images.mkdir(mode=0o700)

    async def park_inside(self) -> Phases:
        """From running to disk, while the caller keeps the gate."""
        self.renew()
        init = self.container.init
        await self.freezer.freeze(self.handle, LIMIT)
        phases = await self.criu.dump(init, self.handle, self.images, LIMIT)
        await self.criu.end(init, self.handle, LIMIT)
        return phases

    async def resume_inside(self, *, lazy: bool = False) -> Phases:
        """From disk to running, while the caller keeps the gate."""
        init = self.container.init
        phases = await self.criu.restore(init, self.handle, self.images, LIMIT, lazy=lazy)
        self.freezer.thaw(self.handle)
        return phases

    def park(self) -> Phases:
        """From running to disk."""
        self.run(self.gate.shut(self.container.init, _called, LIMIT))
        return self.run(self.park_inside())

    def resume(self, *, lazy: bool = False) -> Phases:
        """From disk to running."""
        phases = self.run(self.resume_inside(lazy=lazy))
        self.run(self.gate.open(self.container.init, LIMIT))
        return phases

    def size(self) -> int:
        """Bytes of the images."""
        return sum(path.stat().st_size for path in self.images.iterdir())

    def criu_pid(self) -> int | None:
        """The CRIU that works in the container now, below this process: of all the node's each
        look would take as long as CRIU may."""
        wanted = str(self.node.tools.criu), _link(self.container.init, "ns/pid")
        with suppress(OSError):  # of one that ends while its children are looked for
            for pid in self.container.below(os.getpid()):
                if (_link(pid, "exe"), _link(pid, "ns/pid")) == wanted:
                    return pid
        return None

    def logs(self) -> str:
        """CRIU's own, for a test that failed."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
            for path in (self.node.work / "criu").glob(f"{self.container.init}-*/*")
            if path.suffix == ".log" or path.name == "said"
        )


def _called(_: str) -> None:
    """Nobody wakes it: a test does that."""


def held() -> int:
    """Userfaultfds that are open here."""
    found = 0
    for entry in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(entry.path) == "anon_inode:[userfaultfd]"
    return found


def _link(pid: int, name: str) -> str:
    """Empty once the process has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/{name}")
    return ""
