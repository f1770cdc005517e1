"""Trees that run before their memory is in."""

from __future__ import annotations

import asyncio

from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.core.seat.lazily import Rates
from kybernate.types import SeatState, Tier
from nodeagent.offload import lazies
from nodeagent.seat.record import from_record
from tests.kit.clock import run_virtual
from tests.kit.machine.saved import Snapshot
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    OBJECT,
    TIERS,
    WAITING,
    app_of,
    down,
    reasons,
    two,
    when,
)
from tests.unit.nodeagent.succession import left


async def woken_lazily(rig, proxy, fault="", state=NVME):
    """A seat that has answered from there while its memory is on its way."""
    r = rig(tiers=TIERS)
    r.loop.offload.lazies.pays = lambda _: True
    cold, hot = await two(r)
    await down(r, cold, state)
    if fault:
        r.machine.faults.add(fault)
    proxy(r.loop).request(cold)
    await when(lambda: r.node.seats[cold].saved.paging)
    return r, cold, hot


async def test_it_serves_before_its_memory_is_in_and_its_images_stay_until_then(rig, proxy):
    r, cold, _ = await woken_lazily(rig, proxy, "pages-late")
    await r.until(cold, ACTIVE)
    (artifact,) = r.machine.vault
    assert r.node.seats[cold].saved.paging == artifact
    assert not r.node.seats[cold].history.took, "neither way was the whole one"
    await when(lambda: not r.node.seats[cold].saved.paging)
    await when(lambda: not r.machine.vault)
    assert r.machine.paging == {}
    r.check()


async def test_nothing_is_dumped_or_saved_before_it_is_in(rig, proxy):
    r, cold, hot = await woken_lazily(rig, proxy, "pages-late")
    await r.until(cold, ACTIVE)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    r.loop.operators.request_wake(hot, "a test")
    await r.until(cold, NVME)
    assert r.machine.paging == {}
    r.check()


async def test_a_tree_whose_memory_never_comes_is_ended_and_told(rig, proxy):
    r, cold, _ = await woken_lazily(rig, proxy, "pages-lost")
    await r.until(cold, WAITING)
    assert "MemoryLost" in reasons(r)
    assert any("memory can't be brought in" in text for _, text in r.seen.events)
    r.machine.start_container(cold)
    await r.until(cold, ACTIVE)
    assert app_of(r, cold).alive


async def test_what_cannot_be_removed_at_once_is_removed_later(rig):
    r = rig(tiers=TIERS)
    r.loop.offload.lazies.pays = lambda _: True
    cold, _ = await two(r)
    await down(r, cold)
    r.machine.faults |= {"pages-late", "abandon-fails"}
    r.loop.operators.request_wake(cold, "a test")
    await when(lambda: r.node.seats[cold].saved.paging and f"/dumps/{cold}" in r.machine.folders)
    r.machine.end_container(cold)
    await r.until(cold, WAITING)
    await when(lambda: "abandon-fails" not in r.machine.faults)
    await when(lambda: f"/dumps/{cold}" not in r.machine.folders)
    r.check()


async def test_an_old_folder_is_removed_and_a_dump_that_has_begun_since_is_not(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold, SeatState.DUMPING)
    folder = f"/dumps/{cold}"
    await when(lambda: folder in r.machine.folders)
    # Asked for when a former container ended, it had to wait for another reader until now.
    await r.loop.offload.lazies.abandon(r.node.seats[cold])
    assert folder in r.machine.folders
    await r.until(cold, OBJECT)
    r.machine.folders[folder] = Snapshot(cold, r.node.seats[cold].tree.handle, 1)
    await r.loop.offload.lazies.abandon(r.node.seats[cold])
    assert folder not in r.machine.folders
    r.check()


async def test_one_whose_container_ends_while_it_is_restored_is_parked_below_ram_again(rig):
    r = rig(tiers=TIERS)
    r.loop.offload.lazies.pays = lambda _: True
    cold, hot = await two(r)
    await down(r, cold)
    r.loop.operators.request_wake(cold, "a test")
    await when(lambda: r.state(cold) is SeatState.RESTORING)
    r.machine.end_container(cold)
    await r.until(cold, WAITING)
    r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    await when(lambda: r.machine.vault == {})
    r.loop.operators.request_wake(hot, "a test")
    await down(r, cold)
    r.check()


def test_an_agent_that_is_killed_meanwhile_sees_it_through(rig, proxy):
    async def first():
        r, cold, _ = await woken_lazily(rig, proxy, "pages-late")
        await r.until(cold, ACTIVE)
        return r.machine, cold

    machine, cold = run_virtual(first())
    assert machine.paging

    async def second():
        r = rig(machine, tiers=TIERS)
        await r.recover()
        r.begin()
        assert r.node.seats[cold].saved.paging in machine.vault
        await when(lambda: not r.node.seats[cold].saved.paging)
        await when(lambda: not machine.vault)
        r.check()

    run_virtual(second(), start=3000.0)


