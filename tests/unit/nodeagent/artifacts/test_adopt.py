"""Pods that go on from the saved states of others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from kybernate.core.artifacts.grants import Grant
from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.ports import ProcessState
from kybernate.types import NodeName, SeatState, Tier
from nodeagent.kube.pods import PodFacts
from nodeagent.operations.wire import seat_message
from nodeagent.seat.node import SEAT
from nodeagent.seat.parts.saved import Begins
from nodeagent.seat.record import Seat, from_record
from proxy.agents import seat_info
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash
from tests.unit.nodeagent.offloading import (
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
from tests.unit.nodeagent.succession import left, of, went


async def test_one_that_the_driver_does_not_move_to_its_group_is_started_again(rig, groups):
    """The GPUs that it comes from are another group's: it may never wait for them."""
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r, NVME)
    r.machine.faults.add("remap-refused")
    new = await r.seat("new", group=groups["G1"], restore=of(cold))
    await when(lambda: new in r.machine.gates)
    await when(lambda: "SeatFailed" in reasons(r))
    assert "RemapRefused" not in reasons(r)
    assert r.node.seats[new].identity.gpus == groups["G1"].gpus
    telling.cancel()


async def test_a_successor_goes_on_where_the_other_was_and_never_executes_its_command(rig, proxy):
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
        told = seat_info(NodeName("n1"), seat_message(r.node.seats[new]))
        assert told.predecessor == cold, "proxies ask that one no more"
        p = proxy(r.loop)
        p.request(new)
        await asyncio.sleep(2)
        assert p.answered == {new: 1}
        r.check()
        telling.cancel()


async def test_a_successor_that_is_awake_before_its_address_is_known_is_asked_then(rig, proxy):
    """The kubelet tells of a pod's address once a second, and a wake takes less."""
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    new = await r.seat("new", restore=of(cold))
    seat = r.node.seats[new]
    seat.contact.moved("")
    await r.until(new, ACTIVE)
    p = proxy(r.loop)
    p.request(new)
    await asyncio.sleep(1)
    assert seat.contact.address == ""
    r.loop.pod_changed(facts_of(seat))
    await asyncio.sleep(2)
    assert seat.contact.address == "10.0.0.1:8000"
    r.check()
    telling.cancel()


def facts_of(seat):
    """What the watch shows of its pod, now with an address."""
    return PodFacts(
        ref=seat.identity.pod,
        resource=seat.identity.resource,
        container=seat.identity.container,
        group=seat.identity.group,
        assigned_at=0.0,
        seat=seat.identity.name,
        model=seat.identity.model,
        vram=None,
        image=seat.identity.image,
        port=seat.identity.port,
        has_args=False,
        ip="10.0.0.1",
        deleting=False,
        over=False,
    )


def another(container, field, value):
    return replace(container, target=replace(container.target, **{field: value}))


async def test_the_gpus_may_be_others(rig, groups):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    new = await r.seat("new", groups["G1"], restore=of(cold))
    await r.until(new, OBJECT)
    assert r.node.seats[new].tree.gpu_map == {"GPU-0": "GPU-1"}
    assert r.node.seats[new].tree.held.keys() == {"GPU-1"}
    await r.until(new, ACTIVE)
    assert app_of(r, new).memory.keys() == {"GPU-1"}
    assert r.node.seats[new].tree.gpu_map == {}
    r.check()
    telling.cancel()


async def test_from_group_to_group_of_a_node_it_takes_a_park_and_the_pods_deletion(rig, groups):
    """What an agent says that is asked to move a seat to a successor on its own node."""

    r = rig(tiers=TIERS)
    telling = asyncio.ensure_future(r.loop.reports.run())
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    new = await r.seat("new", groups["G1"], restore=of(cold, waits=True))
    await asyncio.sleep(5)
    assert r.state(new) is WAITING, "the one runs yet, or may"
    await down(r, cold)
    await asyncio.sleep(5)
    assert r.state(new) is WAITING, "it may wake yet"
    r.node.seats[cold].ending.terminating = True
    r.machine.end_container(cold)
    r.loop.pod_gone(cold)
    await r.until(new, ACTIVE)
    assert (app_of(r, new).inner, app_of(r, new).memory.keys()) == (inner, {"GPU-1"})
    assert went(r, new) == []
    r.check()
    telling.cancel()


