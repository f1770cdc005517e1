"""Models that leave host RAM: CRIU writes their trees to a folder, as in a cluster.

What that takes of a box beside the agent's own parts. A model is started in a container: processes,
mounts and System V IPC of its own, and a cgroup that can be frozen. Users, files and the network
are the box's: so a model that is away holds no port, and a connection to it is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.criu import Criu, Tools
from kybernate.adapters.kernel.freezer import SUB_CGROUP, CgroupFreezer
from kybernate.adapters.kernel.treefacts import bytes_of
from kybernate.adapters.keys import artifactkeys
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.vault import Vault
from kybernate.errors import ConfigError, RefusedError
from kybernate.local.ports import NoContainers
from kybernate.types import PodUid, Tier
from nodeagent.app.makeoffload import fit_version, limits
from nodeagent.offload.images.dumper import AgentDumper
from nodeagent.seat.facts import Facts
from nodeagent.seat.offloading import Offloading

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.container.inits import KernelInits
    from kybernate.local.folders import Folders
    from kybernate.ports import Culprits
    from kybernate.settings.agent import AgentSettings
    from nodeagent.seat.node import Inventory
    from nodeagent.seat.record import Seat


class BoxFreezer(CgroupFreezer):
    """Freezes this box's models alone; on the same machine others have trees of the same kind.

    Each model has a cgroup of its own in one folder, which `folders` tells from other boxes'.
    """

    def __init__(self, folders: Folders) -> None:
        super().__init__()
        name = hashlib.sha256(os.fsencode(folders.run)).hexdigest()[:16]
        self._own = self.base / f"kybernate-{name}"

    def frozen(self) -> frozenset[str]:
        """See `ports.Freezer.frozen`."""
        return frozenset(one for one in super().frozen() if Path(one).is_relative_to(self._own))

    def group(self, uid: PodUid) -> Path:
        """The model's cgroup, made if it isn't there. Raises ConfigError."""
        group = self._own / uid
        try:
            group.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"can't be made ({error.strerror}), and models leave RAM from there alone"
            raise ConfigError(str(group), f"{problem}; leave out tiers.nvme") from error
        return group

    def models(self) -> frozenset[PodUid]:
        """Those that have a cgroup."""
        with contextlib.suppress(FileNotFoundError):
            return frozenset(PodUid(one.name) for one in self._own.iterdir() if one.is_dir())
        return frozenset()

    def forget(self, uid: PodUid) -> None:
        """Remove the cgroups of a model that has ended; nothing if a process is left in one."""
        for group in (self._own / uid / SUB_CGROUP, self._own / uid, self._own):
            with contextlib.suppress(OSError):
                group.rmdir()


class NoGate:
    """Implements `ports.Gatekeeper` where the network is the box's: nothing is held back there.

    Requests come by the box's own proxy, which asks no model that is away.
    """

    async def shut(
        self, init: int, on_arrival: Callable[[str], None], deadline: float, port: int = 0
    ) -> None:
        """See `ports.Gatekeeper.shut`."""

    async def open(self, init: int, deadline: float) -> int:
        """See `ports.Gatekeeper.open`."""
        return 0

    async def plain(self, init: int, deadline: float) -> None:
        """See `ports.Gatekeeper.plain`. The box keeps its MPTCP."""

    async def cut(self, init: int, deadline: float) -> None:
        """See `ports.Gatekeeper.cut`. Raises RefusedError always."""
        raise RefusedError("a model's network is the box's, and is not cut off")


def offloading(
    settings: AgentSettings,
    freezer: BoxFreezer,
    inits: KernelInits,
    culprits: Culprits,
    inventory: Callable[[], Inventory | None],
) -> Offloading | None:
    """None where models stay in RAM. Raises ConfigError."""
    if settings.criu is None or settings.kyb_enter is None or settings.nvme_dir is None:
        return None
    version, folder = fit_version(settings.criu), settings.nvme_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tools, work = Tools(settings.kyb_enter, settings.criu), settings.state_dir / "criu"
    dumper = Criu(tools, freezer, work, inits=inits, own_network=False)
    places = {Tier.NVME: open_place(str(folder), "nvme")}
    facts = Facts(settings, freezer, inventory, NoContainers(), version, lambda _init: "")

    def weigh(seat: Seat) -> int:
        return bytes_of(freezer.pids(seat.tree.handle))

    return Offloading(
        dumper=AgentDumper(dumper, lambda _handle: None),
        vault=Vault(places, Tier.NVME, _own_keys(settings.state_dir / "keys")),
        gatekeeper=NoGate(),
        culprits=culprits,
        facts=facts,
        limits=limits(settings, places),
        weigh=weigh,
        into=facts.into,
    )


def _own_keys(folder: Path) -> artifactkeys.ArtifactKeys:
    """By which this box signs what it writes, and reads it; made by its first start."""
    artifactkeys.make_folder(folder, "box")
    return artifactkeys.read_folder(folder)
