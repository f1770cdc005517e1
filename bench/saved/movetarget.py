"""The other node of bench.saved.move: the agent's own receiving side, and one waiting container.

Commands come as lines of JSON on stdin, answers go to stdout the same way.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from kybernate.adapters.criu import Criu, Tools
from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.checkpoint.delivery.inbox import ARRIVING, Inbox
from kybernate.checkpoint.places import open_place, read_manifest
from kybernate.checkpoint.raw.seal import images_of
from kybernate.checkpoint.raw.stream import Seen
from kybernate.ports import Line
from kybernate.runtime.identity import Identity
from kybernate.types import ArtifactId, GroupName, PodRef, PodUid, SeatName, Tier
from nodeagent.api.doorkeeper import Doorkeeper, Rates
from nodeagent.api.peersapi import PeersApi
from nodeagent.api.servers import serve_network
from nodeagent.artifacts.holds import Custody
from nodeagent.migration.target import Target
from nodeagent.seat.parts.saved import Begins
from nodeagent.seat.record import Seat, SeatIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 120.0


class MoveTarget:
    """`let_continue` recreates the tree in the container that was named last, and lets it run."""

    def __init__(self, work: Path, tools: Tools) -> None:
        self._place = open_place(str(work / "place"))
        self._keys = read_folder(work.parent / "keys")
        self._freezer = CgroupFreezer()
        self._criu = Criu(tools, self._freezer, work / "criu")
        self._init = self._moment = 0
        self._handle = ""
        self.inbox = Inbox(self._place, self._keys, Seen())
        self.times: dict[str, float] = {}
        self.seats: dict[PodUid, Seat] = {}
        self.changed: Callable[[Any], None] = lambda seat: None

    def awaits(self, seat: object, uid: PodUid) -> str:
        """See `receive.Adopter`."""
        return ""

    async def adopt(self, seat: object, artifact: ArtifactId, tier: Tier, *, of: PodRef) -> None:
        """See `receive.Adopter`."""
        await self.restore(images_of(self._place, read_manifest(self._place, artifact, self._keys)))
        adopted: Any = seat
        adopted.saved.artifact = adopted.saved.claimed = artifact
        adopted.saved.predecessor = of.uid
        adopted.saved.begins, adopted.saved.copies = Begins.ADOPTED, frozenset({tier})
        self.changed(adopted)

    async def restore(self, images: Path) -> None:
        """The tree runs when this returns."""
        began = time.monotonic()
        await self._criu.restore(self._init, self._handle, images, LIMIT)
        self._freezer.thaw(self._handle)
        self.times["restore"] = time.monotonic() - began

    async def command(self, said: dict[str, Any]) -> dict[str, object]:
        """One of the bench's."""
        match said["do"]:
            case "expect":
                uid = PodUid(said["uid"])
                self._init, self._handle, self.times = said["init"], said["handle"], {}
                self.seats[uid] = _waiting(uid)
            case _:
                await self.restore(self._place.local / ARRIVING / said["uid"] / "images")
        return {"times": self.times}


def _waiting(uid: PodUid) -> Seat:
    """A successor's seat, whose kyb-init waits."""
    identity = SeatIdentity(
        pod=PodRef("bench", "successor", uid),
        container="bench",
        resource="kyb.ai/gpu-1x-seat",
        device_id="seat-0",
        name=SeatName("G0-seat-0"),
        group=GroupName("G0"),
        gpus=(),
        vram=None,
        model="",
        image="bench",
    )
    seat = Seat(identity, 0.0, 0.0)
    seat.contact.connected = True
    return seat


async def _line(namespace: str, uid: PodUid, deadline: float) -> Line:
    """All pods run on the node that moves them here."""
    return Line("n1")


async def main(config: dict[str, str]) -> None:
    """Serve until stdin ends."""
    work = Path(config["work"])
    target = MoveTarget(work, Tools(Path(config["enter"]), Path(config["criu"])))

    # The journal's part is measured elsewhere.
    written = asyncio.get_running_loop().create_future()
    written.set_result(None)
    journal = SimpleNamespace(put=lambda *_, **__: written, delete=lambda _: written)
    registry = SimpleNamespace(line=_line)
    world = SimpleNamespace(journal=journal, registry=registry, offloading=None)
    settings = SimpleNamespace(node="n2", dump_deadline_s=LIMIT, transfer_deadline_s=LIMIT)
    node = SimpleNamespace(seats=target.seats, settings=settings, world=world)
    reports = SimpleNamespace(put=lambda report: None)
    agent = SimpleNamespace(
        node=node,
        reports=reports,
        operators=SimpleNamespace(request_wake=lambda uid, why: True),
        offload=SimpleNamespace(unsealed=int),
        aside=asyncio.ensure_future,
    )
    any_node, nobody = cast("Any", node), cast("Any", None)
    agent.custody = Custody(any_node, agent.aside, cast("Any", reports), nobody)
    receiver = Target(cast("Any", agent), target.inbox, cast("Any", target))
    target.changed = receiver.seat_changed
    _, port = await serve_network(
        cast("Any", object()),
        Doorkeeper(Rates(), time.monotonic, unix=False),
        "127.0.0.1:0",
        Identity("n2", Path(config["tls"])),
        PeersApi(receiver),
    )
    print(json.dumps({"port": port}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await target.command(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
