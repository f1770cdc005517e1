"""A real tree that is saved while it serves: connections, PIDs, output, and what was kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.types import ArtifactId, SeatState, Tier
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from tests.integration.tiers.test_tiers import Client, quiet, room, short

if TYPE_CHECKING:
    from nodeagent.operations.record import Operation
    from tests.integration.tiers.room import Room

__all__ = ["room", "short"]

LIMIT = 60.0


async def saved(room: Room, tier: Tier) -> Operation:
    """What became of a save."""
    assert room.loop is not None
    operations = Operations(
        room.loop.operators, room.loop.offload, room.loop.life, room.loop.policy
    )
    room.loop.node.observe(operations)
    one = await operations.ask(Ask(Kind.SAVE, f"to-{tier}", room.uid, tier=tier))
    async with asyncio.timeout(LIMIT):
        while not one.ended:  # noqa: ASYNC110 - an operation has no event of its end
            await asyncio.sleep(0.005)
    room.loop.node.observers.remove(operations)
    return one


@pytest.mark.real_time
async def test_a_tree_that_is_saved_serves_on_with_its_connections_pids_and_output(
    room: Room,
) -> None:
    seat, client = await room.begin(SeatState.ACTIVE), Client()
    _, who = await client.ask()
    assert room.loop is not None
    offloading = room.loop.node.world.offloading
    assert offloading is not None
    for number, tier in enumerate((Tier.NVME, Tier.OBJECT), 2):
        await quiet()
        one = await saved(room, tier)
        assert one.state is Progress.SUCCEEDED, one.sentence
        print(tier, {name: round(took, 4) for name, took in one.phases.items()})
        await room.until(SeatState.ACTIVE)
        assert await client.ask() == (number, who), "the connection that was open before"
        await offloading.vault.verify(ArtifactId(one.artifact), tier, LIMIT)
        assert [kept.id for kept in await offloading.vault.ls(tier)] == [one.artifact]
    assert seat.history.wakes == 2
    await room.more_than(len(room.pod.lines()))
    numbers = [int(line.split()[1]) for line in room.pod.lines()]
    assert numbers == list(range(1, len(numbers) + 1))
    client.close()
    await room.end()


@pytest.mark.real_time
async def test_a_parked_tree_that_is_saved_stays_parked_and_answers_when_it_is_called(
    room: Room,
) -> None:
    seat, client = await room.begin(SeatState.ACTIVE), Client()
    _, who = await client.ask()
    await quiet()
    room.park(Tier.RAM)
    await room.until(SeatState.PARKED)
    one = await saved(room, Tier.NVME)
    assert one.state is Progress.SUCCEEDED, one.sentence
    assert (seat.state, one.wakes) == (SeatState.PARKED, False)
    assert await client.ask() == (2, who)
    client.close()
    await room.end()