@pytest.mark.parametrize("state", [OBJECT, NVME])
@pytest.mark.parametrize(
    "error", [RetryableError("away"), OSError(5, "Input/output error")], ids=["away", "unreadable"]
)
async def test_what_can_not_be_told_of_its_container_is_asked_again(rig, state, error):
    r = rig(tiers=TIERS)
    cold, _, (inner, _), telling = await left(r, state)
    new, asked = await r.seat("new", restore=of(cold)), []
    sound = r.node.world.offloading

    async def into(seat):
        if seat.saved.borrowed and seat.saved.begins is Begins.ADOPTED and len(asked) < 3:
            asked.append(seat.state)
            raise error
        return await sound.into(seat)

    object.__setattr__(r.node.world, "offloading", replace(sound, into=into))
    await r.until(new, ACTIVE)
    assert len(asked) == 3
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    assert "SeatFailed" not in reasons(r)
    r.check()
    telling.cancel()


async def test_one_that_must_not_start_anew_is_kept_waiting(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    await r.until(await r.seat("new", restore=of(cold)), OBJECT)
    late = await r.seat("late", restore=RestoreWish(artifact=artifact, waits=True))
    await when(lambda: "RestoreRefused" in reasons(r))
    await asyncio.sleep(300)
    assert (r.state(late), went(r, late)) == (WAITING, [])
    telling.cancel()


async def test_a_pod_of_a_template_starts_from_what_that_has_then(rig, groups):
    r = rig(tiers=TIERS)
    _, artifact, (inner, _), telling = await left(r)
    has = {}

    def templates(namespace, name):
        if (namespace, name) not in has:
            raise NotFoundError(f"SnapshotTemplate {namespace}/{name} has no artifact yet")
        return has[namespace, name]

    object.__setattr__(r.node.world, "templates", templates)
    wish = RestoreWish(template="birch", kind=RestoreAs.TEMPLATE)
    # One that may start cold waits for no template to be made.
    fresh = await r.seat("fresh", restore=wish)
    await when(lambda: "RestoreRefused" in reasons(r))
    assert "birch has no artifact yet" in dict(r.seen.events)["RestoreRefused"]
    await r.until(fresh, ACTIVE)
    late = await r.seat("late", groups["G1"], restore=replace(wish, waits=True))
    await asyncio.sleep(300)
    assert (r.state(late), went(r, late)) == (WAITING, [])
    has["default", "birch"] = artifact
    await r.until(late, ACTIVE, 200)
    assert app_of(r, late).inner == inner
    assert artifact in r.machine.vault, "it is there for the next one"
    r.check()
    telling.cancel()


async def test_copies_need_no_claim_and_leave_the_state(rig, groups):
    r = rig(tiers=TIERS)
    _, artifact, (inner, _), telling = await left(r)
    wish = RestoreWish(artifact=artifact, kind=RestoreAs.TEMPLATE)
    copies = [await r.seat(name, groups["G1"], restore=wish) for name in ("x", "y")]
    for uid in copies:
        r.loop.operators.request_wake(uid, "a test")
        await r.until(uid, ACTIVE)
        assert app_of(r, uid).inner == inner
        assert not seat_info(NodeName("n1"), seat_message(r.node.seats[uid])).predecessor
        r.loop.operators.send_away(uid, "a test")
    assert artifact in r.machine.vault
    r.check()
    telling.cancel()


async def test_another_namespaces_state_is_refused(rig):
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


@pytest.mark.parametrize(
    ("field", "other", "said"),
    [
        ("driver", "570.1", "on driver 580.95.05"),
        ("gpu_product", "NVIDIA A100", "this node has NVIDIA A100"),
        ("kernel", "7.0.1", "this node runs 7.0.1"),
    ],
)
async def test_another_machines_state_is_refused_and_stays(rig, field, other, said):
    r = rig(tiers=TIERS)
    reason = {"gpu_product": "gpus"}.get(field, field)
    counted = refused_for(reason)
    cold, artifact, _, telling = await left(r)
    r.container = another(r.container, field, other)
    new = await r.seat("new", restore=of(cold))
    await r.until(new, ACTIVE)
    refused = dict(r.seen.events)["RestoreRefused"]
    assert said in refused
    assert "started again" in refused
    assert refused_for(reason) == counted + 1
    assert len(went(r, new)) == 1
    assert artifact in r.machine.vault
    telling.cancel()


def refused_for(reason):
    return REGISTRY.get_sample_value("kyb_agent_restores_refused_total", {"reason": reason}) or 0


async def test_a_successor_whose_node_gets_another_driver_keeps_the_state_until_it_has_the_old(rig):
    r = rig(tiers=TIERS)
    cold, artifact, (inner, _), telling = await left(r, NVME)
    before = r.container
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].state is SeatState.ADOPTING)
    r.container = another(before, "driver", "570.1")
    await asyncio.sleep(100)
    assert (r.state(new), artifact in r.machine.vault) == (NVME, True)
    assert "make this node as it was" in dict(r.seen.events)["RestoreFailed"]
    r.container = before
    await r.until(new, ACTIVE)
    assert app_of(r, new).inner == inner
    assert went(r, new) == []
    r.check()
    telling.cancel()


