"""Steps below RAM that fail, and seats that end there: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.errors import RefusedError
from kybernate.ports import DumpState
from kybernate.types import PodUid, SeatState, Tier
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    GIB,
    MEMORY,
    NVME,
    OBJECT,
    PARKED,
    TIERS,
    WAITING,
    app_of,
    down,
    quiet,
    reasons,
    two,
    when,
)


async def test_it_is_looked_at_while_tcp_is_being_held_back(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    dumper = r.node.world.offloading.dumper
    check = dumper.check

    async def behind_the_gate(*how):
        await when(lambda: r.machine.gates)
        return await check(*how)

    dumper.check = behind_the_gate
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await down(r, cold)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("undumpable", "io_uring"),
        ("dump-refused", "waits to be accepted"),
        ("dump-fails", "No space left"),
        ("dump-suspect", "criu was killed"),
        ("dump-hangs", "did not end"),
        ("begin-fails", "No space left"),
        ("seal-fails", "No space left"),
        ("seal-hangs", "did not sync"),
        ("shut-fails", "not permitted"),
        ("disk-full", "No space left"),
    ],
)
async def test_what_can_not_be_dumped_stays_in_ram_and_is_told(rig, proxy, fault, words):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.machine.faults.add(fault)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await asyncio.sleep(20 if "hangs" not in fault else 130)
    assert r.state(cold) is PARKED
    (told,) = [sentence for reason, sentence in r.seen.events if reason == "KeptInRam"]
    assert words in told
    assert (r.machine.vault, r.machine.gates, r.machine.dumps) == ({}, {}, {})
    assert "/dumps/uid-cold" not in r.machine.folders
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    r.check()


async def test_a_container_that_ends_before_its_sealed_state_can_be_noted_leaves_none(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.machine.fault = lambda name: name == "disk-full" and bool(r.machine.vault)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: "JournalStuck" in reasons(r))
    r.machine.end_container(cold)
    await r.until(cold, WAITING)
    await when(lambda: r.machine.vault == {})


@pytest.mark.parametrize("ends", [True, False])
async def test_a_copy_that_was_cancelled_before_it_began_keeps_nobody_from_waking(rig, ends):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    await asyncio.sleep(1)
    r.node.seats[cold].saved.sinks_to = Tier.OBJECT
    if ends:
        r.machine.end_container(cold)
        await r.until(cold, WAITING)
        r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    r.check()


class Looks:
    """Implements `node.Observer`: whether a drop is noted whenever the seat waits."""

    def __init__(self, journal) -> None:
        self.journal, self.noted = journal, []

    def seat_changed(self, seat):
        if seat.state is WAITING:
            self.noted.append(any(key.startswith("drop/") for key in self.journal))

    def seat_gone(self, seat):
        pass

    def told(self, seat, kind, reason, sentence):
        pass


async def test_that_a_sealed_state_is_to_go_is_noted_before_its_seat_is_forgotten(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)

    async def told(artifact, deadline):
        await asyncio.sleep(60)

    r.node.world.offloading.vault.manifest = told
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: r.machine.vault)
    await asyncio.sleep(0.1)
    looks = Looks(r.machine.journal)
    r.node.observe(looks)
    r.machine.end_container(cold)
    await r.until(cold, WAITING)
    assert looks.noted[0]
    await when(lambda: r.machine.vault == {})


async def test_a_tree_of_which_a_state_is_noted_never_runs_on(rig):
    r = rig(tiers=TIERS, keep_left_s=0)
    cold, _ = await two(r)
    r.machine.faults.add("end-hangs")
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: r.node.seats[cold].saved.artifact)
    handle = r.node.seats[cold].tree.handle
    ran = r.machine.ran.get(handle, 0)
    await asyncio.sleep(0.1)
    assert r.state(cold) is SeatState.DUMPING
    r.loop.doors.on_term(cold, 15)
    await r.until(cold, WAITING)
    assert r.machine.ran.get(handle, 0) == ran
    await when(lambda: r.machine.vault == {})
    r.check()


async def test_what_was_refused_is_tried_again_after_a_while_only(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.machine.faults.add("dump-refused")
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await asyncio.sleep(50)
    assert reasons(r).count("KeptInRam") == 1
    await r.until(cold, NVME, 30)


async def test_a_dump_that_leaves_it_unfit_ends_it_and_says_so(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.machine.faults |= {"dump-fails", "keep-fails"}
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await r.until(cold, WAITING)
    assert any("unfit to run" in sentence for _, sentence in r.seen.events)
    r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    assert r.machine.gates == {}
    r.check()


@pytest.mark.parametrize("fault", ["end-hangs", "open-fails", "drop-fails"])
async def test_what_does_not_work_at_once_works_in_the_end(rig, proxy, fault):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.machine.faults.add(fault)
    await down(r, cold)
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(3)
    assert p.answered == {cold: 1}
    assert (r.machine.faults, r.machine.vault, r.machine.gates) == (set(), {}, {})
    r.check()


async def test_a_restored_tree_waits_for_a_disk_that_is_full(rig, proxy, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    put, refused = r.node.world.journal.put, []

    def full(key, record, *, synced, late=False):
        written = put(key, record, synced=synced)
        if synced or record.get("state") != "restoring" or refused:
            return written
        refused.append(key)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(OSError(28, "No space left on device"))
        return answer

    monkeypatch.setattr(r.node.world.journal, "put", full)
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    assert refused
    assert {"SeatFailed", "PutOff"} & set(reasons(r)) == {"PutOff"}
    r.check()


@pytest.mark.parametrize("fault", ["restore-fails-criu", "restore-hangs"])
async def test_a_restore_that_fails_is_tried_again_from_the_same_state(rig, proxy, fault):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    r.machine.faults.add(fault)
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE, 300)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert "RestoreFailed" in reasons(r)
    r.check()


@pytest.mark.parametrize("fault", ["begin-fails", "store-down"])
async def test_a_fetch_that_fails_is_tried_again(rig, proxy, fault):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    await asyncio.sleep(1)
    r.machine.faults.add(fault)
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert "TransferFailed" in reasons(r)
    r.check()


async def test_a_helper_that_is_gone_when_a_seat_comes_back_is_replaced(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    r.loop.steps.drop_helper(r.node.seats[cold])
    r.machine.faults.add("helper-dies")
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert (r.machine.faults, r.machine.vault) == (set(), {})
    assert "SeatFailed" not in reasons(r)
    r.check()


async def test_a_state_that_can_not_be_restored_is_given_up_and_the_workload_starts_anew(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    r.machine.faults.add("corrupt")
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, WAITING)
    assert any("is not what was written" in sentence for _, sentence in r.seen.events)
    r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert (r.machine.vault, r.machine.gates) == ({}, {})
    r.check()


def heard_by(gatekeeper):
    """Of which processes 1 it hears, from now on, that nobody listens at their gates any more."""
    heard, opened = [], gatekeeper.open

    async def told(init, deadline):
        heard.append(init)
        return await opened(init, deadline)

    gatekeeper.open = told
    return heard


@pytest.mark.parametrize("state", [NVME, OBJECT, SeatState.DUMPING, SeatState.RESTORING])
@pytest.mark.parametrize("how", ["term", "deleted", "killed"])
async def test_a_seat_below_ram_ends_at_once(rig, state, how):
    r = rig(tiers=TIERS, tier_residency_s=0.0, keep_left_s=0)
    cold, _ = await two(r)
    if state in (NVME, OBJECT):
        await down(r, cold, state)
    else:
        if state is SeatState.RESTORING:
            await down(r, cold)
            r.loop.operators.request_wake(cold, "a test")
        else:
            r.loop.operators.ask_for_tier(cold, Tier.NVME)
        await when(lambda: r.state(cold) is state)
        await asyncio.sleep(0.003)
    init, hung_up = r.machine.inits[cold], heard_by(r.node.world.offloading.gatekeeper)
    if how == "term":
        r.loop.doors.on_term(cold, 15)
        if r.machine.dumps.get(r.machine.inits[cold]) is DumpState.PARKED:
            r.machine.end_container(cold)
    elif how == "killed":
        r.machine.end_container(cold)
    else:
        r.loop.doors.on_term(cold, 15)
        r.machine.end_container(cold)
        r.loop.pod_gone(cold)
    await asyncio.sleep(1.5)
    if how == "deleted":
        assert cold not in r.node.seats
    else:
        assert r.state(cold) is WAITING
        r.machine.restart_container(cold)
        r.loop.operators.request_wake(cold, "a test")
        await r.until(cold, ACTIVE)
        assert r.machine.gates == {}
    await asyncio.sleep(1)
    assert init in hung_up
    assert r.machine.vault == {}
    assert not [key for key in r.machine.journal if key.startswith("drop/")]
    r.check()


def test_a_seat_on_the_nodes_network_is_not_shut_for_ever_after_a_restart(rig, proxy):
    """A release before held TCP back there, too."""

    async def first():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        await down(r, cold)
        return r.machine, cold

    machine, cold = run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 << 30
        tried = []

        def fault(name):
            tried.append(name)
            return name == "shut-refused"

        machine.fault = fault
        await r.recover()
        r.begin()
        await when(lambda: "GateDeaf" in reasons(r))
        await asyncio.sleep(30)
        assert tried.count("shut-refused") == 1
        p = proxy(r.loop)
        p.request(cold)
        await r.until(cold, ACTIVE)
        await asyncio.sleep(1)
        assert (p.answered, machine.gates) == ({cold: 1}, {})
        r.check()

    run_virtual(second(), start=3000.0)


async def test_a_state_that_goes_before_it_is_noted_is_no_end_of_its_container(rig):
    """Somebody removed it, say."""

    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner, seal = app_of(r, cold).inner, r.node.world.offloading.vault.seal

    async def sealed(*what):
        artifact = await seal(*what)
        r.machine.vault.pop(artifact)
        r.node.world.offloading.vault.seal = seal
        return artifact

    r.node.world.offloading.vault.seal = sealed
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await r.until(cold, SeatState.DUMPING)
    await r.until(cold, PARKED)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    assert app_of(r, cold).inner == inner


async def left_behind(r, error):
    """A seat in the object store whose copy on NVMe could not be dropped; and the vault's drop."""
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold)
    vault = r.node.world.offloading.vault
    drop = vault.drop

    async def refused(artifact, place, **more):
        raise error

    vault.drop = refused
    await down(r, cold, OBJECT)
    await asyncio.sleep(2)
    return cold, inner, drop


