"""Pods that go on from the saved states of others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace

import pytest

from kybernate.core.artifacts.grants import Grant
from kybernate.core.restores import RestoreAs, RestoreWish
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.ports import Line, ProcessState
from kybernate.testing.clock import run_virtual
from kybernate.testing.machine import Crash
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.left import LEFT, OUTLIVED
from nodeagent.reports import Kind
from nodeagent.seat import Seat
from tests.unit.nodeagent.below import (
    ACTIVE,
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


async def left(r, state=OBJECT):
    """A pod that was parked there and is gone; its UID and what it left."""
    telling = asyncio.ensure_future(r.loop.reports.run())
    cold, _ = await two(r)
    inner, ran = app_of(r, cold).inner, r.machine.ran.get(r.node.seats[cold].handle, 0)
    await down(r, cold, state)
    artifact = r.node.seats[cold].artifact
    r.node.seats[cold].doomed = True
    r.machine.end_container(cold)
    r.loop.pod_gone(cold)
    await when(lambda: cold not in r.node.seats)
    await r.loop.reports.flush(10)
    assert artifact in r.machine.vault
    return cold, artifact, (inner, ran), telling


def of(uid, **more):
    return RestoreWish(uid=uid, **more)


def went(r, uid):
    return [line for line in r.machine.log if line[:2] == ("go", uid)]


def test_a_successor_goes_on_where_the_other_was_and_never_executes_its_command(rig, proxy):
    async def main():
        for state in (OBJECT, NVME):
            r = rig(tiers=TIERS)
            cold, _, (inner, ran), telling = await left(r, state)
            new = await r.seat("new", restore=of(cold))
            await when(lambda r=r, new=new: new in r.machine.gates)
            await r.until(new, ACTIVE)
            assert (new, state) in r.seen.states
            app = app_of(r, new)
            assert (app.inner, app.cuda) == (inner, ProcessState.RUNNING)
            assert r.machine.ran[app.handle] > ran
            assert went(r, new) == []
            assert "Adopted" in reasons(r)
            await when(lambda r=r: r.machine.vault == {})
            p = proxy(r.loop)
            p.request(new)
            await asyncio.sleep(2)
            assert p.answered == {new: 1}
            r.check()
            telling.cancel()

    run_virtual(main())


def test_the_gpus_may_be_others(rig, groups):
    async def main():
        r = rig(tiers=TIERS)
        cold, _, _, telling = await left(r)
        new = await r.seat("new", groups["G1"], restore=of(cold))
        await r.until(new, OBJECT)
        assert r.node.seats[new].gpu_map == {"GPU-0": "GPU-1"}
        assert r.node.seats[new].held.keys() == {"GPU-1"}
        await r.until(new, ACTIVE)
        assert app_of(r, new).memory.keys() == {"GPU-1"}
        assert r.node.seats[new].gpu_map == {}
        r.check()
        telling.cancel()

    run_virtual(main())


def test_a_second_successor_is_refused_and_starts_anew(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, artifact, _, telling = await left(r)
        await r.until(await r.seat("new", restore=of(cold)), OBJECT)
        late = await r.seat("late", restore=RestoreWish(artifact=artifact))
        await r.until(late, ACTIVE)
        assert len(went(r, late)) == 1
        (said,) = [text for reason, text in r.seen.events if reason == "RestoreRefused"]
        assert "goes on with the state of pod uid-cold already" in said
        assert "started anew" in said
        r.check()
        telling.cancel()

    run_virtual(main())


def test_one_that_must_not_start_anew_is_kept_waiting(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, artifact, _, telling = await left(r)
        await r.until(await r.seat("new", restore=of(cold)), OBJECT)
        late = await r.seat("late", restore=RestoreWish(artifact=artifact, waits=True))
        await when(lambda: "RestoreRefused" in reasons(r))
        await asyncio.sleep(300)
        assert (r.state(late), went(r, late)) == (WAITING, [])
        telling.cancel()

    run_virtual(main())


def test_copies_need_no_claim_and_leave_the_state(rig, groups):
    async def main():
        r = rig(tiers=TIERS)
        _, artifact, (inner, _), telling = await left(r)
        wish = RestoreWish(artifact=artifact, kind=RestoreAs.TEMPLATE)
        copies = [await r.seat(name, groups["G1"], restore=wish) for name in ("x", "y")]
        for uid in copies:
            r.loop.call_for(uid, "a test")
            await r.until(uid, ACTIVE)
            assert app_of(r, uid).inner == inner
            r.loop.send_away(uid, "a test")
        assert artifact in r.machine.vault
        r.check()
        telling.cancel()

    run_virtual(main())


def test_nothing_is_claimed_while_the_other_may_run_on(rig):
    async def main():
        r = rig(tiers=TIERS, restore_wait_s=30)
        cold, _ = await two(r)
        await down(r, cold, OBJECT)
        new = await r.seat("new", restore=of(cold))
        await when(lambda: "RestoreWaits" in reasons(r))
        assert (r.state(new), went(r, new)) == (WAITING, [])
        await r.until(new, ACTIVE)
        assert len(went(r, new)) == 1
        assert "has stopped" in dict(r.seen.events)["RestoreRefused"]
        assert r.node.seats[cold].artifact in r.machine.vault
        r.check()

    run_virtual(main())


def test_another_namespaces_state_is_refused(rig):
    async def main():
        r = rig(tiers=TIERS)
        _, artifact, _, telling = await left(r)
        keeping = r.machine.vault.pop(artifact)
        foreign = artifact.replace("default/", "other/")
        r.machine.vault[foreign] = replace(keeping, facts={**keeping.facts, "namespace": "other"})
        wish = RestoreWish(artifact=foreign, kind=RestoreAs.TEMPLATE)
        new = await r.seat("new", restore=wish)
        await r.until(new, ACTIVE)
        assert "an ArtifactGrant there must let default" in dict(r.seen.events)["RestoreRefused"]
        assert len(went(r, new)) == 1
        telling.cancel()

    run_virtual(main())


def test_until_it_is_known_what_is_granted_anothers_state_is_waited_for(rig):
    async def main():
        r = rig(tiers=TIERS)
        _, artifact, _, telling = await left(r)
        keeping = r.machine.vault.pop(artifact)
        foreign = artifact.replace("default/", "other/")
        r.machine.vault[foreign] = replace(keeping, facts={**keeping.facts, "namespace": "other"})
        granted: list[Grant] = []

        def grants():
            if not granted:
                raise RetryableError("ArtifactGrants are not listed yet")
            return granted

        r.container = replace(r.container, grants=grants)
        new = await r.seat("new", restore=RestoreWish(artifact=foreign, kind=RestoreAs.TEMPLATE))
        await r.until(new, WAITING)
        await asyncio.sleep(30)
        assert r.node.seats[new].state is WAITING
        assert "not listed yet; trying again" in dict(r.seen.events)["RestoreWaits"]
        granted.append(Grant("other", ("default",), ("*",)))
        await r.until(new, ACTIVE)
        assert foreign in dict(r.seen.events)["Adopted"]
        assert "RestoreRefused" not in dict(r.seen.events)
        telling.cancel()

    run_virtual(main())


def test_what_a_pod_leaves_goes_when_nobody_comes(rig):
    async def main():
        r = rig(tiers=TIERS, keep_left_s=100)
        _, artifact, _, telling = await left(r)
        await asyncio.sleep(90)
        assert artifact in r.machine.vault
        await asyncio.sleep(20)
        assert artifact not in r.machine.vault
        assert not any(key.startswith(LEFT) for key in r.machine.journal)
        telling.cancel()

    run_virtual(main())


def test_what_is_claimed_at_the_last_moment_stays(rig):
    async def main():
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

    run_virtual(main())


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "by the agent before"])
def test_nobody_can_claim_what_is_going(rig, begun):
    async def main():
        r = rig(tiers=TIERS, keep_left_s=100)
        cold, artifact, _, telling = await left(r)
        lines, claim = r.loop.registry, ("default", cold, ArtifactId(artifact))
        if begun:
            await lines.claim(*claim, cold, 1.0)
        drop, seen = r.node.world.below.vault.drop, []

        async def dropped(artifact, place, *, forget):
            with pytest.raises(ConflictError):
                await lines.claim(*claim, PodUid("uid-rival"), 1.0)
            seen.append(place)
            await drop(artifact, place, forget=forget)

        r.node.world.below.vault.drop = dropped
        telling.cancel()  # it ends once all is told
        await asyncio.sleep(150)
        assert seen
        assert artifact not in r.machine.vault
        telling = asyncio.ensure_future(r.loop.reports.run())
        await r.loop.reports.flush(10)
        line = await lines.line("default", cold, 1.0)
        assert (line.successor, bool(line.stopped)) == ("", True)
        telling.cancel()

    run_virtual(main())


def test_a_container_that_starts_anew_outdates_what_it_left(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        await down(r, cold)
        r.machine.end_container(cold)
        await r.until(cold, WAITING)
        assert len(r.machine.vault) == 1
        r.machine.restart_container(cold)
        r.loop.call_for(cold, "a test")
        await r.until(cold, ACTIVE)
        await when(lambda: r.machine.vault == {})
        r.check()

    run_virtual(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_agent_that_is_restarted_in_between_goes_on(rig):
    """Killed at each write of its journal, from the successor's hello to its being parked."""
    points = 0
    for at in range(1, 40):
        done = _killed_at(rig, at)
        points += not done
        gc.collect()  # what the killed agent was about to begin, while this test takes it for fine
        if done:
            break
    assert 3 <= points < 39