async def test_until_it_is_known_what_is_granted_anothers_state_is_waited_for(rig):
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


async def test_a_successor_that_is_found_running_without_a_record_runs_on(rig):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    new = await r.seat("new", restore=of(cold))
    await r.until(new, ACTIVE)
    seat = r.node.seats.pop(new)
    found = replace_seat(seat, of(cold))
    r.loop.add(found)
    r.machine.hello(new)
    await r.until(new, ACTIVE)
    r.loop.operators.send_away(new, "a test")
    await r.until(new, PARKED)
    r.loop.operators.request_wake(new, "a test")
    await r.until(new, ACTIVE)
    assert went(r, new) == []
    r.check()
    telling.cancel()


def replace_seat(seat, wish):
    """The same pod's seat, as an agent without a journal makes it."""
    made = Seat(seat.identity, seat.history.bound_at, seat.history.since)
    made.contact.pod_ip, made.wishes.restore = seat.contact.pod_ip, wish
    return made


@pytest.mark.parametrize("error", [RefusedError("never"), NotFoundError("not found")])
async def test_a_seat_that_was_handed_a_state_is_not_started_anew_for_its_own_search(rig, error):
    r = rig(tiers=TIERS, restore_wait_s=0.001)
    cold, artifact, (inner, _), telling = await left(r)
    handed = asyncio.Event()

    async def find(seat):
        await handed.wait()
        raise error

    r.loop.adoptions._find = find
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].contact.connected)
    await r.loop.adoptions.adopt(r.node.seats[new], artifact, Tier.OBJECT)
    handed.set()
    await r.until(new, ACTIVE)
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    assert "RestoreRefused" not in reasons(r)
    r.check()
    telling.cancel()


@pytest.mark.parametrize("error", [RefusedError("never"), NotFoundError("not found")])
async def test_a_seat_is_not_started_anew_while_it_is_being_handed_a_state(rig, error):
    """Else the claim is its own, and the state goes once the workload runs without it."""

    r = rig(tiers=TIERS, restore_wait_s=0.001)
    cold, artifact, (inner, _), telling = await left(r)
    claimed, claims = asyncio.Event(), r.loop.adoptions._claims
    claim = claims.claim

    async def find(seat):
        await claimed.wait()
        raise error

    async def answered_late(*asked, **more):
        home = await claim(*asked, **more)
        claimed.set()
        await asyncio.sleep(5)
        return home

    r.loop.adoptions._find, claims.claim = find, answered_late
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].contact.connected)
    handed = r.loop.adoptions.adopt(r.node.seats[new], artifact, Tier.OBJECT)
    await asyncio.gather(handed, return_exceptions=True)
    await r.until(new, ACTIVE)
    assert not r.machine.breaches
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    assert "RestoreRefused" not in reasons(r)
    r.check()
    telling.cancel()


