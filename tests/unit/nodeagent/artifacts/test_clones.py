"""Debug clones: beside the original, cut off, stopped if asked, and never started anew."""

from __future__ import annotations

import asyncio

from kybernate.core.artifacts.restores import RestoreAs
from kybernate.ports import ProcessState
from nodeagent.api.streams import as_told
from tests.unit.nodeagent.offloading import ACTIVE, NVME, TIERS, WAITING, app_of, down, two, when
from tests.unit.nodeagent.succession import left, of, went

CLONE = {"kind": RestoreAs.CLONE, "waits": True}


async def test_a_clone_runs_beside_the_original_and_reaches_nobody(rig, proxy, groups):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold, NVME)
    artifact = r.node.seats[cold].saved.artifact
    clone = await r.seat("clone", groups["G1"], restore=of(cold, **CLONE))
    await when(lambda: r.state(clone) is not WAITING)
    assert r.machine.cut == {clone}, "before there is anything that could call somebody"
    await r.until(clone, ACTIVE)
    assert app_of(r, clone).cuda is ProcessState.RUNNING
    assert went(r, clone) == []
    p = proxy(r.loop)
    told = as_told(r.node.seats[clone])
    assert (told.uid, told.model, told.address) == (clone, "", "")
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(2)
    assert p.answered == {cold: 1}
    assert r.machine.cut == {clone}
    assert artifact not in r.machine.vault, "the original's state is the original's"
    r.check()


async def test_a_clone_that_is_to_stay_stopped_is_recreated_so_and_leaves_the_gpus_alone(rig):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    clone = await r.seat("clone", restore=of(cold, stopped=True, **CLONE))
    await r.until(clone, ACTIVE)
    assert app_of(r, clone).cuda is ProcessState.CHECKPOINTED
    assert r.machine.stopped == {r.node.seats[clone].tree.handle}
    assert r.node.seats[clone].tree.cuda == ()
    telling.cancel()


async def test_a_clone_that_can_not_be_cut_off_never_runs_and_is_not_started_anew(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r)
    r.machine.faults.add("cut-refused")
    clone = await r.seat("clone", restore=of(cold, **CLONE))
    await asyncio.sleep(30)
    assert (r.state(clone), went(r, clone)) == (WAITING, [])
    (said,) = [text for reason, text in r.seen.events if reason == "RestoreRefused"]
    assert "hostNetwork" in said
    assert artifact in r.machine.vault
    await r.until(clone, ACTIVE, 120)
    assert r.machine.cut == {clone}
    telling.cancel()


async def test_a_template_is_on_the_network(rig):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    copy = await r.seat("copy", restore=of(cold, kind=RestoreAs.TEMPLATE))
    await r.until(copy, ACTIVE)
    assert r.machine.cut == set()
    assert as_told(r.node.seats[copy]).address
    told = [entry for entry in r.machine.log if entry[:2] == ("cooperate", copy)]
    assert told == [("cooperate", copy, "wake")], "where a copy renews what it must"
    telling.cancel()