def _killed_at(rig, at):
    """Whether it was never killed: the successor went on before so many writes."""
    machine, uids = None, {}

    async def before():
        nonlocal machine
        quiet()
        r = rig(tiers=TIERS)
        machine = r.machine
        cold, _, marks, telling = await left(r)
        uids.update(cold=cold, marks=marks)
        telling.cancel()
        machine.crash_at = machine.journal_writes + at
        uids["new"] = await r.seat("new", restore=of(cold))
        await r.until(uids["new"], OBJECT)
        machine.crash_at = None

    async def after():
        await asyncio.sleep(500)
        r = rig(machine=machine, tiers=TIERS)
        await r.recover()
        r.node.park_budget = 1 << 50
        r.begin()
        if "uid-new" not in r.node.seats:
            uids["new"] = await r.seat("new", restore=of(uids["cold"]))
        await r.until("uid-new", ACTIVE, 120)
        assert app_of(r, "uid-new").inner == uids["marks"][0]
        assert went(r, "uid-new") == []
        r.check()

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(before())
        return True
    machine.crash_at = None
    run_virtual(after())
    return False


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fault", ["restore-fails", "corrupt"])
def test_a_state_outlives_a_successor_that_fails_to_go_on(rig, waits, fault):
    async def main():
        r = rig(tiers=TIERS)
        cold, artifact, (inner, _), telling = await left(r, NVME)
        r.machine.faults.add(fault)
        new = await r.seat("new", restore=of(cold, waits=waits))
        await when(lambda: "SeatFailed" in reasons(r))
        await r.until(new, WAITING)
        assert artifact in r.machine.vault
        r.machine.restart_container(new)
        r.loop.call_for(new, "a test")
        await r.until(new, ACTIVE, 200)
        assert (app_of(r, new).inner == inner) is waits
        assert len(went(r, new)) == (0 if waits else 1)
        r.check()
        telling.cancel()

    run_virtual(main())