async def test_a_pod_that_goes_while_its_claim_is_made_leaves_no_record(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    claimed, claims = asyncio.Event(), r.loop.adoptions._claims
    claim = claims.claim

    async def find(seat):
        await asyncio.sleep(3600)

    async def answered_late(*asked, **more):
        home = await claim(*asked, **more)
        claimed.set()
        await asyncio.sleep(5)
        return home

    r.loop.adoptions._find, claims.claim = find, answered_late
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].contact.connected)
    adopting = r.loop.adoptions.adopt(r.node.seats[new], artifact, Tier.OBJECT)
    handed = asyncio.ensure_future(adopting)
    await claimed.wait()
    r.machine.end_container(new)
    r.loop.pod_gone(new)
    await when(lambda: new not in r.node.seats)
    with pytest.raises(RefusedError, match="is gone"):
        await handed
    assert SEAT + new not in r.machine.journal
    telling.cancel()


async def test_a_container_that_ends_while_it_is_told_continues_from_nothing(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    telling_it, shut = asyncio.Event(), r.loop.offload.gates.shut

    async def find(seat):
        await asyncio.sleep(3600)

    async def shut_late(seat, *port):
        await shut(seat, *port)
        telling_it.set()
        await asyncio.sleep(5)

    r.loop.adoptions._find, r.loop.offload.gates.shut = find, shut_late
    new = await r.seat("new", restore=of(cold))
    seat = r.node.seats[new]
    await when(lambda: seat.contact.connected)
    handed = asyncio.ensure_future(r.loop.adoptions.adopt(seat, artifact, Tier.OBJECT))
    await telling_it.wait()
    assert seat.state is SeatState.ADOPTING
    r.machine.end_container(new)
    await when(lambda: seat.state is SeatState.WAITING)
    with pytest.raises(RetryableError, match="has ended"):
        await handed
    assert seat.state is SeatState.WAITING
    telling.cancel()


async def test_a_seat_that_is_adopting_is_recorded_as_earlier_releases_do(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    r.loop.offload.gates.shut = lambda *_: asyncio.sleep(3600)
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].state is SeatState.ADOPTING)
    record = r.machine.journal[SEAT + new]
    assert (record["state"], record["begins"]) == ("waiting", "adopting")
    read = from_record(record)
    assert (read.state, read.saved.artifact) == (SeatState.ADOPTING, artifact)
    assert read.awaits_state
    telling.cancel()


async def test_no_record_of_its_container_s_end_adopts_a_state_without_a_name(rig):
    """An agent that was killed after such a record would look for that, and start it anew."""
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    r.loop.offload.gates.shut = lambda *_: asyncio.sleep(3600)
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].state is SeatState.ADOPTING)
    r.machine.end_container(new)
    await when(lambda: r.node.seats[new].state is SeatState.WAITING)
    older = [record for key, record in r.machine.written if key == SEAT + new and record]
    records = (*older, r.machine.journal[SEAT + new])
    adopting = [record for record in records if record["begins"] == "adopting"]
    assert adopting
    assert all(record["artifact"] for record in adopting)
    telling.cancel()


@pytest.mark.parametrize("kind", [RestoreAs.TEMPLATE, RestoreAs.CLONE])
async def test_no_pod_ends_for_a_copy_of_it(rig, kind):
    r = rig(tiers=TIERS)
    seat = r.node.seats[await r.seat("new", restore=of("uid-a", kind=kind))]
    assert "leave out its kyb.ai/restore-as" in r.loop.adoptions.awaits(seat, "uid-a")
