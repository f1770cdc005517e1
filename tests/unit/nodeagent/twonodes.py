"""Two nodes of which one takes states from the other: by real gRPC and TLS, into a real folder."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

from kybernate.checkpoint.delivery.inbox import Inbox
from kybernate.checkpoint.delivery.outbox import Outbox
from kybernate.checkpoint.places import open_place
from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.raw.stream import Seen
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.holds import ARRIVED
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import ConflictError, NotFoundError
from kybernate.lib.deadline import Deadline
from kybernate.ports import Handover
from kybernate.runtime.identity import Identity
from kybernate.types import NodeName, PodRef, PodUid, Tier
from nodeagent.api.doorkeeper import Doorkeeper, Rates
from nodeagent.api.peers import GrpcPeers
from nodeagent.api.peersapi import PeersApi
from nodeagent.api.servers import serve_network
from nodeagent.app.makemoves import agent_of
from nodeagent.migration.protocol import Pacer
from nodeagent.migration.target import Target
from nodeagent.seat.parts.saved import Begins
from tests.unit.checkpoint.kit import KEYS, draft, make_dump
from tests.unit.nodeagent.api.test_api import node_api

LIMIT = 20.0
POD = PodRef("team-a", "llama-0", PodUid("5e1f"))


class Adopter:
    """As `Adoptions`, and remembers. `refuses` is raised once, before anything is done; `claim` is
    asked, and `changed` hears of the seat."""

    def __init__(self) -> None:
        self.changed = self.claim = None
        self.adopted: list[tuple[str, str, Tier]] = []
        self.of: list[PodRef] = []
        self.refuses: Exception | None = None

    def awaits(self, seat, uid):
        wish = seat.wishes.restore
        return "" if wish and wish.uid == uid else f"pod {seat.identity.pod} does not wait"

    async def adopt(self, seat, artifact, tier, *, of):
        self.of.append(of)
        if self.refuses:
            error, self.refuses = self.refuses, None
            raise error
        self.adopted.append((seat.uid, artifact, tier))
        await self.claim(of, artifact, seat.uid)
        seat.saved.artifact, seat.saved.begins, seat.saved.copies = (
            artifact,
            Begins.ADOPTED,
            frozenset({tier}),
        )
        seat.saved.predecessor, seat.saved.claimed = of.uid, artifact
        self.changed(seat)


class Two:
    """Node n1 here, whose agent calls; node n2, with a seat that waits."""

    def __init__(self, rig, tls, tmp_path) -> None:
        self.r, self.tls = rig(tiers={Tier.NVME: 1 << 40}), tls
        self.here, self.there = (open_place(str(tmp_path / name)) for name in ("here", "there"))
        seen = Seen()
        self.outbox, self.seen = Outbox(self.here, KEYS, seen), seen
        self.adopter = Adopter()
        self.restart()
        self.port = 0
        self.address = ""

    def restart(self) -> None:
        """Node n2's agent; its calls are answered from now on if it serves anew."""
        node = self.r.node
        seen = self.seen_there = Seen()
        self.vault = Vault({Tier.NVME: self.there}, Tier.NVME, KEYS, seen=seen)
        self.inbox = Inbox(self.there, KEYS, seen)
        offloading = replace(node.world.offloading, vault=self.vault, inbox=self.inbox)
        node.world = replace(node.world, offloading=offloading)
        self.receiver = Target(agent_of(self.r.loop), self.inbox, self.adopter)
        self.adopter.changed, self.adopter.claim = self.receiver.seat_changed, self._claim
        self.r.loop.custody.load(self.r.machine.journal)
        self.receiver.resume(dict(self.r.machine.journal))

    def restarted(self) -> None:
        """The same, and what the last agent had begun goes on."""
        self.restart()
        self.r.loop.custody.begin()

    async def _claim(self, pod, artifact, successor) -> None:
        with contextlib.suppress(ConflictError):  # where nobody said that the pod has stopped
            await self.r.loop.registry.claim(pod.namespace, pod.uid, artifact, successor, LIMIT)

    def has(self, artifact) -> bool:
        return (self.there.local / layout.manifest_key(artifact)).exists()

    async def until_gone(self, artifact) -> None:
        while self.has(artifact) or self.r.loop.custody.of(artifact):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def begin(self):
        self.r.loop.adoptions.at_gate = lambda seat: None  # nothing is adopted but by a move
        self.r.begin()
        self.uid = await self.r.seat("b", delay=0.0, restore=RestoreWish(uid=POD.uid))
        seat = self.r.node.seats[self.uid]
        seat.identity = SimpleNamespace(
            **{
                **{name: getattr(seat.identity, name) for name in seat.identity.__slots__},
                "pod": PodRef(POD.namespace, "b", self.uid),
            }
        )
        self.to = Handover(POD, seat.identity.pod, NodeName("n2"))
        await self.serve()
        while not seat.contact.connected:  # noqa: ASYNC110 - the machine's time is real here
            await asyncio.sleep(0.01)
        return seat

    async def serve(self) -> None:
        """Calls of other nodes' agents reach the agent that there is now."""
        keeper = Doorkeeper(Rates(), self.r.clock.time, unix=False)
        self.server, self.port = await serve_network(
            node_api(self.r),
            keeper,
            "127.0.0.1:0",
            Identity("n2", self.tls),
            PeersApi(self.receiver),
        )
        self.address = f"127.0.0.1:{self.port}"

    async def api(self):
        def get(path, timeout):
            if "/pods/" in path:
                if path.endswith("/none"):
                    raise NotFoundError("no such pod")
                node = {"b": "n2", "c": "n1", "d": ""}[path.rpartition("/")[2]]
                return {"metadata": {"uid": "u"}, "spec": {"nodeName": node}}
            return {"status": {"agent": {"address": self.address}}}

        return SimpleNamespace(get=get)

    def peers(self, name="n1", rate=0.0):
        return GrpcPeers(Identity(name, self.tls), self.outbox, self.api, Pacer(rate))

    def dump(self, seed=1, blocks=40):
        folder = self.here.local / ".begun" / "x"
        folder.mkdir(parents=True, exist_ok=True)
        return make_dump(folder / f"d{seed}", seed, blocks)

    def sealed(self, images, number=1):
        hashed = self.seen.hashed.pop(images, None)
        return seal.seal(self.here, images, draft(number), KEYS, Deadline(LIMIT), hashed).id

    async def end(self):
        await self.server.stop(0)


@contextlib.asynccontextmanager
async def two_nodes(rig, tls, tmp_path):
    two = Two(rig, tls, tmp_path)
    await two.begin()
    peers = two.peers()
    try:
        yield two, peers
    finally:
        peers.close()
        await two.end()


async def follow(two, peers, images):
    dumped = asyncio.Event()
    dumped.set()
    return await peers.follow(two.to, images, dumped, LIMIT)


async def delivered(two, peers):
    artifact = two.sealed(two.dump(1))
    await peers.deliver(two.to, artifact, LIMIT)
    assert two.has(artifact)
    assert two.r.machine.journal[ARRIVED + artifact]["successor"] == two.uid
    return artifact
