"""Moves to another node that is made up, and agents that die over them."""

from __future__ import annotations

import asyncio
import contextlib
import gc

from kybernate.core.seat.operations import Kind
from kybernate.errors import NotFoundError
from kybernate.types import NodeName, PodRef, PodUid, SeatState, Tier
from nodeagent.app.makemoves import agent_of
from nodeagent.migration.source import Source
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash
from tests.unit.nodeagent.offloading import ended

GIB = 1 << 30
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
BOTH = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 1 << 62}
ACTIVE, NVME = SeatState.ACTIVE, SeatState.PARKED_NVME
THERE = PodRef("default", "b", PodUid("uid-b"))


class There:
    """The other node: implements `ports.Peers`, and outlives agents here.

    `fails` maps a call's name to errors that it raises before it does anything, one each time.
    """

    def __init__(self) -> None:
        self.staged: list[str] = []
        self.followed = 0
        self.keeps: set[str] = set()
        self.taken = ""
        self.called_off = 0
        self.sizes: list[int] = []
        self.fails: dict[str, list[Exception]] = {}
        self.takes = 0.2

    async def _call(self, name: str) -> None:
        await asyncio.sleep(self.takes)
        if self.fails.get(name):
            raise self.fails[name].pop(0)

    async def find(self, namespace, name, deadline):
        await self._call("find")
        return THERE, NodeName("n2")

    async def expect(self, handover, deadline, *, size=0):
        self.sizes.append(size)
        await self._call("expect")
        assert handover.successor == THERE

    async def stage(self, handover, artifact, deadline):
        await self._call("stage")
        self.staged.append(artifact)
        return 1

    async def follow(self, handover, images, dumped, deadline):
        await dumped.wait()
        await self._call("follow")
        self.followed += 1
        return 1

    async def deliver(self, handover, artifact, deadline):
        await self._call("deliver")
        self.keeps.add(artifact)

    async def let_continue(self, handover, artifact, deadline):
        await self._call("let_continue")
        if artifact not in self.keeps:
            raise NotFoundError(f"{artifact} is not here")
        self.taken = artifact
        await asyncio.sleep(self.takes)

    async def call_off(self, handover, deadline):
        await self._call("call_off")
        self.called_off += 1
        if not self.taken:
            self.keeps.clear()


def with_moves(r, there):
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    moves = Source(agent_of(r.loop), there, operations.advanced)
    r.node.observe(operations, moves)
    operations.carry(Kind.MOVE, moves)
    return operations, moves


async def begun(rig, there, **more):
    r = rig(tiers=BOTH, **more)
    r.node.park_budget = 100 * GIB
    operations, _ = with_moves(r, there)
    r.begin()
    r.loop.life.aside(r.loop.reports.run())
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, ACTIVE)
    return r, operations, uid


def move(uid, name="m1", **more):
    return Ask(Kind.MOVE, name, uid, by="ops", successor="b", **more)


async def one_move(rig, machine, there):
    _r, operations, uid = await begun(rig, there, machine=machine)
    await ended(await operations.ask(move(uid)))


async def next_agent(rig, machine, there):
    r = rig(machine, tiers=BOTH)
    r.node.park_budget = 100 * GIB
    await r.recover()
    operations, moves = with_moves(r, there)
    records = r.node.world.journal.load()
    moves.resume(records)
    operations.resume(records)
    r.begin()
    r.loop.life.aside(r.loop.reports.run())
    return r, operations


def killed(main, start=0.0):
    """When it was: `main` returns then, and nothing of its agent does anything more."""
    ends: list[float] = []

    async def until_killed():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        try:
            await main()
        finally:
            ends.append(loop.time())
            loop.stop()

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(until_killed(), start=start)
    gc.collect()
    return ends[0]


def agent_dies_in_the_dump(rig, machine, there):
    """When it did."""

    async def first():
        r, operations, uid = await begun(rig, there, machine=machine)
        await operations.ask(move(uid))
        await r.until(uid, SeatState.DUMPING)

    return killed(first)