def test_a_successor_that_is_found_running_without_a_record_runs_on(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _, _, telling = await left(r)
        new = await r.seat("new", restore=of(cold))
        await r.until(new, ACTIVE)
        seat = r.node.seats.pop(new)
        found = replace_seat(seat, of(cold))
        r.loop.add(found)
        r.machine.hello(new)
        await r.until(new, ACTIVE)
        r.loop.send_away(new, "a test")
        await r.until(new, PARKED)
        r.loop.call_for(new, "a test")
        await r.until(new, ACTIVE)
        assert went(r, new) == []
        r.check()
        telling.cancel()

    run_virtual(main())


def replace_seat(seat, wish):
    """The same pod's seat, as an agent without a journal makes it."""
    made = Seat(seat.identity, seat.bound_at, seat.since)
    made.pod_ip, made.restore = seat.pod_ip, wish
    return made


@pytest.mark.parametrize("error", [RefusedError("never"), NotFoundError("not found")])
def test_a_seat_that_was_handed_a_state_is_not_started_anew_for_its_own_search(rig, error):
    async def main():
        r = rig(tiers=TIERS, restore_wait_s=0.001)
        cold, artifact, (inner, _), telling = await left(r)
        handed = asyncio.Event()

        async def find(seat):
            await handed.wait()
            raise error

        r.loop.adoptions._find = find
        new = await r.seat("new", restore=of(cold))
        await when(lambda: r.node.seats[new].connected)
        await r.loop.adoptions.adopt(r.node.seats[new], artifact, Tier.OBJECT)
        handed.set()
        await r.until(new, ACTIVE)
        assert (app_of(r, new).inner, went(r, new)) == (inner, [])
        assert "RestoreRefused" not in reasons(r)
        r.check()
        telling.cancel()

    run_virtual(main())


@pytest.mark.parametrize("kind", [RestoreAs.TEMPLATE, RestoreAs.CLONE])
def test_no_pod_ends_for_a_copy_of_it(rig, kind):
    async def main():
        r = rig(tiers=TIERS)
        seat = r.node.seats[await r.seat("new", restore=of("uid-a", kind=kind))]
        assert "leave out its kyb.ai/restore-as" in r.loop.adoptions.awaits(seat, "uid-a")

    run_virtual(main())


@pytest.mark.parametrize("kind", [RestoreAs.TEMPLATE, RestoreAs.SUCCESSOR])
def test_a_seat_that_is_written_down_before_it_has_run_has_a_state_of_its_own(rig, kind):
    async def main():
        r = rig(tiers=TIERS)
        _, artifact, (inner, _), telling = await left(r)
        new = await r.seat("new", restore=RestoreWish(artifact=artifact, kind=kind))
        await r.until(new, OBJECT)
        r.loop.call_off(new)
        r.loop.send_away(new, "a test", stays_away=True)
        r.loop.ask_for_tier(new, Tier.RAM)
        await r.until(new, PARKED)
        await down(r, new)
        copied = kind is RestoreAs.TEMPLATE
        await when(lambda: (artifact in r.machine.vault) is copied)
        r.loop.let_stay(new)
        r.loop.call_for(new, "a test")
        await r.until(new, ACTIVE)
        await asyncio.sleep(5)
        assert set(r.machine.vault) == ({artifact} if copied else set())
        assert (app_of(r, new).inner, went(r, new)) == (inner, [])
        r.check()
        telling.cancel()

    run_virtual(main())


def test_that_a_state_is_to_go_is_noted_before_its_successor_is_written_down(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, artifact, _, telling = await left(r)
        new = await r.seat("new", restore=of(cold))
        await r.until(new, OBJECT)
        # As if another node had brought it to NVMe, and this one had put it into the object store.
        r.node.seats[new].may_drop = (Tier.NVME.value,)
        r.loop.call_off(new)
        r.loop.send_away(new, "a test", stays_away=True)
        r.loop.ask_for_tier(new, Tier.RAM)
        await r.until(new, PARKED)
        journal, noted = r.node.world.journal, []
        put = journal.put

        def look(key, record, *, synced):
            if record.get("state") == SeatState.DUMPING.value:
                noted.append((record["borrowed"], OUTLIVED + artifact in r.machine.journal))
            return put(key, record, synced=synced)

        journal.put = look
        await down(r, new)
        assert noted[0] == (False, True)
        await when(lambda: artifact not in r.machine.vault)
        r.check()
        telling.cancel()

    run_virtual(main())


def test_a_successor_that_ends_while_it_wakes_begins_by_its_command_and_not_where_it_was(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, artifact, _, telling = await left(r, NVME)
        new = await r.seat("new", restore=of(cold))
        await when(lambda: (new, SeatState.WAKING) in r.seen.states)
        r.machine.end_container(new)
        await r.until(new, WAITING)
        assert artifact in r.machine.vault, "it is left to people"
        r.machine.restart_container(new)
        r.loop.call_for(new, "a test")
        await r.until(new, ACTIVE)
        assert len(went(r, new)) == 1
        r.check()
        telling.cancel()

    run_virtual(main())


def test_nobody_goes_on_from_a_state_that_is_to_be_dropped_and_is_there_yet(rig):
    async def main():
        r = rig(tiers=TIERS, restore_wait_s=2)
        cold, artifact, _, telling = await left(r)
        r.machine.fault = lambda name: name == "drop-fails"
        r.loop.dumps.drop_later(artifact, "a test")
        new = await r.seat("new", restore=of(cold))
        late = await r.seat("late", restore=RestoreWish(artifact=artifact))
        await when(lambda: went(r, new) and went(r, late))
        assert "Adopted" not in reasons(r)
        assert artifact in r.machine.vault
        telling.cancel()

    run_virtual(main())


def test_the_registry_knows_that_a_state_is_dropped_before_it_hears_that_its_pod_has_stopped(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.node.world = r.loop.dumps._world = replace(r.node.world, reports=r.loop.reports)
        r.machine.faults.add("end-hangs")
        r.loop.ask_for_tier(cold, Tier.NVME)
        await when(lambda: r.node.seats[cold].artifact)
        r.node.seats[cold].doomed = True
        r.machine.end_container(cold)
        r.loop.pod_gone(cold)
        await when(lambda: cold not in r.node.seats)
        told = [one.kind for _, one in sorted(r.loop.reports._queue.items())]
        assert told == [Kind.DROPPED, Kind.DROPPED, Kind.STOPPED]

    run_virtual(main())


class Index:
    """A registry in which the pod's newest state changes before its stop is known."""

    def __init__(self, newest):
        self.names, self.claims = iter(newest), []

    async def newest(self, namespace, uid, deadline):
        return next(self.names)

    async def line(self, namespace, uid, deadline):
        return Line(stopped="agent")

    async def claim(self, namespace, uid, artifact, successor, deadline, *, again=False):
        self.claims.append(artifact)


def test_what_is_claimed_is_the_newest_once_the_other_has_stopped(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, artifact, _, telling = await left(r)
        before = ArtifactId(f"{artifact.partition('@')[0]}@20260131T110000Z-00000009")
        r.machine.vault[before] = r.machine.vault[artifact]
        index = Index([before, artifact, artifact, artifact])
        r.node.world = replace(r.node.world, registry=index)
        r.loop.claims._registry = r.loop.adoptions._newest._registry = index
        new = await r.seat("new", restore=of(cold))
        await r.until(new, OBJECT)
        assert (index.claims, r.node.seats[new].artifact) == ([artifact], artifact)
        telling.cancel()

    run_virtual(main())


def test_a_state_that_was_brought_for_a_pod_that_ends_before_it_goes_on_is_kept_for_a_while(rig):
    async def main():
        r = rig(tiers=TIERS, keep_left_s=100)
        cold, artifact, _, telling = await left(r)
        r.loop.left._forget(r.loop.left._all[artifact])  # another node's it is, brought to this one
        new = await r.seat("new", restore=of(cold))
        await r.until(new, OBJECT)
        r.loop.call_off(new)
        r.node.seats[new].doomed = True
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

    run_virtual(main())
