"""A seat goes on from what it was handed only if that is the named pod's own, and all there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.errors import RefusedError
from kybernate.types import PodRef, PodUid, Tier
from tests.unit.nodeagent.offloading import ACTIVE, NVME, OBJECT, TIERS, app_of, reasons, when
from tests.unit.nodeagent.succession import left, of, went


def receives(r, whole):
    """Other nodes send it states, of which `whole` says whether all is there."""
    r.node.world = replace(r.node.world, offloading=replace(r.node.world.offloading, whole=whole))


@pytest.mark.parametrize("wrong", [("default", "between"), ("other", "")])
async def test_a_state_of_another_pod_than_the_handover_names_is_not_adopted(rig, wrong):
    r = rig(tiers=TIERS)
    cold, artifact, (inner, _), telling = await left(r)
    adoptions = r.loop.adoptions
    adoptions.at_gate = lambda seat: None
    new = await r.seat("new", restore=of(cold))
    await when(lambda: r.node.seats[new].contact.connected)
    seat, pod = r.node.seats[new], PodRef(wrong[0], "x", PodUid(wrong[1] or cold))
    with pytest.raises(RefusedError, match="is a state of pod default/"):
        await adoptions.adopt(seat, artifact, Tier.OBJECT, of=pod)
    assert (seat.saved.artifact, seat.saved.predecessor) == ("", "")
    line = await r.loop.registry.line("default", cold, 10)
    assert line.successor == "", "nothing was claimed"
    await adoptions.adopt(seat, artifact, Tier.OBJECT, of=PodRef("default", "a", cold))
    await r.until(new, ACTIVE)
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    telling.cancel()


async def test_what_is_damaged_on_nvme_is_waited_for_until_it_came_again(rig):
    r = rig(tiers=TIERS)
    cold, _, (inner, _), telling = await left(r, NVME)
    asked = []

    async def whole(artifact):
        asked.append(artifact)
        return len(asked) > 2

    receives(r, whole)
    new = await r.seat("new", restore=of(cold))
    await when(lambda: asked)
    assert r.node.seats[new].saved.artifact == ""
    await r.until(new, ACTIVE)
    assert len(asked) == 3
    assert "RestoreWaits" in reasons(r)
    assert (app_of(r, new).inner, went(r, new)) == (inner, [])
    telling.cancel()


async def test_where_the_object_store_has_it_too_it_comes_from_there(rig):
    r = rig(tiers=TIERS)
    cold, artifact, _, telling = await left(r, NVME)
    await r.node.world.offloading.vault.pack(artifact, Tier.OBJECT, 10)

    async def whole(artifact):
        return False

    receives(r, whole)
    new = await r.seat("new", restore=of(cold))
    await r.until(new, ACTIVE)
    assert (new, OBJECT) in r.seen.states
    assert (new, NVME) not in r.seen.states[: r.seen.states.index((new, OBJECT))]
    telling.cancel()
