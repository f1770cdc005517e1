"""TCP that is held back from pods whose seats are below RAM."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from tests.unit.nodeagent.offloading import ACTIVE, TIERS, down, two
from tests.unit.nodeagent.succession import left, of


def held():
    return REGISTRY.get_sample_value("kyb_agent_held_packets_total")


async def test_what_was_dropped_is_counted_once_tcp_passes(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    before = held()
    await down(r, cold)
    assert r.machine.arrive(cold)
    await r.until(cold, ACTIVE)
    assert held() == before + 1
    r.check()


async def test_mptcp_is_off_before_a_program_can_ask_for_it(rig):
    r = rig(tiers=TIERS)
    for seat in await two(r):
        done = [entry[0] for entry in r.machine.log if entry[1] == seat]
        assert done.index("plain") < done.index("go")
    r.check()


async def test_mptcp_is_off_where_a_tree_is_awaited(rig):
    r = rig(tiers=TIERS)
    cold, _, _, telling = await left(r)
    new = await r.seat("new", restore=of(cold))
    await r.until(new, ACTIVE)
    done = [entry[0] for entry in r.machine.log if entry[1] == new]
    assert done.index("plain") < done.index("expect")
    telling.cancel()


@pytest.mark.parametrize(
    ("fault", "told"), [("plain-fails", ["MptcpStays"]), ("plain-refused", [])]
)
async def test_a_seat_starts_also_where_mptcp_stays(rig, fault, told):
    r = rig(tiers=TIERS)
    r.machine.faults.add(fault)
    await two(r)
    assert [reason for reason, _ in r.seen.events if reason == "MptcpStays"] == told
    r.check()
