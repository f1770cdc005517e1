"""What a dump takes on NVMe is more than its GPU's memory: all of its tree's counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from kybernate.adapters.kernel.treefacts import bytes_of
from kybernate.core.seat.operations import Kind, Progress
from kybernate.types import Tier
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from tests.unit.nodeagent.offloading import PARKED, down, two

GIB = 1 << 30
ROOM = {Tier.NVME: 60 * GIB}


def weighing(r, size):
    """The agent, told that each tree has so many bytes."""
    world = r.node.world
    offloading = replace(world.offloading, weigh=lambda _: size)
    r.node.world = replace(world, offloading=offloading)
    r.loop.offload._world = r.node.world


async def test_a_tree_that_nvme_has_no_room_for_stays_in_ram(rig):
    r = rig(tiers=ROOM)
    weighing(r, 61 * GIB)
    cold, _ = await two(r)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await asyncio.sleep(30)
    assert r.state(cold) is PARKED
    assert r.machine.vault == {}


async def test_nor_does_it_go_where_bytes_from_other_nodes_lie(rig):
    r = rig(tiers=ROOM)
    weighing(r, 20 * GIB)
    room = SimpleNamespace(taken=41 * GIB)
    offloading = replace(r.node.world.offloading, inbox=SimpleNamespace(room=room))
    r.node.world = replace(r.node.world, offloading=offloading)
    cold, _ = await two(r)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await asyncio.sleep(30)
    assert r.state(cold) is PARKED
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    save = await operations.ask(Ask(Kind.SAVE, "s1", cold))
    await asyncio.sleep(5)
    assert f"room for {19 * GIB} bytes" in save.sentence
    room.taken = 0
    await down(r, cold)


async def test_nor_is_it_saved(rig):
    r = rig(tiers=ROOM)
    weighing(r, 61 * GIB)
    cold, _ = await two(r)
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    one = await operations.ask(Ask(Kind.SAVE, "s1", cold))
    await asyncio.sleep(5)
    assert one.state is Progress.FAILED
    assert f"it takes {61 * GIB} or more" in one.sentence


def test_memory_of_files_does_not_count_and_that_of_tmpfs_does(tmp_path):
    for pid, anon, shared in ((7, 100, 20), (8, 3, 0)):
        (tmp_path / str(pid)).mkdir()
        text = f"Name:\tx\nRssAnon:\t{anon} kB\nRssFile:\t5000 kB\nRssShmem:\t{shared} kB\n"
        (tmp_path / str(pid) / "status").write_text(text)
    assert bytes_of((7, 8, 9), str(tmp_path)) == 123 << 10
