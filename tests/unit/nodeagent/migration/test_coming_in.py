"""States on their way in: for pods that go meanwhile, to disks that are full, never all of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.checkpoint.delivery.incoming import Incoming
from kybernate.checkpoint.delivery.room import Room
from kybernate.checkpoint.places import read_manifest
from kybernate.core.artifacts.holds import ARRIVED
from kybernate.errors import (
    DeadlineError,
    RefusedError,
    RetryableError,
)
from kybernate.gen import peers_pb2 as pb
from kybernate.types import PodRef, PodUid, Tier
from nodeagent.api import peersapi
from nodeagent.api.peersapi import PeersApi
from tests.unit.checkpoint.kit import KEYS
from tests.unit.nodeagent.twonodes import LIMIT, POD, follow, two_nodes


def gone(two):
    """The successor's pod is no more."""
    seat = two.r.node.seats.pop(two.uid)
    two.receiver.seat_gone(seat)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - folders tell nobody of what becomes of them
        await asyncio.sleep(0.01)


def part():
    return pb.Parts(parts=[pb.Part(written=pb.Written(file="a", data=b"x"))])


@pytest.mark.real_time
async def test_nothing_is_laid_out_for_a_pod_that_goes_before_the_first_part(
    rig, tls, tmp_path, monkeypatch
):
    async with two_nodes(rig, tls, tmp_path) as (two, _):
        look = two.vault.ls

        async def goes(tier):
            gone(two)
            await asyncio.sleep(0.05)
            return await look(tier)

        async def parts():
            yield part()

        monkeypatch.setattr(two.vault, "ls", goes)
        with pytest.raises(RetryableError, match="no seat"):
            await two.receiver.coming.receive(POD, two.uid, "", parts())
        assert two.inbox.waiting() == frozenset()


@pytest.mark.real_time
async def test_nothing_is_kept_for_a_pod_that_goes_before_it_is(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        images = two.dump(1)
        await follow(two, peers, images)
        artifact = two.sealed(images)
        began, go_on = asyncio.Event(), asyncio.Event()

        async def parts():
            began.set()
            await go_on.wait()
            yield part()

        coming = asyncio.create_task(two.receiver.coming.receive(POD, two.uid, "x", parts()))
        await began.wait()
        signed = two.outbox.signed(artifact)
        work = two.receiver.deliver(POD, two.uid, artifact, signed)
        delivering = asyncio.create_task(work)
        await asyncio.sleep(0.05)
        gone(two)
        go_on.set()
        await coming
        with pytest.raises(RetryableError, match="no seat"):
            await delivering
        await until(lambda: not two.inbox.waiting())
        assert not two.has(artifact)
        assert ARRIVED + artifact not in two.r.machine.journal


@pytest.mark.real_time
async def test_a_full_disk_and_a_pod_that_goes_leave_nothing(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))

        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(Incoming, "take", full)
            with pytest.raises(RetryableError, match="No space left"):
                await peers.stage(two.to, artifact, LIMIT)
        await peers.stage(two.to, artifact, LIMIT)
        assert two.inbox.waiting() == {two.uid}
        two.receiver.seat_gone(two.r.node.seats[two.uid])
        for _ in range(500):
            if not two.inbox.waiting():
                break
            await asyncio.sleep(0.01)
        assert two.inbox.waiting() == frozenset()


@pytest.mark.real_time
async def test_a_stream_that_is_cut_short_is_kept_as_far_as_it_came(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1, blocks=400))
        slow = two.peers(rate=20e6)
        cut = asyncio.create_task(slow.stage(two.to, artifact, LIMIT))
        came = 0
        while not came:
            came = sum((await asyncio.to_thread(two.inbox.held, two.uid))[1].values())
        cut.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cut
        slow.close()
        total = sum(f.size for f in read_manifest(two.here, artifact, KEYS).files)
        rest = await peers.stage(two.to, artifact, LIMIT)
        assert 0 < rest < total


