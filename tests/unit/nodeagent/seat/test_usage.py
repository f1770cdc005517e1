"""What namespaces are counted for, also over restarts of the agent."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from kybernate.errors import DeadlineError, DriverError, NotFoundError
from kybernate.types import SeatState
from nodeagent import metrics
from nodeagent.app.recover import recover
from nodeagent.seat.steps import Reverted
from nodeagent.seat.usage import Usage
from tests.kit.clock import run_virtual

GIB_HOUR = (1 << 30) * 3600


async def rig_with_usage(rig, machine=None):
    r = rig(machine)
    usage = Usage(r.node)
    return r, usage


def test_active_seconds_and_gib_hours_are_those_of_the_states(rig):
    async def main():
        r, usage = await rig_with_usage(rig)
        r.node.observe(usage)
        r.begin()
        a = await r.seat("a", delay=0.0)
        await r.until(a, SeatState.ACTIVE)
        await asyncio.sleep(100)
        r.loop.operators.send_away(a, "a test")
        await r.until(a, SeatState.PARKED)
        await asyncio.sleep(3600)
        total = usage.totals()["default"]
        assert total.active == pytest.approx(100, abs=2)
        assert total.parked == pytest.approx(40 * GIB_HOUR, rel=0.001)
        # A restarted agent of the same machine goes on where this one was.
        return r.machine, total, r.clock.time()

    async def second(machine, total):
        r, usage = await rig_with_usage(rig, machine)
        machine.carry_on()
        records = await recover(r.loop)
        await asyncio.sleep(3600)
        usage.resume(records)
        now = usage.totals()["default"]
        assert now.active == pytest.approx(total.active, abs=0.01)
        assert now.parked == pytest.approx(total.parked + 40 * GIB_HOUR, rel=0.001)

    machine, total, now = run_virtual(main())
    run_virtual(second(machine, total), start=now)


@pytest.mark.parametrize("added", [False, True], ids=["before", "between"])
async def test_a_seat_that_is_gone_after_a_restart_is_counted_once(rig, added):
    """Also if the last agent was killed between the two writes that end a meter."""

    r, usage = await rig_with_usage(rig)
    wall = r.node.world.wall()
    meter = {"namespace": "shop", "active": 3.0, "parked": 0.0, "since": wall - 50}
    total = {"active": 60.0 if added else 7.0, "parked": 0.0, "last": "gone" if added else ""}
    usage.resume({"usage/gone": {**meter, "held": None}, "usage-of/shop": total})
    await asyncio.sleep(1000)
    assert usage.totals()["shop"].active == pytest.approx(60)
    assert "usage/gone" not in r.machine.journal


async def test_the_meter_of_a_seat_lives_on_in_its_namespace(rig):
    r, usage = await rig_with_usage(rig)
    r.node.observe(usage)
    r.begin()
    a = await r.seat("a", delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    await asyncio.sleep(100)
    r.loop.pod_gone(a)
    r.machine.end_container(a)
    await asyncio.sleep(50)
    assert usage.totals()["default"].active == pytest.approx(100, abs=3)
    assert [key for key in r.machine.journal if "usage" in key] == ["usage-of/default"]


async def test_the_counters_advance_by_themselves(rig):
    r, usage = await rig_with_usage(rig)
    r.node.observe(usage)
    r.begin()
    task = asyncio.create_task(usage.run())
    await r.until(await r.seat("a", delay=0.0), SeatState.ACTIVE)

    def seconds():
        name = "kyb_agent_active_seconds_total"
        return REGISTRY.get_sample_value(name, {"namespace": "default"}) or 0.0

    before = seconds()
    await asyncio.sleep(60)
    assert seconds() - before == pytest.approx(60, abs=6)
    task.cancel()


@pytest.mark.parametrize(
    ("below", "cause"),
    [
        (DriverError("cuX", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "CUDA_ERROR_OUT_OF_MEMORY"),
        (DeadlineError("late"), "deadline"),
        (OSError(28, "full"), "disk"),
        (NotFoundError("no process 7"), "process-gone"),
        (None, "workload"),
    ],
)
def test_a_failure_is_counted_by_the_error_that_lies_below(below, cause):
    name, labels = "kyb_agent_failures_total", {"operation": "a-test", "cause": cause}
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    try:
        raise Reverted("it was undone") from below  # noqa: TRY301 - failed() reads what is handled
    except Reverted:
        metrics.failed("a-test")
    assert REGISTRY.get_sample_value(name, labels) == before + 1


@pytest.mark.parametrize(("event", "cause"), [("GpuLost", "gpu-lost"), ("", "workload")])
def test_a_failure_without_an_error_is_named_by_its_event(event, cause):
    name, labels = "kyb_agent_failures_total", {"operation": "another", "cause": cause}
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    metrics.failed("another", event)
    assert REGISTRY.get_sample_value(name, labels) == before + 1
