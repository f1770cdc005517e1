"""Moves and evacuations put together, where the agent can offload seats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.operations import Kind
from nodeagent.api.peers import GrpcPeers
from nodeagent.api.peersapi import PeersApi
from nodeagent.migration.agent import Agent
from nodeagent.migration.evacuate import Evacuations
from nodeagent.migration.protocol import Pacer
from nodeagent.migration.source import Source
from nodeagent.migration.target import Target
from nodeagent.migration.within import Within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kybernate.ports import KubeApi
    from kybernate.runtime.identity import Identity
    from nodeagent.api.guests import Guests
    from nodeagent.app.loop import Loop
    from nodeagent.operations.operations import Operations


def make_moves(
    loop: Loop,
    operations: Operations,
    api: Callable[[], Awaitable[KubeApi]],
    records: Mapping[str, Mapping[str, object]],
    identity: Identity,
    guests: Guests,
) -> PeersApi | None:
    """What answers other nodes' agents; None where no state leaves RAM. `records` are those of the
    journal: this comes before operations are put again."""
    offloading, settings, agent = loop.node.world.offloading, loop.node.settings, agent_of(loop)
    operations.carry(Kind.EVACUATE, Evacuations(agent, operations.advanced))
    if offloading is None or offloading.inbox is None or offloading.outbox is None:
        return None
    pacer = Pacer(float(settings.move_bytes_per_s))
    peers = GrpcPeers(identity, offloading.outbox, api, pacer, guests.revoked)
    guests.left.append(peers.drop)
    receiver = Target(agent, offloading.inbox, loop.adoptions)
    receiver.resume(records)
    source = Source(agent, Within(settings.node, receiver, peers), operations.advanced)
    operations.carry(Kind.MOVE, source)
    source.resume(records)
    loop.life.aside(receiver.coming.clear())
    loop.node.observe(receiver, source)
    return PeersApi(receiver)


def agent_of(loop: Loop) -> Agent:
    """What migrations use of the agent."""
    return Agent(
        loop.node,
        loop.operators,
        loop.offload,
        loop.custody,
        loop.succession,
        loop.reports,
        loop.registry,
        loop.life.aside,
    )
