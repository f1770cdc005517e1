"""What a pod continues from is fetched from its bind on, before its container stands."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.types import GroupName, PodRef, PodUid, Tier
from nodeagent.app.recoveroffload import clear_of_the_gone
from nodeagent.kube.pods import PodFacts
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    GIB,
    MEMORY,
    OBJECT,
    TIERS,
    app_of,
    down,
    quiet,
    two,
    when,
)
from tests.unit.nodeagent.succession import left, of, went

NEW = PodUid("uid-new")
FOLDER = "/dumps/uid-new"


def bound(wish, **more):
    """What the watch shows of a pod that is bound and has no container yet."""
    facts = PodFacts(
        ref=PodRef("default", "new", NEW),
        resource="kyb.ai/gpu-1x-seat",
        container="main",
        group=GroupName("G0"),
        assigned_at=0.0,
        seat=None,
        model="new",
        vram=None,
        image="img",
        port=8000,
        has_args=False,
        ip="",
        deleting=False,
        over=False,
        restore=wish,
    )
    return replace(facts, **more)


def is_there(r):
    return FOLDER in r.machine.folders and FOLDER not in r.machine.coming


def counted(r):
    """The folders of all fetches that begin from now on."""
    vault, begun = r.node.world.offloading.vault, []
    fetch = vault.fetch

    def counting(artifact, images, *rest):
        begun.append(str(images))
        return fetch(artifact, images, *rest)

    vault.fetch = counting
    return begun


async def test_it_is_here_before_the_container_stands_and_fetched_once(rig):
    r = rig(tiers=TIERS)
    cold, _, (inner, ran), telling = await left(r)
    begun = counted(r)
    r.loop.pod_changed(bound(of(cold)))
    r.loop.pod_changed(bound(of(cold)))
    await when(lambda: is_there(r))
    await r.seat("new", restore=of(cold))
    await r.until(NEW, ACTIVE)
    assert begun == [FOLDER]
    app = app_of(r, NEW)
    assert (app.inner, went(r, NEW)) == (inner, [])
    assert r.machine.ran[app.handle] > ran
    await when(lambda: r.machine.vault == {} and FOLDER not in r.machine.folders)
    r.check()
    telling.cancel()


async def test_one_that_is_on_its_way_when_the_container_stands_is_that_fetch(rig):
    r = rig(tiers=TIERS)
    cold, _, (inner, _), telling = await left(r)
    begun = counted(r)
    r.loop.pod_changed(bound(of(cold)))
    await r.seat("new", restore=of(cold), delay=0.0)
    await r.until(NEW, ACTIVE)
    assert begun == [FOLDER]
    assert (app_of(r, NEW).inner, went(r, NEW)) == (inner, [])
    r.check()
    telling.cancel()


async def test_nothing_comes_before_the_predecessor_has_stopped(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    r.loop.pod_changed(bound(of(cold)))
    await asyncio.sleep(20)
    assert FOLDER not in r.machine.folders
    r.check()


@pytest.mark.parametrize(
    "wish",
    [
        None,
        RestoreWish(template="t"),
        RestoreWish(uid=PodUid("uid-cold"), kind=RestoreAs.TEMPLATE),
        RestoreWish(uid=PodUid("uid-cold"), kind=RestoreAs.CLONE),
        RestoreWish(uid=PodUid("uid-nobody")),
    ],
)
async def test_it_comes_for_a_successor_alone(rig, wish):
    r = rig(tiers=TIERS)
    *_, telling = await left(r)
    begun = counted(r)
    r.loop.pod_changed(bound(wish))
    await asyncio.sleep(20)
    assert begun == []
    telling.cancel()


async def test_it_does_not_come_for_a_second_successor(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    await r.loop.registry.claim("default", cold, artifact, PodUid("uid-first"), 1.0)
    begun = counted(r)
    r.loop.pod_changed(bound(of(cold)))
    await asyncio.sleep(20)
    assert begun == []
    telling.cancel()


@pytest.mark.parametrize("how", ["deleted", "deleting", "over"])
async def test_with_the_pod_it_goes(rig, how):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    r.loop.pod_changed(bound(of(cold)))
    await when(lambda: is_there(r))
    if how == "deleted":
        r.loop.pod_gone(NEW)
    else:
        r.loop.pod_changed(bound(of(cold), **{how: True}))
    await when(lambda: FOLDER not in r.machine.folders)
    assert r.loop.offload.others_in(Tier.NVME) == 0
    telling.cancel()


async def test_what_nobody_takes_goes_with_the_patience_for_it(rig):
    r = rig(tiers=TIERS, restore_wait_s=30.0)
    cold, _, _, telling = await left(r)
    r.loop.pod_changed(bound(of(cold)))
    await when(lambda: is_there(r))
    await asyncio.sleep(25)
    assert is_there(r)
    await asyncio.sleep(10)
    assert FOLDER not in r.machine.folders
    telling.cancel()


async def test_its_bytes_count_until_the_seat_has_it(rig):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    before = r.loop.offload.others_in(Tier.NVME)
    r.loop.pod_changed(bound(of(cold)))
    await when(lambda: is_there(r))
    assert r.loop.offload.others_in(Tier.NVME) > before
    await r.seat("new", restore=of(cold))
    await r.until(NEW, ACTIVE)
    assert r.loop.offload.others_in(Tier.NVME) == before
    telling.cancel()


async def test_where_nvme_has_no_room_it_does_not_come(rig):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    offloading = r.node.world.offloading
    full = replace(offloading, limits={**offloading.limits, Tier.NVME: 10})
    r.node.world = replace(r.node.world, offloading=full)
    begun = counted(r)
    r.loop.pod_changed(bound(of(cold)))
    await asyncio.sleep(20)
    assert begun == []
    telling.cancel()


@pytest.mark.parametrize("fault", ["store-down", "corrupt", "begin-fails"])
async def test_if_it_fails_the_seat_fetches_as_ever(rig, fault):
    r = rig(tiers=TIERS)
    cold, _, (inner, _), telling = await left(r)
    r.machine.faults.add(fault)
    r.loop.pod_changed(bound(of(cold)))
    await asyncio.sleep(2)
    assert not r.loop.offload.ahead.knows(NEW)
    await r.seat("new", restore=of(cold))
    await r.until(NEW, ACTIVE, 200)
    assert (app_of(r, NEW).inner, went(r, NEW)) == (inner, [])
    r.check()
    telling.cancel()


async def test_a_pod_that_begins_by_its_command_leaves_nothing(rig):
    r = rig(tiers=TIERS, restore_wait_s=3.0)
    cold, artifact, _, telling = await left(r)
    r.loop.pod_changed(bound(of(cold)))
    await when(lambda: is_there(r))
    await r.loop.registry.claim("default", cold, artifact, PodUid("uid-first"), 1.0)
    await r.seat("new", restore=of(cold))
    await r.until(NEW, ACTIVE, 100)
    assert len(went(r, NEW)) == 1
    await when(lambda: FOLDER not in r.machine.folders)
    telling.cancel()


async def second(r, cold, artifact):
    """Another pod has the claim, and the last agent has fetched for this one, whose seat is there;
    what lets the look ahead find that out."""
    await r.loop.registry.claim("default", cold, artifact, PodUid("uid-first"), 1.0)
    claimable, asked = r.loop.offload.ahead._claims.claimable, asyncio.Event()

    async def slowly(pod, uid):
        await asked.wait()
        return await claimable(pod, uid)

    r.loop.offload.ahead._claims = SimpleNamespace(claimable=slowly)
    r.machine.folders[FOLDER] = SimpleNamespace()
    r.loop.pod_changed(bound(of(cold)))
    await r.seat("new", restore=of(cold))
    assert FOLDER in r.machine.folders
    return asked


async def test_what_an_agent_that_died_has_fetched_goes_though_another_has_the_claim(rig):
    """The next agent looks ahead, too, while the seat comes, and finds that there is nothing."""
    r = rig(tiers=TIERS, restore_wait_s=3.0)
    cold, artifact, _, telling = await left(r)
    (await second(r, cold, artifact)).set()
    await r.until(NEW, ACTIVE, 100)
    await when(lambda: FOLDER not in r.machine.folders)
    telling.cancel()


async def test_it_stays_until_the_gate_says_that_no_tree_reads_from_it(rig):
    """Without a journal the next agent takes a tree for one that waits, until it says hello."""
    r = rig(tiers=TIERS, restore_wait_s=30.0)
    cold, artifact, _, telling = await left(r)
    await second(r, cold, artifact)
    r.node.seats[NEW].contact.lost()
    r.loop.offload.ahead.leave(NEW)
    await asyncio.sleep(1)
    assert FOLDER in r.machine.folders
    telling.cancel()


@pytest.mark.parametrize("after", [0.0, 0.01, 0.02, 0.05, 0.1, 1.0])
def test_an_agent_that_dies_meanwhile_leaves_nothing_and_the_next_begins_again(rig, after):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        await left(r)
        r.loop.pod_changed(bound(of(PodUid("uid-cold"))))
        await asyncio.sleep(after)
        raise Crash

    with contextlib.suppress(Crash, RuntimeError):
        run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        await clear_of_the_gone(r.loop)
        await when(lambda: FOLDER not in machine.folders)
        r.loop.pod_changed(bound(of(PodUid("uid-cold"))))
        await when(lambda: is_there(r))
        await clear_of_the_gone(r.loop)
        await asyncio.sleep(1)
        assert is_there(r)
        await r.seat("new", restore=of(PodUid("uid-cold")))
        await r.until(NEW, ACTIVE, 200)
        assert went(r, NEW) == []
        r.check()

    run_virtual(second())
