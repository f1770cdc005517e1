"""TCP that is held back from pods whose seats are below RAM."""

from __future__ import annotations

from prometheus_client import REGISTRY

from kybernate.testing.clock import run_virtual
from tests.unit.nodeagent.below import ACTIVE, TIERS, down, two


def held():
    return REGISTRY.get_sample_value("kyb_agent_held_packets_total")


def test_what_was_dropped_is_counted_once_tcp_passes(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        before = held()
        await down(r, cold)
        assert r.machine.arrive(cold)
        await r.until(cold, ACTIVE)
        assert held() == before + 1
        r.check()

    run_virtual(main())
