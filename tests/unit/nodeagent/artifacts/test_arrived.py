"""States that other nodes delivered, and that nobody goes on from yet, or ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.checkpoint.places import read_manifest
from kybernate.core.artifacts.holds import ARRIVED, OUTLIVED, PersonHold
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.errors import RetryableError
from kybernate.types import ArtifactId, PodRef, PodUid, Tier
from nodeagent.artifacts.reports import Kind
from nodeagent.seat.parts.saved import Begins
from tests.unit.checkpoint.kit import KEYS
from tests.unit.nodeagent.twonodes import LIMIT, POD, delivered, follow, two_nodes


def soon(monkeypatch):
    """What no event tells of is looked at again at once."""
    monkeypatch.setattr("kybernate.core.artifacts.holds.AGAIN_S", 0.01)
    for name in ("AGAIN_S", "_RETRY_S"):
        monkeypatch.setattr(f"nodeagent.artifacts.holds.{name}", 0.01)


@pytest.mark.real_time
async def test_what_was_delivered_for_a_move_that_is_called_off_goes(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        other = PodRef(POD.namespace, "other", PodUid("other"))
        await two.receiver.call_off(other, two.uid)
        await two.receiver.call_off(POD, PodUid("another"))
        assert two.r.machine.journal[ARRIVED + artifact]["off"] is False
        await peers.call_off(two.to, LIMIT)
        await peers.call_off(two.to, LIMIT)
        await two.until_gone(artifact)


@pytest.mark.real_time
async def test_an_agent_that_dies_before_it_dropped_it_leaves_that_to_the_next(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)

        async def dies(artifact, place, *, forget):
            raise asyncio.CancelledError

        two.vault.drop = dies
        await peers.call_off(two.to, LIMIT)
        two.restarted()
        await two.until_gone(artifact)


@pytest.mark.real_time
async def test_a_drop_that_fails_is_tried_again(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        soon(monkeypatch)
        real, fails = two.vault.drop, [OSError("the disk refuses"), RetryableError("later")]

        async def drop(*args, **more):
            if fails:
                raise fails.pop()
            await real(*args, **more)

        two.vault.drop = drop
        await peers.call_off(two.to, LIMIT)
        await two.until_gone(artifact)
        assert not fails


@pytest.mark.real_time
async def test_what_a_seat_has_gone_on_from_before_it_could_be_dropped_stays(
    rig, tls, tmp_path, monkeypatch
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        soon(monkeypatch)
        real = two.vault.drop

        async def fails(*args, **more):
            two.vault.drop = real
            two.r.node.seats[two.uid].saved.artifact = artifact
            raise OSError("the disk refuses")

        two.vault.drop = fails
        await peers.call_off(two.to, LIMIT)
        await asyncio.sleep(0.1)
        assert two.has(artifact)
        two.r.node.seats[two.uid].saved.artifact = ""
        await two.until_gone(artifact)


@pytest.mark.real_time
@pytest.mark.parametrize("then", ["deliver", "take over"])
async def test_what_came_before_a_move_was_begun_anew_goes(rig, tls, tmp_path, then):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        newer = two.sealed(two.dump(2), 2)
        if then == "deliver":
            await peers.deliver(two.to, newer, LIMIT)
            assert two.has(newer)
        else:
            await peers.let_continue(two.to, newer, LIMIT)
        await two.until_gone(artifact)
        assert two.has(newer) is (then == "deliver")


@pytest.mark.real_time
@pytest.mark.parametrize("found", ["handed over", "by itself", "as a copy"])
async def test_what_a_seat_goes_on_from_is_not_dropped_for_a_late_word(
    rig, tls, tmp_path, monkeypatch, found
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        seat, custody = two.r.node.seats[two.uid], two.r.loop.custody
        monkeypatch.setattr(
            two.r.loop.operators, "request_wake", lambda uid, why: True
        )  # or it starts
        if found == "handed over":
            await peers.let_continue(two.to, artifact, LIMIT)
            seat.saved.artifact = ""
        else:
            seat.saved.artifact, seat.saved.begins = artifact, Begins.ADOPTED
            own = found == "by itself"
            seat.saved.predecessor, seat.saved.claimed = (POD.uid, artifact) if own else ("", "")
            seat.saved.copies = frozenset({Tier.NVME})
            two.receiver.seat_changed(seat)
        assert (ARRIVED + artifact in two.r.machine.journal) is (found == "as a copy")
        await peers.call_off(two.to, LIMIT)
        assert custody.of(artifact).drop is None
        two.receiver.seat_gone(seat)
        held = custody.of(artifact).transfer
        assert (held is not None and held.until > 0) is (found == "as a copy")
        await asyncio.sleep(0.1)
        assert two.has(artifact)


@pytest.mark.real_time
@pytest.mark.parametrize("over_a_restart", [False, True])
async def test_what_came_for_one_that_goes_on_from_the_object_store_goes_after_it(
    rig, tls, tmp_path, monkeypatch, over_a_restart
):
    """And that alone: the copy in the store may be somebody else's."""

    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        soon(monkeypatch)
        artifact, told = await delivered(two, peers), []
        two.r.node.world = replace(two.r.node.world, registry=object())
        two.r.loop.reports.put = lambda report: told.append(report.kind)
        seat = two.r.node.seats[two.uid]
        seat.saved.artifact, seat.saved.begins = artifact, Begins.ADOPTED
        seat.saved.predecessor, seat.saved.claimed = POD.uid, artifact
        seat.saved.copies = frozenset({Tier.OBJECT})
        two.receiver.seat_changed(seat)
        if over_a_restart:
            two.restarted()
        await asyncio.sleep(0.1)
        assert two.has(artifact)
        assert seat.saved.may_drop == ()
        seat.saved.artifact = ""
        await two.until_gone(artifact)
        assert Kind.COPIED not in told


