"""Moves from group to group of one node that is made up, and agents that die over them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from kybernate.core.artifacts.restores import RestoreWish
from kybernate.core.seat.operations import Kind
from kybernate.errors import RefusedError, RetryableError
from kybernate.types import NodeName, PodUid
from nodeagent.app.makemoves import agent_of
from nodeagent.migration.source import Source
from nodeagent.migration.target import Target
from nodeagent.migration.within import Within
from nodeagent.operations.operations import Operations
from tests.unit.nodeagent.moving import ACTIVE, BOTH, GIB, move
from tests.unit.nodeagent.offloading import app_of, ended

A, B = PodUid("uid-a"), PodUid("uid-b")


class NoInbox:
    """In place of `checkpoint.inbox.Inbox`: nothing comes from other nodes. `left`: room."""

    def __init__(self, left=1 << 60):
        self.room = SimpleNamespace(taken=0, limit=0, left=lambda _: left, of=lambda _: 0)

    def waiting(self):
        return frozenset()

    def drop(self, successor):
        """There is nothing."""

    def see_whole(self, artifact):
        """It is."""


class Beyond:
    """The API server's word on pods, and no other node. Implements `ports.Peers.find`."""

    def __init__(self, r):
        self.r = r
        self.gone: set[str] = set()
        self.away = False

    async def find(self, namespace, name, deadline):
        await asyncio.sleep(0.01)
        if self.away:
            raise RetryableError("the API server does not answer")
        for seat in self.r.node.seats.values():
            if seat.identity.pod.name == name and name not in self.gone:
                return seat.identity.pod, NodeName("n1")
        raise RefusedError(f"there is no pod {namespace}/{name}")


def with_moves(r, records=None, room=1 << 60):
    """As `makemoves` wires them."""
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    receiver = Target(agent_of(r.loop), NoInbox(room), r.loop.adoptions)
    receiver.resume(records or {})
    beyond = Beyond(r)
    moves = Source(agent_of(r.loop), Within("n1", receiver, beyond), operations.advanced)
    operations.carry(Kind.MOVE, moves)
    if records is not None:
        moves.resume(records)
        operations.resume(records)
    r.node.observe(receiver, moves)
    return operations, beyond


async def begun(rig, groups, room=1 << 60, **more):
    """A seat that runs on GPU-0, and a successor that waits on GPU-1."""
    r = rig(tiers=BOTH, **more)
    r.node.park_budget = 100 * GIB
    operations, beyond = with_moves(r, room=room)
    r.begin()
    r.loop.life.aside(r.loop.reports.run())
    r.machine.elsewhere.successors |= {B, PodUid("uid-c")}
    await r.seat("a", groups["G0"], delay=0.0)
    await r.until(A, ACTIVE)
    await r.seat("b", groups["G1"], delay=0.0, restore=RestoreWish(uid=A, waits=True))
    while not r.node.seats[B].contact.connected:  # noqa: ASYNC110 - the machine's time is made up
        await asyncio.sleep(0.01)
    return r, operations, beyond


async def one_move(rig, groups, machine):
    r, operations, _ = await begun(rig, groups, machine=machine)
    machine.inner = app_of(r, A).inner
    await ended(await operations.ask(move(A)))


async def next_agent(rig, machine):
    r = rig(machine, tiers=BOTH)
    r.node.park_budget = 100 * GIB
    await r.recover()
    operations, beyond = with_moves(r, r.node.world.journal.load())
    r.begin()
    r.loop.life.aside(r.loop.reports.run())
    return r, operations, beyond


async def inline(call, *args):
    """In place of `asyncio.to_thread`: where time is made up, no thread takes any."""
    return call(*args)


def holders(r):
    """The pods with memory on GPUs, by GPU."""
    return {gpu: sorted(r.machine.held(gpu)) for gpu in r.machine.memory}


def named(r):
    """How many seats name each state."""
    states = [seat.saved.artifact for seat in r.node.seats.values() if seat.saved.artifact]
    return {one: states.count(one) for one in states}
