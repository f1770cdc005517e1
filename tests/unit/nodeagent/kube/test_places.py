"""Which saved states the GPUNode tells of."""

from __future__ import annotations

from pathlib import Path

import yaml

from kybernate.api.gpunodes import MOST_SAVED, ArtifactRow
from kybernate.core.artifacts.holds import PersonHold
from kybernate.core.seat.operations import Kind
from kybernate.types import Tier
from nodeagent.kube.attendance import Attendance
from nodeagent.kube.publish import Publisher
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from tests.unit.nodeagent.offloading import ACTIVE, GIB, TIERS, down, two, when
from tests.unit.nodeagent.operations.test_saves import ended

CRD = Path(__file__).parents[4] / "config/crd/gpunode.yaml"


async def test_the_state_of_a_seat_is_told_while_it_is_below_ram_and_when_its_pod_has_left_it(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    assert r.loop.places.rows() == []
    await down(r, cold)
    seat = r.node.seats[cold]
    row = ArtifactRow(seat.saved.artifact, cold, "nvme", seat.saved.size)
    assert r.loop.places.rows() == [row]
    r.loop.pod_gone(cold)
    r.machine.end_container(cold)
    await when(lambda: cold not in r.node.seats)
    assert r.loop.places.rows() == [row]


async def test_what_was_saved_is_told_until_it_is_deleted(rig):
    r = rig(tiers={Tier.NVME: 1000 * GIB})
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    r.node.park_budget = 100 * GIB
    r.begin()
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, ACTIVE)
    done = await ended(await operations.ask(Ask(Kind.SAVE, "s1", uid, by="ops")))
    await r.until(uid, ACTIVE)
    (row,) = r.loop.places.rows()
    assert (row.artifact, row.uid, row.tier) == (done.artifact, uid, "nvme")
    assert row.bytes > 0
    for tier in Tier:
        r.loop.custody.listed(tier, ())
    assert r.loop.places.rows() == []


async def test_of_too_many_the_newest_are_told_and_the_crd_takes_them(rig):
    r = rig(tiers=TIERS)
    r.begin()
    for at in range(MOST_SAVED + 5):
        artifact = f"default/{'zy'[at % 2]}@20260101T{at:06}Z-0000000{at % 10}"
        places = {Tier.RAM: 1, Tier.NVME: 2, Tier.OBJECT: 3}
        await r.loop.custody.keep(PersonHold(artifact, f"s{at}", f"u{at}", places))
    rows = Publisher(r.node, None, "", Attendance(), r.loop.places.rows).status.now()["saved"]
    assert len(rows) == MOST_SAVED
    assert {row["tier"] for row in rows} == {"nvme", "object"}
    assert {row["uid"] for row in rows} == {
        f"u{at}" for at in range(MOST_SAVED + 5 - MOST_SAVED // 2, MOST_SAVED + 5)
    }
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    told = status["saved"]
    assert told["maxItems"] == MOST_SAVED
    assert set(told["items"]["required"]) == set(told["items"]["properties"]) == set(rows[0])
    assert set(told["items"]["properties"]["tier"]["enum"]) == {"nvme", "object"}