def test_a_tree_whose_server_died_while_no_agent_was_there_is_ended_by_the_next(rig, proxy):
    async def first():
        r, cold, _ = await woken_lazily(rig, proxy, "pages-late")
        await r.until(cold, ACTIVE)
        return r.machine, cold

    machine, cold = run_virtual(first())

    async def second():
        machine.faults.add("pages-lost")
        r = rig(machine, tiers=TIERS)
        await r.recover()
        r.begin()
        await r.until(cold, WAITING)
        assert "MemoryLost" in reasons(r)
        r.machine.start_container(cold)
        await r.until(cold, ACTIVE)
        r.check()

    run_virtual(second(), start=3000.0)


def test_what_was_fetched_stays_over_a_restart_until_all_of_it_is_in(rig, proxy):
    async def first():
        r, cold, _ = await woken_lazily(rig, proxy, "pages-late", OBJECT)
        await r.until(cold, ACTIVE)
        return r.machine, cold

    machine, cold = run_virtual(first())
    assert list(machine.paging.values()) == [f"/dumps/{cold}"]

    async def second():
        r = rig(machine, tiers=TIERS)
        await r.recover()
        r.begin()
        await when(lambda: not r.node.seats[cold].saved.paging)
        await when(lambda: f"/dumps/{cold}" not in machine.folders)
        r.check()

    run_virtual(second(), start=3000.0)


async def test_what_failed_to_be_restored_is_restored_whole(rig, proxy, monkeypatch):
    monkeypatch.setattr(lazies, "pays", lambda *_: True)

    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold, NVME)
    seat = r.node.seats[cold]
    assert r.loop.offload.lazies.pays(seat)
    r.machine.faults.add("restore-fails-criu")
    proxy(r.loop).request(cold)
    await when(lambda: seat.backoff.failed_restores)
    assert not r.loop.offload.lazies.pays(seat)
    await r.until(cold, ACTIVE)
    assert seat.saved.paging == ""
    assert r.machine.paging == {}
    r.check()


async def test_what_is_whole_sooner_is_restored_whole(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold, NVME)
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    assert r.node.seats[cold].saved.paging == ""
    await asyncio.sleep(1)
    assert r.machine.vault == {}


async def test_of_copies_of_one_state_each_keeps_its_images_until_its_own_memory_is_in(rig):
    r = rig(tiers=TIERS)
    r.loop.offload.lazies.pays = lambda _: True
    _, artifact, _, telling = await left(r, NVME)
    wish = RestoreWish(artifact=artifact, kind=RestoreAs.TEMPLATE)
    soon, late = await r.seat("soon", restore=wish), await r.seat("late", restore=wish)
    await when(lambda: r.node.seats[soon].saved.paging)
    r.machine.faults.add("pages-late")
    await when(lambda: r.node.seats[late].saved.paging)
    assert r.node.seats[soon].saved.paging == artifact
    await r.until(late, ACTIVE)
    await when(lambda: r.machine.paging == {})
    r.check()
    telling.cancel()


GIB = 1 << 30


async def test_what_comes_first_of_a_state_is_known_as_long_as_the_state(rig):
    r = rig(tiers=TIERS)
    r.first = 5
    cold, _ = await two(r)
    await down(r, cold, NVME)
    assert r.node.seats[cold].saved.first == 5
    assert from_record(r.node.seats[cold].record()).saved.first == 5


async def test_a_copy_knows_what_comes_first_of_the_state_that_it_goes_on_from(rig):
    r = rig(tiers=TIERS)
    r.first = 5
    _, artifact, _, telling = await left(r, NVME)
    wish = RestoreWish(artifact=artifact, kind=RestoreAs.TEMPLATE)
    new = await r.seat("new", restore=wish)
    await when(lambda: r.node.seats[new].saved.first == 5)
    telling.cancel()


async def test_a_state_of_which_the_gpus_had_most_comes_lazily_only_if_that_is_first(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold, NVME)
    seat = r.node.seats[cold]
    seat.saved.size, seat.tree.held = 10 * GIB, dict.fromkeys(seat.identity.gpus, 9 * GIB)
    assert not r.loop.offload.lazies.pays(seat)
    seat.saved.first = 9 * GIB
    assert r.loop.offload.lazies.pays(seat)


async def test_the_lazy_rate_is_that_of_what_comes_later(rig, proxy, monkeypatch):
    learned = []

    def spy(rates, size, seconds, *, lazy):
        learned.append((size, lazy))
        return rates

    monkeypatch.setattr(Rates, "learned", spy)
    monkeypatch.setattr(rig, "first", 3)
    r, cold, _ = await woken_lazily(rig, proxy, "pages-late")
    saved = r.node.seats[cold].saved.size
    await r.until(cold, ACTIVE)
    await when(lambda: not r.node.seats[cold].saved.paging)
    assert learned == [(saved - 3, True)]