@pytest.mark.real_time
@pytest.mark.parametrize("over_a_restart", [False, True])
async def test_what_a_pod_that_is_gone_never_took_is_kept_for_a_while(
    rig, tls, tmp_path, monkeypatch, over_a_restart
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        soon(monkeypatch)
        two.r.node.settings = two.r.node.settings.model_copy(update={"keep_left_s": 0.01})
        seats, looks = two.r.node.seats, []
        gone = seats.pop(two.uid)
        waits = seats[await two.r.seat("c", delay=0.0, restore=RestoreWish(uid=POD.uid))]
        custody = two.r.loop.custody
        real = custody._use
        custody._use = lambda one: (looks.append(one), real(one))[1]
        if over_a_restart:
            two.restarted()
        else:
            two.receiver.seat_gone(gone)
        while len(looks) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert two.has(artifact), "somebody waits for it"
        waits.wishes.restore = None
        waits.saved.artifact = artifact
        seen = len(looks)
        while len(looks) < seen + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert two.has(artifact), "somebody has it"
        waits.saved.artifact = ""
        await two.until_gone(artifact)


@pytest.mark.real_time
async def test_what_people_kept_and_what_came_again_is_not_dropped(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        custody = two.r.loop.custody
        async with custody.lock(artifact):
            custody.call_off(POD.uid, two.uid)
            assert OUTLIVED + artifact in two.r.machine.journal
            again = asyncio.ensure_future(peers.deliver(two.to, artifact, LIMIT))
            await asyncio.sleep(0.1)
        await again
        assert two.has(artifact), "it was delivered again"
        assert OUTLIVED + artifact not in two.r.machine.journal
        await custody.keep(PersonHold(artifact, "save", POD.uid, {Tier.NVME: 1}))
        custody.call_off(POD.uid, two.uid)
        await asyncio.sleep(0.1)
        assert two.has(artifact)
        assert ARRIVED + artifact not in two.r.machine.journal


@pytest.mark.real_time
async def test_what_came_takes_room_until_it_is_a_seats_or_gone(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):

        def taken():
            return two.r.loop.offload.others_in(Tier.NVME)

        images = two.dump(1)
        await follow(two, peers, images)
        came = taken()
        assert came > 0
        artifact = two.sealed(images)
        await peers.deliver(two.to, artifact, LIMIT)
        assert taken() == came == read_manifest(two.there, artifact, KEYS).total
        await peers.deliver(two.to, artifact, LIMIT)
        assert (taken(), two.r.loop.offload.others_in(Tier.OBJECT)) == (came, 0)
        two.restart()
        assert taken() == came
        kept = {Tier.NVME: came}
        custody = two.r.loop.custody
        await custody.keep(PersonHold(ArtifactId(artifact), "s1", POD.uid, kept))
        assert taken() == came, "it is counted once"
        custody.listed(Tier.NVME, ())
        assert taken() == came
        two.r.node.seats[two.uid].saved.artifact = artifact
        assert taken() == 0
        two.r.node.seats[two.uid].saved.artifact = ""
        assert taken() == came
        await two.receiver.call_off(POD, two.uid)
        await two.until_gone(artifact)
        assert taken() == 0