AWAY = RefusedError("it has no other verified copy")


async def test_a_copy_on_nvme_that_could_not_be_dropped_is_woken_from(rig):
    r = rig(tiers={Tier.NVME: 100 * GIB, Tier.OBJECT: 10000 * GIB}, tier_residency_s=0.0)
    cold, inner, _ = await left_behind(r, AWAY)
    seat = r.node.seats[cold]
    seat.saved.size = 80 * GIB
    assert (r.state(cold), seat.saved.copies) == (OBJECT, {Tier.NVME, Tier.OBJECT})
    r.machine.faults |= {"store-down"}
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    assert app_of(r, cold).inner == inner
    assert "store-down" in r.machine.faults, "nothing was fetched"
    r.check()


async def test_a_copy_on_nvme_that_could_not_be_dropped_is_dropped_later(rig):
    r = rig(tiers=TIERS)
    cold, _, drop = await left_behind(r, AWAY)
    assert "TransferFailed" in reasons(r)
    await asyncio.sleep(100)
    assert Tier.NVME in r.node.seats[cold].saved.copies
    r.node.world.offloading.vault.drop = drop
    await asyncio.sleep(100)
    assert r.node.seats[cold].saved.copies == {Tier.OBJECT}
    assert r.state(cold) is OBJECT
    assert all(kept.places == {Tier.OBJECT} for kept in r.machine.vault.values())
    r.check()


async def test_a_drop_that_hangs_keeps_nobody_from_waking(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)

    async def hangs(*_, **__):
        await asyncio.sleep(300)

    r.node.world.offloading.vault.drop = hangs
    await down(r, cold, OBJECT)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    r.check()


@pytest.mark.parametrize("wanted", [False, True])
def test_after_a_restart_too_what_is_left_on_nvme_keeps_nobody_from_waking(rig, wanted):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        await left_behind(rig(machine, tiers=TIERS), AWAY)

    run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        vault, cold = r.node.world.offloading.vault, PodUid("uid-cold")
        drop = vault.drop

        async def refused(artifact, place, **more):
            raise AWAY

        vault.drop = refused
        await r.recover()
        r.begin()
        await asyncio.sleep(10)
        if wanted:
            r.loop.operators.request_wake(cold, "a test")
            await r.until(cold, ACTIVE)
        else:
            vault.drop = drop
            await asyncio.sleep(100)
            assert r.node.seats[cold].saved.copies == {Tier.OBJECT}
        r.check()

    run_virtual(second(), 2000.0)
