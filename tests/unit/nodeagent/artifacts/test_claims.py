"""A successor that has claimed a state, before it goes on from it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.errors import DeadlineError
from kybernate.ports import Line
from kybernate.types import ArtifactId, PodRef, PodUid
from nodeagent.artifacts.succession import UNTOLD, outlast_boot
from nodeagent.kube.replacement import Replacements
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    OBJECT,
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


async def deaf(*_):
    raise OSError("TCP can't be held back")


async def test_one_whose_container_ends_before_it_goes_on_does_so_in_the_next(rig):
    r = rig(tiers=TIERS)
    cold, _, (inner, _), telling = await left(r)
    shut, r.loop.offload.gates.shut = r.loop.offload.gates.shut, deaf
    new = await r.seat("new", restore=of(cold))
    seat = r.node.seats[new]
    await when(lambda: seat.saved.claimed)
    r.loop.life.end(seat)
    await asyncio.sleep(5)
    assert "RestoreRefused" not in reasons(r), "its next container would begin by its command"
    r.machine.end_container(new)
    await when(lambda: seat.tree.init is None)
    r.loop.offload.gates.shut = shut
    r.machine.restart_container(new)
    await r.until(new, ACTIVE, 200)
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    r.check()
    telling.cancel()


async def gone(r, uid):
    r.node.seats[uid].ending.terminating = True
    r.machine.end_container(uid)
    r.loop.pod_gone(uid)
    await when(lambda: uid not in r.node.seats)


@pytest.mark.parametrize(
    ("how", "state"),
    [("claimed", OBJECT), ("claimed", NVME), ("unheard", OBJECT), ("parked", OBJECT)],
)
async def test_who_is_gone_before_it_went_on_hands_its_claim_to_the_next(
    rig, monkeypatch, state, how
):
    r = rig(tiers=TIERS)
    cold, artifact, (inner, _), telling = await left(r, state)
    registry = r.loop.registry
    claim = registry.claim

    async def unheard(*asked, **more):
        await claim(*asked, **more)
        raise DeadlineError("no answer")

    if how == "claimed":
        monkeypatch.setattr(r.loop.offload.gates, "shut", deaf)
    elif how == "unheard":
        monkeypatch.setattr(registry, "claim", unheard)
    new = await r.seat("new", restore=of(cold))
    if how == "parked":
        await r.until(new, state)
        await gone(r, new)
    third = await r.seat("third", restore=of(cold))
    if how != "parked":
        await when(lambda: registry._get("default", cold).successor == new)
        await asyncio.sleep(5)
        assert (r.state(third), went(r, third)) == (WAITING, []), "the other may go on yet"
        await gone(r, new)
        monkeypatch.undo()
    await r.until(third, ACTIVE)
    assert (app_of(r, third).inner, went(r, third)) == (inner, [])
    await when(lambda: artifact not in r.machine.vault)
    r.check()
    telling.cancel()


async def test_who_went_on_hands_nothing_back(rig):
    r = rig(tiers=TIERS, restore_wait_s=3.0)
    cold, artifact, _, telling = await left(r)
    keeping = r.machine.vault[artifact]
    new = await r.seat("new", restore=of(cold))
    await r.until(new, ACTIVE)
    await when(lambda: artifact not in r.machine.vault)
    r.machine.vault[artifact] = keeping  # as if people had kept it
    await gone(r, new)
    await asyncio.sleep(1)
    line = await r.loop.registry.line("default", cold, 1.0)
    assert line.successor == new
    third = await r.seat("third", restore=of(cold))
    await r.until(third, ACTIVE)
    assert len(went(r, third)) == 1
    telling.cancel()


async def test_who_may_have_gone_on_before_a_boot_hands_nothing_back(rig, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    monkeypatch.setattr(r.loop.offload.gates, "shut", deaf)
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].saved.claimed)
    pod = r.node.seats[new].identity.pod
    record = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
    r.loop.succession.load({f"{UNTOLD}{new}": record})
    await gone(r, new)
    await r.loop.reports.flush(10)
    line = await r.loop.registry.line("default", cold, 1.0)
    assert line.successor == new
    telling.cancel()


async def test_one_that_starts_anew_keeps_its_claim_and_the_state_stays_until_it_has_gone(rig):
    r = rig(tiers=TIERS, restore_wait_s=3.0, keep_left_s=20.0)
    cold, artifact, _, telling = await left(r)
    r.loop.offload.gates.shut = deaf
    new = await r.seat("new", restore=of(cold))
    await when(lambda: "RestoreRefused" in reasons(r))
    await when(lambda: r.node.seats[new].tree.init is None)
    r.machine.restart_container(new)
    await r.until(new, ACTIVE)
    assert len(went(r, new)) == 1
    other = await r.seat("other", restore=of(cold))
    await when(lambda: reasons(r).count("RestoreRefused") == 2)
    await asyncio.sleep(1000)  # the state would be dropped long since
    line = await r.loop.registry.line("default", cold, 1.0)
    assert (line.successor, artifact in r.machine.vault) == (new, True)
    assert r.node.seats[other].saved.claimed == ""
    r.node.seats[new].ending.terminating = True
    r.machine.end_container(new)
    r.loop.pod_gone(new)
    await when(lambda: new not in r.node.seats)
    await asyncio.sleep(15)
    assert artifact in r.machine.vault, "somebody may release the claim yet"
    await asyncio.sleep(1000)
    assert artifact not in r.machine.vault
    r.check()
    telling.cancel()


async def test_a_second_successor_is_refused_and_starts_anew(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    await r.until(await r.seat("new", restore=of(cold)), OBJECT)
    late = await r.seat("late", restore=RestoreWish(artifact=artifact))
    await r.until(late, ACTIVE)
    assert len(went(r, late)) == 1
    (said,) = [text for reason, text in r.seen.events if reason == "RestoreRefused"]
    assert "continues with the state of pod uid-cold already" in said
    assert "started again" in said
    r.check()
    telling.cancel()


async def test_nothing_is_claimed_while_the_other_may_run_on(rig):
    r = rig(tiers=TIERS, restore_wait_s=30)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    new = await r.seat("new", restore=of(cold))
    await when(lambda: "RestoreWaits" in reasons(r))
    assert (r.state(new), went(r, new)) == (WAITING, [])
    await r.until(new, ACTIVE)
    assert len(went(r, new)) == 1
    assert "has stopped" in dict(r.seen.events)["RestoreRefused"]
    assert r.node.seats[cold].saved.artifact in r.machine.vault
    r.check()


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


async def test_what_is_claimed_is_the_newest_once_the_other_has_stopped(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    before = ArtifactId(f"{artifact.partition('@')[0]}@20260131T110000Z-00000009")
    r.machine.vault[before] = r.machine.vault[artifact]
    index = Index([before, artifact, artifact, artifact])
    r.node.world = replace(r.node.world, registry=index)
    r.loop.claims._registry = r.loop.adoptions._newest._registry = index
    new = await r.seat("new", restore=of(cold))
    await r.until(new, OBJECT)
    assert (index.claims, r.node.seats[new].saved.artifact) == ([artifact], artifact)
    telling.cancel()


def older(r, artifact):
    """A state of the same pod from before, as good as its newest."""
    before = ArtifactId(f"{artifact.partition('@')[0]}@20250131T110000Z-00000009")
    r.machine.vault[before] = r.machine.vault[artifact]
    return before


async def test_an_older_state_is_nobodys_to_go_on_from_in_its_pods_place(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    new = await r.seat("new", restore=RestoreWish(artifact=older(r, artifact)))
    await r.until(new, ACTIVE)
    assert len(went(r, new)) == 1, "it starts again"
    (said,) = [text for reason, text in r.seen.events if reason == "RestoreRefused"]
    assert f"older than {artifact}" in said
    assert "kyb.ai/restore-as: template" in said
    line = await r.loop.registry.line("default", cold, 1.0)
    assert line.successor == "", "nobody has the claim"
    telling.cancel()


async def test_an_older_state_is_started_as_a_copy_by_its_name(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    wish = RestoreWish(artifact=older(r, artifact), kind=RestoreAs.TEMPLATE)
    new = await r.seat("new", restore=wish)
    await r.until(new, ACTIVE)
    assert went(r, new) == []
    line = await r.loop.registry.line("default", cold, 1.0)
    assert line.successor == ""
    telling.cancel()


async def test_a_pod_that_its_kubelet_failed_has_stopped_once_nothing_of_it_runs(rig):
    """As after a reboot, or with a lost journal: of one that has a seat its end is told."""
    r = rig(tiers=TIERS)
    telling = [asyncio.ensure_future(one.run()) for one in (r.loop.reports, r.loop.succession)]
    cold, hot = await two(r)
    ended = PodRef("default", "rebooted", PodUid("uid-rebooted"))
    runs = r.node.seats.pop(hot).identity.pod
    for pod in (ended, runs, r.node.seats[cold].identity.pod):
        r.loop.succession.failed(pod, "its kubelet has failed it")

    async def stopped(uid):
        return bool((await r.loop.registry.line("default", uid, 1.0)).stopped)

    await asyncio.sleep(100)
    assert await stopped(ended.uid)
    assert not await stopped(cold), "its seat tells it"
    assert not await stopped(hot), "its successor would run beside it"
    r.machine.end_container(hot)
    await asyncio.sleep(10)
    assert await stopped(hot)
    for one in telling:
        one.cancel()


def test_that_a_failed_pod_has_stopped_is_told_though_the_agent_was_killed_before(rig):
    """It remembers none of them: its watch lists all pods at its start."""
    machine, known = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30}), []

    async def agent(*, killed):
        r = rig(machine, tiers=TIERS)
        if killed:
            _, hot = await two(r)
            known.append(r.node.seats.pop(hot).identity.pod)
        await r.recover()
        (pod,) = known
        r.node.seats.pop(pod.uid, None)
        runs = [one.run() for one in (r.loop.reports, r.loop.succession)]
        telling = [asyncio.ensure_future(one) for one in runs]
        succession = r.loop.succession
        watched = Replacements(SimpleNamespace(), succession.failed, succession.pod_ended)
        watched.event("ADDED", failed_pod(pod))
        await asyncio.sleep(100)
        assert not (await r.loop.registry.line(pod.namespace, pod.uid, 1.0)).stopped
        if killed:
            return
        machine.end_container(pod.uid)
        await asyncio.sleep(10)
        assert (await r.loop.registry.line(pod.namespace, pod.uid, 1.0)).stopped
        for one in telling:
            one.cancel()

    run_virtual(agent(killed=True))
    run_virtual(agent(killed=False), start=5000.0)


def test_that_pods_of_before_a_boot_have_stopped_is_told_though_nothing_of_them_is_left(rig):
    """A StatefulSet deletes a pod that its kubelet has failed at once, before the node's agent
    runs. One that comes again after the boot is not told of. The agent is killed meanwhile."""
    gpus, known = {"GPU-0": 80 << 30, "GPU-1": 80 << 30}, {}
    ran, booted = Machine(gpus), Machine(gpus)

    async def before():
        r = rig(ran, tiers=TIERS)
        for name, uid in zip(("gone", "again"), await two(r), strict=True):
            known[name] = r.node.seats[uid].identity.pod

    async def stopped(r):
        line = r.loop.registry.line
        return {
            name for name, pod in known.items() if (await line(pod.namespace, pod.uid, 1.0)).stopped
        }

    async def after(*, killed):
        r = rig(booted, tiers=TIERS)
        await r.recover()
        if killed:
            return
        telling = [asyncio.ensure_future(one.run()) for one in (r.loop.reports, r.loop.succession)]
        await asyncio.sleep(10)
        assert await stopped(r) == set(), "which pods there are isn't known yet"
        r.loop.succession.pods_known({known["again"].uid})
        await asyncio.sleep(10)
        assert await stopped(r) == {"gone"}
        r.loop.succession.pod_ended(known["again"].uid)
        await asyncio.sleep(10)
        assert await stopped(r) == {"gone", "again"}
        assert not [key for key in booted.journal if key.startswith(UNTOLD)]
        for one in telling:
            one.cancel()

    run_virtual(before())
    booted.journal = outlast_boot(ran.journal)
    run_virtual(after(killed=True), start=4000.0)
    run_virtual(after(killed=False), start=5000.0)


def test_that_a_failed_pod_has_stopped_is_told_though_it_was_deleted_and_the_agent_killed(rig):
    """Nothing but the journal names it then: it has no seat, and the watch does not list it."""
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})

    async def before():
        r = rig(machine, tiers=TIERS)
        _, hot = await two(r)
        runs = r.node.seats.pop(hot).identity.pod
        machine.journal.pop(f"seat/{hot}")
        r.loop.succession.failed(runs, "its kubelet has failed it")
        return runs

    async def after(pod):
        r = rig(machine, tiers=TIERS)
        await r.recover()
        assert pod.uid not in r.node.seats
        for one in (r.loop.reports, r.loop.succession):
            r.loop.life.aside(one.run())
        r.loop.succession.pods_known(set())
        await asyncio.sleep(100)
        assert not await stopped(r, pod), "its successor would run beside it"
        machine.end_container(pod.uid)
        await asyncio.sleep(10)
        assert await stopped(r, pod)
        assert not [key for key in machine.journal if key.startswith(UNTOLD)]

    run_virtual(after(run_virtual(before())), start=5000.0)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(1, 8))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_that_a_pod_deleted_while_it_runs_has_stopped_is_told_by_the_next_agent(rig, write, after):
    """Whichever write of its journal is the last one's last."""
    machine, pods = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30}), []

    async def killed():
        r = rig(machine, tiers=TIERS)
        _, hot = await two(r)
        pods.append(r.node.seats[hot].identity.pod)
        r.loop.life.aside(r.loop.reports.run())
        machine.crash_at, machine.crash_after = machine.journal_writes + write, after
        quiet()
        r.loop.pod_gone(hot)
        machine.end_container(hot)
        await asyncio.sleep(100)

    async def next_agent():
        r = rig(machine, tiers=TIERS)
        await r.recover()
        r.loop.life.aside(r.loop.reports.run())
        await asyncio.sleep(1)
        r.loop.pod_gone(pods[0].uid)  # as its first listing says
        await asyncio.sleep(100)
        assert await stopped(r, pods[0])
        assert pods[0].uid not in r.node.seats

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(killed())
    machine.crash_at = None
    run_virtual(next_agent(), start=5000.0)


async def stopped(r, pod):
    return bool((await r.loop.registry.line(pod.namespace, pod.uid, 1.0)).stopped)


def failed_pod(ref):
    seat = {"name": "m", "resources": {"limits": {"kyb.ai/gpu-1x-seat": "1"}}}
    marked = [{"type": "kyb.ai/replace", "status": "True"}]
    return {
        "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
        "spec": {"containers": [seat]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "conditions": marked},
    }