@pytest.mark.real_time
async def test_what_the_last_agent_was_sent_takes_its_room_and_half_a_state_goes(
    rig, tls, tmp_path
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        await peers.stage(two.to, two.sealed(two.dump(1)), LIMIT)
        came = two.inbox.room.taken
        await follow(two, peers, two.dump(2))
        assert came > 0
        assert two.inbox.room.taken > came
        two.restart()
        await two.receiver.coming.clear()
        assert two.inbox.room.taken == came
        assert two.r.loop.offload.others_in(Tier.NVME) == came
        folder = two.there.local / ".arriving" / two.uid
        assert {one.name for one in folder.iterdir()} == {"base", "staged"}
        await two.receiver.coming.forget(two.uid)
        assert two.inbox.room.taken == 0


@pytest.mark.real_time
async def test_what_has_come_since_the_agent_began_counts_once_and_stays(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = two.sealed(two.dump(1))
        await peers.stage(two.to, artifact, LIMIT)
        await follow(two, peers, two.dump(2))
        came = two.inbox.room.taken
        await two.receiver.coming.clear()
        assert two.inbox.room.taken == came
        assert (two.there.local / ".arriving" / two.uid / "images").exists()


@pytest.mark.real_time
async def test_what_is_half_there_goes_by_the_word_of_its_own_pod_alone(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        staged = two.sealed(two.dump(1))
        await peers.stage(two.to, staged, LIMIT)
        other = PodRef(POD.namespace, "other", PodUid("other"))
        await two.receiver.call_off(other, two.uid)
        assert two.inbox.held(two.uid)[0] == staged
        await peers.call_off(two.to, LIMIT)
        assert two.inbox.held(two.uid) == ("", {})


@pytest.mark.real_time
async def test_no_more_comes_than_nvme_may_hold(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        first, second = two.sealed(two.dump(1)), two.sealed(two.dump(2), 2)
        total = read_manifest(two.here, first, KEYS).total
        offloading = two.r.node.world.offloading
        limits = {Tier.NVME: 2 * total - 1}
        two.r.node.world = replace(two.r.node.world, offloading=replace(offloading, limits=limits))
        await peers.stage(two.to, first, LIMIT)
        await peers.deliver(two.to, first, LIMIT)
        with pytest.raises(RefusedError, match="nvme_bytes"):
            await peers.deliver(two.to, second, LIMIT)
        assert not two.has(second)


def test_the_disk_counts_beside_the_limit(tmp_path, monkeypatch):
    room, one = Room(tmp_path), PodUid("one")
    disk = SimpleNamespace(f_blocks=100, f_frsize=1 << 30, f_bavail=5)
    monkeypatch.setattr("kybernate.checkpoint.delivery.room.os.statvfs", lambda folder: disk)
    assert room.left(one) == 4 << 30, "1 GiB stays free for others"
    room.see(one, "pages-1.img", 1 << 30, staged=False)
    assert (room.left(one), room.left(PodUid("two"))) == (5 << 30, 4 << 30)
    room.limit = 3 << 30
    assert (room.left(one), room.left(PodUid("two"))) == (3 << 30, 2 << 30)


async def never():
    await asyncio.Event().wait()
    yield pb.Parts()


@pytest.mark.real_time
async def test_a_stream_on_which_nothing_comes_is_ended(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, _):
        settings = two.r.node.settings
        two.r.node.settings = settings.model_copy(update={"dump_deadline_s": 0.01})
        with pytest.raises(DeadlineError, match="no part"):
            await two.receiver.coming.receive(POD, two.uid, "", never())

        async def slowly():
            for number in range(10_000):
                yield pb.Parts(parts=[pb.Part(whole=pb.Whole(file=f"core-{number}.img"))])
                await asyncio.sleep(0.01)

        late = {"dump_deadline_s": LIMIT, "transfer_deadline_s": 0.02}
        two.r.node.settings = settings.model_copy(update=late)
        with pytest.raises(DeadlineError, match="not all of it in"):
            await two.receiver.coming.receive(POD, two.uid, "", slowly())
        monkeypatch.setattr(peersapi, "CALL_S", 0.01)
        with pytest.raises(DeadlineError, match="opening"):
            await PeersApi(two.receiver).Receive(never(), None)


@pytest.mark.real_time
async def test_a_file_is_not_closed_under_the_thread_that_writes_it(
    rig, tls, tmp_path, monkeypatch
):
    async with two_nodes(rig, tls, tmp_path) as (two, _):
        order, began, go_on = [], threading.Event(), threading.Event()
        real = Incoming.close

        def take(self, part):
            began.set()
            go_on.wait(LIMIT)
            order.append("written")

        def close(self):
            order.append("closed")
            real(self)

        monkeypatch.setattr(Incoming, "take", take)
        monkeypatch.setattr(Incoming, "close", close)

        async def two_parts():
            for name in ("a", "b"):
                yield pb.Parts(parts=[pb.Part(written=pb.Written(file=name, data=b"x"))])

        work = two.receiver.coming.receive(POD, two.uid, "", two_parts())
        receiving = asyncio.create_task(work)
        await asyncio.to_thread(began.wait, LIMIT)
        receiving.cancel()
        for _ in range(20):
            assert "closed" not in order
            await asyncio.sleep(0.01)
        go_on.set()
        with contextlib.suppress(asyncio.CancelledError):
            await receiving
        assert order[-1] == "closed"
