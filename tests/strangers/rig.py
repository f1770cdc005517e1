"""A pod whose container has a program's own root, below a whole agent; there is no Kubernetes."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from images import debs
from images.cache import silent
from kybernate.types import SeatState, Tier
from tests.cluster.fetched import gguf
from tests.cluster.fetched.layers import BUSYBOX
from tests.cluster.layout import REPOSITORY
from tests.integration.tiers.room import Pod, Room
from tests.kit.node.cable import THERE
from tests.strangers import layers

if TYPE_CHECKING:
    from kybernate.settings.agent import AgentSettings
    from kybernate.types import PodUid
    from nodeagent.app.loop import Loop
    from nodeagent.seat.record import Seat
    from tests.strangers.programs import Stranger
    from tests.strangers.talks import Talk

SOURCES = Path(__file__).with_name("sources")
TIERS = {
    SeatState.PARKED: Tier.RAM,
    SeatState.PARKED_NVME: Tier.NVME,
    SeatState.PARKED_OBJECT: Tier.OBJECT,
}
START = 60.0
MERGED = ("bin", "sbin", "lib", "lib64")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_FOLDERS = ("proc", "dev", "tmp", "run/kyb", "kyb", "app", "old", "etc", "sys")
_LAID = (
    "mount -t proc proc {root}/proc && mount -t tmpfs -o mode=755 dev {root}/dev && "
    "mkdir {root}/dev/shm && mount -t tmpfs -o mode=1777 shm {root}/dev/shm && "
    "for one in {devices}; do touch {root}/dev/$one; "
    "mount --bind /dev/$one {root}/dev/$one; done && "
    "mount --bind {door} {root}/run/kyb && mount --bind {build} {root}/kyb && "
    "mount --bind {app} {root}/app && cd {root} && pivot_root . old && "
    "exec /busybox sh -c {then}"
)
_THEN = (
    "cd / && /busybox umount -l /old && export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp && "
    "exec /kyb/kyb-init -- {command} </dev/null"
)


class Booth(Pod):
    """The pod of one program. `app` are its sources; its root is the unpacked packages below a
    layer of its own."""

    def __init__(self, uid: PodUid, work: Path, stranger: Stranger, app: Path) -> None:
        super().__init__(uid, work)
        self.stranger, self.app = stranger, app

    def _inner(self, door: Path) -> str:
        lowers = layers.fetch(self.stranger, silent) or [self.work / "none"]
        root, upper, beside = (self.work / name for name in ("root", "upper", "beside"))
        for path in (root, upper, beside, self.work / "none"):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        _fill(upper)
        for name in MERGED:
            # Newer suites leave these links to a package that nothing here depends on.
            if not any((one / name).exists() for one in lowers):
                (upper / name).symlink_to(f"usr/{name}")
        lower = ":".join(map(str, lowers))
        overlay = f"lowerdir={lower},upperdir={upper},workdir={beside}"
        then = _THEN.format(command=shlex.join(self.stranger.command))
        laid = _LAID.format(
            root=root,
            devices=" ".join(DEVICES),
            door=door,
            build=REPOSITORY / "build",
            app=self.app,
            then=shlex.quote(then),
        )
        return f"mount -t overlay overlay -o {overlay} {root} && {laid}"


def _fill(upper: Path) -> None:
    for name in _FOLDERS:
        (upper / name).mkdir(parents=True, exist_ok=True)
    (upper / "tmp").chmod(0o1777)
    (upper / "etc/passwd").write_text(
        "root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
    )
    (upper / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (upper / "etc/hosts").write_text("127.0.0.1 localhost\n")
    busybox = debs.unpack(BUSYBOX, silent).folder / "bin/busybox"
    shutil.copy2(busybox, upper / "busybox")


def built(folder: Path) -> None:
    """All sources, and what Go makes of its own. Raises CalledProcessError."""
    shutil.copytree(SOURCES, folder, dirs_exist_ok=True)
    folder.chmod(0o755)
    (folder / "model.gguf").write_bytes(gguf.model())
    subprocess.run(
        ["go", "build", "-o", str(folder / "main"), str(folder / "main.go")],
        check=True,
        timeout=900,
        env={**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off"},
    )


class Events:
    """What people are told of a seat. Implements the agent's `Observer`."""

    def __init__(self) -> None:
        self.kept_in_ram: list[str] = []
        self.heard = asyncio.Event()

    def seat_changed(self, seat: Seat) -> None:
        """Nobody asks."""

    def seat_gone(self, seat: Seat) -> None:
        """Nobody asks."""

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Why it stays in RAM, if it does."""
        if reason == "KeptInRam":
            self.kept_in_ram.append(sentence)
            self.heard.set()


class Stand(Room):
    """One agent above one program's pod."""

    def __init__(self, work: Path, settings: AgentSettings, stranger: Stranger, app: Path) -> None:
        super().__init__(work, settings, lambda uid, at: Booth(uid, at, stranger, app))
        self.stranger = stranger
        self.events = Events()

    async def agent(self) -> Loop:
        """An agent of which people are told."""
        loop = await super().agent()
        loop.node.observe(self.events)
        return loop

    async def serving(self) -> Talk:
        """A first connection, once the program listens."""
        end = asyncio.get_running_loop().time() + START
        while True:
            try:
                return await asyncio.to_thread(self.stranger.talk, THERE)
            except OSError as error:
                if asyncio.get_running_loop().time() > end:
                    said = "\n".join(self.pod.lines()[-20:])
                    raise AssertionError(f"it doesn't serve: {error}; it said: {said}") from error
                await asyncio.sleep(0.1)
