"""From a device ID to the pod that holds it: exact, late, idempotent, and clear when it refuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from kybernate.core.seat.ending import Ends
from kybernate.errors import RefusedError, RetryableError
from nodeagent import metrics

TOKEN = "G1-seat-3"
RESOURCE = "kyb.ai/gpu-1x-seat"


async def test_the_annotation_decides_not_the_id(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token=TOKEN)
    seat = await preparer.prepare(RESOURCE, [TOKEN])
    assert seat.identity.name == "G0-seat-1"
    spec = r.machine.specs[TOKEN]
    assert [gpu.uuid for gpu in spec.gpus] == ["GPU-0"]
    assert spec.env == {
        "KYB_GPU_GROUP": "G0",
        "KYB_GPU_SEAT": "G0-seat-1",
        "KYB_GPU_INDICES": "0",
        "CUDA_VISIBLE_DEVICES": "GPU-0",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
    }
    assert spec.mounts == {"/run/kyb": "/run/kyb/seats/uid-a", "/kyb/kyb-init": "/x/kyb-init-1"}
    assert pods.marked == {"uid-a": "G0-seat-1"}


async def test_twice_is_once(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token=TOKEN)
    one = await preparer.prepare(RESOURCE, [TOKEN])
    two = await preparer.prepare(RESOURCE, [TOKEN])
    assert one is two
    assert len(r.node.seats) == 1


@pytest.mark.parametrize("again", [False, True], ids=["new", "known"])
async def test_a_pod_that_is_deleted_meanwhile_leaves_no_seat(rig, prepared, monkeypatch, again):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token=TOKEN)
    if again:
        await preparer.prepare(RESOURCE, [TOKEN])
    write = r.node.world.specs.write

    def deleted(device_id, spec):
        why = write(device_id, spec)
        if ("default", "a") in pods.pods:
            pods.delete("a")
        return why

    monkeypatch.setattr(r.node.world.specs, "write", deleted)
    with pytest.raises(RetryableError, match="deleted while its seat was prepared"):
        await preparer.prepare(RESOURCE, [TOKEN])
    await asyncio.sleep(60)
    assert r.node.seats == {}


async def test_two_pods_with_crossed_ids_each_get_their_own_group(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token="G1-seat-1")
    pods.create("b", group="G1", token="G0-seat-1")
    await asyncio.gather(
        preparer.prepare(RESOURCE, ["G0-seat-1"]), preparer.prepare(RESOURCE, ["G1-seat-1"])
    )
    given = {token: spec.gpus[0].uuid for token, spec in r.machine.specs.items()}
    assert given == {"G1-seat-1": "GPU-0", "G0-seat-1": "GPU-1"}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"group": None}, "never passed the extender"),
        ({"group": "G9"}, "does not exist on this node; groups here: G0, G1, G01"),
        ({"group": "G01"}, "has seats of kyb.ai/gpu-2x-seat"),
        ({"group": "G0", "vram": "plenty"}, "kyb.ai/vram"),
        ({"group": "G0", "resource": None}, "does not ask for"),
    ],
)
async def test_what_will_never_be_right_is_refused(rig, prepared, pod, words):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", token=TOKEN, **pod)
    with pytest.raises(RefusedError, match=words):
        await preparer.prepare(RESOURCE, [TOKEN])
    assert r.machine.specs == {}


async def test_a_full_group_is_refused_naming_who_holds_it(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    for i in range(5):
        pods.create(f"p{i}", group="G0", token=f"t{i}")
    for i in range(4):
        await preparer.prepare(RESOURCE, [f"t{i}"])
    with pytest.raises(RefusedError, match=r"all 4 seats of group G0 are held, by default/p0"):
        await preparer.prepare(RESOURCE, ["t4"])
    r.node.seats["uid-p1"].ending.begin(0.0, Ends.ASKED)
    with pytest.raises(RetryableError, match="one of them is ending"):
        await preparer.prepare(RESOURCE, ["t4"])
    r.loop.pod_gone("uid-p1")
    await asyncio.sleep(2.5)
    assert r.node.seats["uid-p4"].identity.name == "G0-seat-2"
    assert pods.marked["uid-p4"] == "G0-seat-2"


async def test_the_agent_tries_again_by_itself_and_touches_the_pod(rig, prepared):
    r, preparer, pods = prepared(rig)
    pods.create("a", group="G0", token=TOKEN)
    with pytest.raises(RetryableError, match="has not reported"):
        await preparer.prepare(RESOURCE, [TOKEN])
    assert pods.marked == {}
    r.begin()
    await asyncio.sleep(1.5)
    assert pods.marked == {"uid-a": "G0-seat-1"}


async def test_a_restarted_container_is_not_left_to_the_kubelets_next_try(rig, prepared):
    """Its pod carries kyb.ai/seat already: another annotation has to change."""

    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token=TOKEN)
    pods.pods["default", "a"]["metadata"]["annotations"]["kyb.ai/seat"] = "G0-seat-1"
    await preparer.prepare(RESOURCE, [TOKEN])
    assert (pods.marked, pods.touched) == ({}, [])
    r.machine.faults.add("no-vendor-spec")
    with pytest.raises(RetryableError):
        await preparer.prepare(RESOURCE, [TOKEN])
    assert pods.touched == []
    await asyncio.sleep(1.5)
    assert pods.touched == ["uid-a"]


async def test_the_pod_is_not_touched_when_the_kubelet_was_faster(rig, prepared):
    r, preparer, pods = prepared(rig)
    pods.create("a", group="G0", token=TOKEN)
    with pytest.raises(RetryableError, match="has not reported"):
        await preparer.prepare(RESOURCE, [TOKEN])
    r.begin()
    await preparer.prepare(RESOURCE, [TOKEN])
    await asyncio.sleep(3.0)
    assert pods.touched == []


async def test_a_missing_vendor_specification_may_pass(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    r.machine.faults.add("no-vendor-spec")
    pods.create("a", group="G0", token=TOKEN)
    with pytest.raises(RetryableError, match=r"nvidia\.yaml"):
        await preparer.prepare(RESOURCE, [TOKEN])
    assert r.node.seats == {}


async def test_a_pod_that_is_not_kept_from_its_gpus_is_told_of(rig, prepared):
    def told():
        return metrics.REGISTRY.get_sample_value("kyb_agent_open_devices_total")

    r, preparer, pods = prepared(rig)
    r.begin()
    before = told()
    pods.create("a", group="G0", token=TOKEN)
    await preparer.prepare(RESOURCE, [TOKEN])
    assert "DevicesShut" not in r.node.notices
    r.machine.faults.add("devices-open")
    pods.create("b", group="G1", token="G0-seat-1")
    await preparer.prepare(RESOURCE, ["G0-seat-1"])
    notice = r.node.notices["DevicesShut"]
    assert (notice.ok, notice.reason, told()) == (False, "OpenBeforeTurn", before + 1)
    assert "pod default/b can open its GPUs before its turn: it has no cgroup" in notice.message
    pods.create("c", group="G1", token="G0-seat-2")
    await preparer.prepare(RESOURCE, ["G0-seat-2"])
    assert (r.node.notices["DevicesShut"].ok, told()) == (True, before + 1)


async def test_without_the_api_server_a_known_pod_may_restart_its_container(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token=TOKEN)
    await preparer.prepare(RESOURCE, [TOKEN])
    pods.down = True
    assert (await preparer.prepare(RESOURCE, [TOKEN])).identity.name == "G0-seat-1"


async def test_awaited_groups_are_those_of_bound_pods_without_a_seat_oldest_first(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("late", group="G1", token="t1", at="2026-11-21T10:00:02Z")
    pods.create("early", group="G0", token="t2", at="2026-11-21T10:00:01Z")
    pods.create("has", group="G0", token="t3", at="2026-11-21T10:00:00Z")
    await preparer.prepare(RESOURCE, ["t3"])
    assert preparer.awaited(RESOURCE) == ["G0", "G1"]
    assert preparer.awaited("kyb.ai/gpu-2x-seat") == []


async def test_files_of_devices_that_nobody_holds_are_removed(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token="t1")
    await preparer.prepare(RESOURCE, ["t1"])
    pods.delete("a")
    await asyncio.sleep(1)
    assert r.node.seats == {}
    r.machine.holders.clear()
    await preparer.collect()
    assert r.machine.specs == {}


async def test_pods_that_no_journal_knows_are_found_again(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token="t1")
    assert await preparer.adopt_pods()
    assert list(r.node.seats) == ["uid-a"]
    preparer.drop_vanished(frozenset({"uid-a"}))
    assert list(r.node.seats) == ["uid-a"]


async def test_pods_without_a_record_wait_for_the_plugins_report(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    inventory, r.node.inventory = r.node.inventory, None
    pods.create("a", group="G0", token="t1")
    assert not await preparer.adopt_pods()
    assert r.node.seats == {}
    r.node.inventory = inventory
    assert await preparer.adopt_pods()
    assert list(r.node.seats) == ["uid-a"]


async def test_a_pod_that_can_have_no_seat_keeps_nobody_waiting(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group=None, token="t1")
    assert await preparer.adopt_pods()
    assert r.node.seats == {}


async def test_the_pods_priority_and_grace_go_into_its_seat(rig, prepared):
    r, preparer, pods = prepared(rig)
    r.begin()
    pods.create("a", group="G0", token=TOKEN, priority=1000, grace=300)
    seat = await preparer.prepare(RESOURCE, [TOKEN])
    assert (seat.wishes.priority, seat.identity.grace) == (1000, 300.0)
    assert seat.view(drained=True).priority == 1000


async def test_a_time_of_binding_that_is_none_is_told_and_the_pods_creation_stands_for_it(
    rig, prepared, caplog
):
    _, _, pods = prepared(rig)
    pods.create("a", group="G0", token=TOKEN)
    pod = pods.pods["default", "a"]
    pod["metadata"]["creationTimestamp"] = "2026-11-21T09:00:00Z"
    for garbage in ("yesterday", "2026-13-01T00:00:00Z", "0001-01-01"):
        pod["metadata"]["annotations"]["kyb.ai/assigned-at"] = garbage
        pods.cache.event("MODIFIED", pod)
        (facts,) = pods.cache.bound(RESOURCE)
        assert facts.assigned_at == datetime(2026, 11, 21, 9, tzinfo=UTC).timestamp()
        assert f"kyb.ai/assigned-at: '{garbage}' is no time" in caplog.text
    pod["metadata"]["annotations"]["kyb.ai/assigned-at"] = "2026-11-21T10:00:00Z"
    assert (await pods.read("default", "a")).assigned_at == facts.assigned_at + 3600
