"""What becomes of the state that a pod left, with a successor and without."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.artifacts.holds import DROP, LEFT
from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.errors import ConflictError
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.artifacts.reports import Kind
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    OBJECT,
    PARKED,
    TIERS,
    WAITING,
    app_of,
    down,
    reasons,
    two,
    when,
)
from tests.unit.nodeagent.succession import left, of, went


async def test_what_a_pod_leaves_goes_when_nobody_comes(rig):
    r = rig(tiers=TIERS, keep_left_s=100)
    _, artifact, _, telling = await left(r)
    await asyncio.sleep(90)
    assert artifact in r.machine.vault
    await asyncio.sleep(20)
    assert artifact not in r.machine.vault
    assert not any(key.startswith(LEFT) for key in r.machine.journal)
    telling.cancel()


@pytest.mark.parametrize(
    ("idle", "state", "lasts"),
    [(("object",), OBJECT, True), (("nvme",), OBJECT, False), (("object",), NVME, False)],
)
async def test_what_is_scaled_to_zero_is_kept_longer(rig, idle, state, lasts):
    r = rig(tiers=TIERS, keep_left_s=100, keep_scaled_s=1000)
    _, artifact, _, telling = await left(r, state, idle)
    await asyncio.sleep(110)
    assert (artifact in r.machine.vault) is lasts
    await asyncio.sleep(900)
    assert artifact not in r.machine.vault
    telling.cancel()


async def test_what_is_claimed_at_the_last_moment_stays(rig):
    r = rig(tiers=TIERS, keep_left_s=100)
    cold, artifact, _, telling = await left(r)
    lines, rival = r.loop.registry, PodUid("uid-rival")
    asked = lines.line

    async def line(namespace, uid, deadline):
        found = await asked(namespace, uid, deadline)
        await lines.claim(namespace, uid, ArtifactId(artifact), rival, deadline)
        return found

    lines.line = line
    await asyncio.sleep(200)
    assert artifact in r.machine.vault
    assert LEFT + artifact in r.machine.journal
    assert (await asked("default", cold, 1.0)).successor == rival
    telling.cancel()


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "by the agent before"])
async def test_nobody_can_claim_what_is_going(rig, begun):
    r = rig(tiers=TIERS, keep_left_s=100)
    cold, artifact, _, telling = await left(r)
    lines, claim = r.loop.registry, ("default", cold, ArtifactId(artifact))
    if begun:
        await lines.claim(*claim, cold, 1.0)
    drop, seen = r.node.world.offloading.vault.drop, []

    async def dropped(artifact, place, *, forget):
        with pytest.raises(ConflictError):
            await lines.claim(*claim, PodUid("uid-rival"), 1.0)
        seen.append(place)
        await drop(artifact, place, forget=forget)

    r.node.world.offloading.vault.drop = dropped
    telling.cancel()  # it ends once all is told
    await asyncio.sleep(150)
    assert seen
    assert artifact not in r.machine.vault
    telling = asyncio.ensure_future(r.loop.reports.run())
    await r.loop.reports.flush(10)
    line = await lines.line("default", cold, 1.0)
    assert (line.successor, bool(line.stopped)) == ("", True)
    telling.cancel()


async def test_a_container_that_starts_anew_outdates_what_it_left(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    r.machine.end_container(cold)
    await r.until(cold, WAITING)
    assert len(r.machine.vault) == 1
    r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    await when(lambda: r.machine.vault == {})
    r.check()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fault", ["restore-fails", "corrupt"])
async def test_a_state_outlives_a_successor_that_fails_to_go_on(rig, waits, fault):
    r = rig(tiers=TIERS)
    cold, artifact, (inner, _), telling = await left(r, NVME)
    r.machine.faults.add(fault)
    new = await r.seat("new", restore=of(cold, waits=waits))
    await when(lambda: "SeatFailed" in reasons(r))
    await r.until(new, WAITING)
    assert artifact in r.machine.vault
    r.machine.restart_container(new)
    r.loop.operators.request_wake(new, "a test")
    await r.until(new, ACTIVE, 200)
    assert (app_of(r, new).inner == inner) is waits
    assert len(went(r, new)) == (0 if waits else 1)
    r.check()
    telling.cancel()


@pytest.mark.parametrize("kind", [RestoreAs.TEMPLATE, RestoreAs.SUCCESSOR])
async def test_a_seat_that_is_written_down_before_it_has_run_has_a_state_of_its_own(rig, kind):
    r = rig(tiers=TIERS)
    _, artifact, (inner, _), telling = await left(r)
    new = await r.seat("new", restore=RestoreWish(artifact=artifact, kind=kind))
    await r.until(new, OBJECT)
    r.loop.operators.call_off(new)
    r.loop.operators.send_away(new, "a test", stays_away=True)
    r.loop.operators.ask_for_tier(new, Tier.RAM)
    await r.until(new, PARKED)
    await down(r, new)
    copied = kind is RestoreAs.TEMPLATE
    await when(lambda: (artifact in r.machine.vault) is copied)
    r.loop.operators.let_stay(new)
    r.loop.operators.request_wake(new, "a test")
    await r.until(new, ACTIVE)
    await asyncio.sleep(5)
    assert set(r.machine.vault) == ({artifact} if copied else set())
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    r.check()
    telling.cancel()


async def test_that_a_state_is_to_go_is_noted_before_its_successor_is_written_down(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    new = await r.seat("new", restore=of(cold))
    await r.until(new, OBJECT)
    # As if another node had brought it to NVMe, and this one had put it into the object store.
    r.node.seats[new].saved.may_drop = (Tier.NVME.value,)
    r.loop.operators.call_off(new)
    r.loop.operators.send_away(new, "a test", stays_away=True)
    r.loop.operators.ask_for_tier(new, Tier.RAM)
    await r.until(new, PARKED)
    journal, noted = r.node.world.journal, []
    put = journal.put

    def look(key, record, *, synced, late=False):
        if record.get("state") == SeatState.DUMPING.value:
            noted.append((record["borrowed"], DROP + artifact in r.machine.journal))
        return put(key, record, synced=synced)

    journal.put = look
    await down(r, new)
    assert noted[0] == (False, True)
    await when(lambda: artifact not in r.machine.vault)
    r.check()
    telling.cancel()


async def test_a_successor_that_ends_while_it_wakes_begins_by_its_command_and_not_where_it_was(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r, NVME)
    new = await r.seat("new", restore=of(cold))
    await when(lambda: (new, SeatState.WAKING) in r.seen.states)
    r.machine.end_container(new)
    await r.until(new, WAITING)
    assert artifact in r.machine.vault, "it is left to people"
    r.machine.restart_container(new)
    r.loop.operators.request_wake(new, "a test")
    await r.until(new, ACTIVE)
    assert len(went(r, new)) == 1
    r.check()
    telling.cancel()


async def test_nobody_goes_on_from_a_state_that_is_to_be_dropped_and_is_there_yet(rig):
    r = rig(tiers=TIERS, restore_wait_s=2)
    cold, artifact, _, telling = await left(r)
    r.machine.fault = lambda name: name == "drop-fails"
    r.loop.custody.void(artifact, "a test")
    new = await r.seat("new", restore=of(cold))
    late = await r.seat("late", restore=RestoreWish(artifact=artifact))
    await when(lambda: went(r, new) and went(r, late))
    assert "Adopted" not in reasons(r)
    assert artifact in r.machine.vault
    telling.cancel()


async def test_the_registry_knows_that_a_state_is_dropped_before_it_hears_that_its_pod_has_stopped(
    rig,
):
    r = rig(tiers=TIERS, keep_left_s=0)
    cold, _ = await two(r)
    r.node.world = replace(r.node.world, registry=r.loop.registry)
    r.machine.faults.add("end-hangs")
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: r.node.seats[cold].saved.artifact)
    r.node.seats[cold].ending.terminating = True
    r.machine.end_container(cold)
    r.loop.pod_gone(cold)
    await when(lambda: cold not in r.node.seats)
    told = [one.kind for _, one in sorted(r.loop.reports._queue.items())]
    assert told == [Kind.DROPPED, Kind.DROPPED, Kind.STOPPED]


async def test_a_state_that_was_brought_for_a_pod_that_ends_before_it_goes_on_is_kept_for_a_while(
    rig,
):
    r = rig(tiers=TIERS, keep_left_s=100)
    cold, artifact, _, telling = await left(r)
    # Another node's it is, brought to this one.
    r.loop.custody._become(replace(r.loop.custody.of(artifact), successor=None))
    new = await r.seat("new", restore=of(cold))
    await r.until(new, OBJECT)
    r.loop.operators.call_off(new)
    r.node.seats[new].ending.terminating = True
    r.machine.end_container(new)
    await r.until(new, WAITING)
    await asyncio.sleep(200)
    assert artifact in r.machine.vault, "its container may start again"
    r.loop.pod_gone(new)
    await when(lambda: new not in r.node.seats)
    await asyncio.sleep(20)
    assert artifact not in r.machine.vault
    assert not any(key.startswith(LEFT) for key in r.machine.journal)
    telling.cancel()


async def test_what_a_successor_on_this_node_is_parked_with_outlasts_what_was_left(rig):
    """Its claim ends the time that others have, and not its own."""
    r = rig(tiers=TIERS, keep_left_s=100)
    cold, artifact, (inner, _), telling = await left(r, NVME)
    room, r.node.park_budget = r.node.park_budget, 1
    new = await r.seat("new", restore=of(cold))
    await r.until(new, NVME)
    await asyncio.sleep(1000)
    assert r.state(new) is NVME
    assert r.machine.vault[artifact].places == {Tier.NVME}
    r.node.park_budget = room
    r.loop.kick()
    await r.until(new, ACTIVE)
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    await when(lambda: r.machine.vault == {})
    r.check()
    telling.cancel()
