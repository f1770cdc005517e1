"""What `kyb-init status` is answered: of a parked seat always where its state is."""

from __future__ import annotations

import pytest

from kybernate.core.seat.seats import TIER_OF, shown
from kybernate.errors import RestoreError
from kybernate.types import PodUid, SeatState, Tier
from tests.unit.nodeagent.offloading import ACTIVE, NVME, OBJECT, PARKED, TIERS, down, two, when

NAMED = {Tier.RAM: "RAM", Tier.NVME: "NVMe", Tier.OBJECT: "the object store"}


@pytest.mark.parametrize("reason", ["", "a wake was requested", "not restored: no memory"])
@pytest.mark.parametrize("state", list(SeatState))
async def test_each_state_in_which_a_seat_is_parked_names_its_tier(rig, state, reason):
    r = rig(tiers=TIERS)
    r.begin()
    seat = r.node.seats[await r.seat("a")]
    seat.state, seat.history.reason = state, reason
    word, sentence = r.loop.doors.on_status(seat.uid)
    assert word == shown(state)
    assert sentence.endswith(reason)
    if state in TIER_OF:
        assert sentence.startswith(f"parked {_at(TIER_OF[state])}")
    elif state is not SeatState.WAKING:
        assert sentence == reason


def _at(tier):
    return ("on " if tier is Tier.NVME else "in ") + NAMED[tier]


async def test_a_seat_on_its_way_down_and_back(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)

    def told():
        return r.loop.doors.on_status(cold)

    assert told() == ("parked", "parked in RAM")
    r.loop.operators.ask_for_tier(cold, Tier.OBJECT)
    await when(lambda: r.state(cold) is SeatState.DUMPING)
    assert told()[1].startswith("parked in RAM, being written down; ")
    await when(lambda: r.state(cold) is NVME)
    await when(lambda: told()[1] == "parked on NVMe, being copied to the object store")
    await when(lambda: r.state(cold) is OBJECT)
    await when(lambda: told()[1].startswith("parked in the object store; "))
    r.loop.operators.request_wake(cold, "a test")
    await when(lambda: ", being brought back to NVMe" in told()[1])
    await when(lambda: r.state(cold) is SeatState.RESTORING)
    assert told()[1].startswith("parked on NVMe, being brought back to RAM; ")
    await when(lambda: r.state(cold) is PARKED)
    assert told() == ("parked", "parked in RAM; restored from its artifact")
    await when(lambda: r.state(cold) is SeatState.WAKING)
    assert told()[1].startswith("parked in RAM, being brought back to its GPUs; ")
    await when(lambda: r.state(cold) is ACTIVE)
    assert told() == ("active", "awake")


async def test_a_seat_that_could_not_be_restored(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)

    async def fails(*_, **__):
        raise RestoreError("no memory")

    r.node.world.offloading.dumper.restore = fails
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, SeatState.RESTORING)
    await r.until(cold, NVME)
    assert r.loop.doors.on_status(cold) == ("parked", "parked on NVMe; not restored: no memory")


async def test_a_pod_without_a_seat(rig):
    assert rig().loop.doors.on_status(PodUid("x")) == ("unknown", "the agent has no such seat")
